"""The commands: one module each, with its options, its help and its body.

A module's `declare` adds its command to the app. The modules are imported for every `refold --help`, so they import `rich`, the
codecs, the engine and the stores inside of the functions that use them.
"""
