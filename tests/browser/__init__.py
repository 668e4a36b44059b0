"""Tests that open the report in a browser."""
