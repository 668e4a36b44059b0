"""What measured runs say of a step's time: from steps, from aggregated points, from a log of requests."""
