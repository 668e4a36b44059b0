"""The simulator: a workload and a scheduler's rules -> engine steps, each a BatchShape, and request latencies."""
