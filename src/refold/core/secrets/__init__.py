"""Finds secrets in text and replaces them by placeholders."""
