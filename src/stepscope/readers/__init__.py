"""A reader turns the bytes of one external format into an EventStore."""
