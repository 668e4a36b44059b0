"""Calibration: what was measured -> the few numbers of a cost, and how far it is off on what it was not fitted on."""
