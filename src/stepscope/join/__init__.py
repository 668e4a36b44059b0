"""The join: recorded steps with logs, metrics, step logs, expert counts and client results, side by side."""
