"""Refold inside other programs: each module is named after its protocol or framework.

An integration is a thin layer over the engine. It needs an optional package, so no other module imports it.
"""
