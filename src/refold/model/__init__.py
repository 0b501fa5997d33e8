"""Frozen values and errors: the vocabulary of all other packages.

This package has no I/O, no clock and no decisions. `message` holds parts and messages, `tokens` counts
with their sources, costs and the budget of a window, `dialect` the rules of the wire formats, `window` the content
of one call, `summary` summaries, `mask` the masking of secrets, `errors` the whole tree of errors, with the meaning
of a provider's refusal by size.
"""
