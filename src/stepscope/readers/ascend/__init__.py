"""Profiles of Ascend NPUs: a torch_npu profiler directory or an msprof output, text or database -> an EventStore."""
