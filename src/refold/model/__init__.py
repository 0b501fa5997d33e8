"""Frozen values and errors: the words every other package is written in.

Nothing here does anything: no I/O, no clock, no decisions. `message` holds parts and messages, `tokens` counts with their
sources, `budget` sizes, `trigger` conditions, `dialect` the rules of the wire formats, `window` what leaves, `overflow`
what a provider's refusal means, `errors` the whole tree of errors.
"""
