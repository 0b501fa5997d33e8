"""`refold demo`: a long agent session through a real gateway, to watch.

Only the model is scripted. The gateway is the one that `refold serve` starts, on a port of its own and with a
temporary store; the client is OpenAI's own if it is installed; the provider is the scripted one of
`refold.testing`, which counts tokens and refuses too long requests. `session` holds the conversation and its
files, `player` plays it, and `screen` shows it.
"""
