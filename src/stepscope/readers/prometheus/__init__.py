"""Prometheus text over time -> snapshots, and what they say: deltas, rates, percentiles with their error."""
