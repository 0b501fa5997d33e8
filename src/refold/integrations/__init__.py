"""Refold inside of other programs: each module speaks the protocol or the framework that it is named after.

An integration is a thin layer over the engine. It needs an optional package, so it is imported only by the program that uses it.
"""
