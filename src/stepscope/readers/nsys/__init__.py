"""Nsight Systems' SQLite exports, read by the schema that stands in each export itself."""
