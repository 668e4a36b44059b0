"""Kineto JSON (PyTorch profiler traces), streamed: text in blocks -> typed events -> columns."""
