"""Nsight Compute's raw page as CSV: counters of kernels, joined to the kernels of a trace by name and launch order."""
