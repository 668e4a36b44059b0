"""Prometheus text over time -> snapshots, and what can be said from them: deltas, rates, percentiles with their error."""
