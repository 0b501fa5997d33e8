"""Pure decisions about a conversation: its size, its cuts, its reductions and its validity.

No I/O, no clock, no environment, no randomness, no log. Every function takes values and returns values.
"""
