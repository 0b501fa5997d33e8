"""Pure decisions about a conversation: how large it is, where it may be cut, what is wrong with it.

No I/O, no clock, no environment, no randomness, no log. Every function takes values and gives back values.
"""
