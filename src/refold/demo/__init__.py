"""`refold demo`: a long agent session through a real gateway, to be watched.

The idea: everything but the model is real. The gateway is the one that `refold serve` starts, on a port of its own and with a store
that is thrown away; the client is OpenAI's own where it is installed; the provider is the scripted one of `refold.testing`, which
counts tokens and refuses what does not fit. `session` is what is said, with the papers of `project`; `playing` plays it, and
`showing` shows it.
"""
