"""Summaries without a model: facts, rules and quotations, copied word for word from a conversation."""
