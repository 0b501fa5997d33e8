"""A long agent session that is played through a real gateway, for `refold demo`.

Only the model is not real. The gateway is the one that `refold serve` starts, on a port of its own and with a temporary store; the
client is OpenAI's own where it is installed; the provider is the scripted one of `refold.testing`, which counts tokens and refuses
a request that does not fit. `session` has the turns of the session and the files that its tools read,
and `player` has the client and plays it. `refold.cli.commands.demo` draws it.
"""
