"""Refold keeps LLM conversations inside the context window without losing anything."""
