"""The command line: one file a command group, one visible list, one place that catches our errors."""
