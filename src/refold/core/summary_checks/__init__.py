"""Checks of the text that a model wrote as a summary, and repairs of it."""
