"""Sweeps: a grid of prefill sizes and decode batches, run on an engine or a model of one, and its three crossovers."""
