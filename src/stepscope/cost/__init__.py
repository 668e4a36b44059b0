"""A cost turns an operator and a hardware into seconds: bounds from the roofline, predictions from fitted models."""
