"""A budget turns a store and its steps into time: each ns of a step's window in exactly one category."""
