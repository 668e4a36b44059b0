"""Calibrate turns measured steps, and what the model says of them, into a Calibration that a simulator can run on."""
