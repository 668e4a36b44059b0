"""Operators: an `Architecture`, the rows of a step and a `ParallelPlan` become `Operator`s with flop and bytes."""
