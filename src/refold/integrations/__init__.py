"""Refold inside of other programs: each module speaks the protocol or the framework that it is named after.

One idea: an integration is a thin face over the engine. It needs a package that not everybody has, so nothing imports it but
whoever asks for it.
"""
