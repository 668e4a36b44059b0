"""A store holds what was read from one capture, as columns; it knows nothing of models or reports."""
