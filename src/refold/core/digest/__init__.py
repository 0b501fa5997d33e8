"""Summaries without a model: facts, rules and quotes, taken word for word from a conversation."""
