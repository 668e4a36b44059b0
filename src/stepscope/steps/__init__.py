"""Steps turn an EventStore into engine steps: where each begins and ends, what it ran, which work is its own."""
