"""Checks and repairs of the text that a model wrote as a summary."""
