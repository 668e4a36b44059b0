"""Answers turn steps and budgets into answers and refusals, question by question."""
