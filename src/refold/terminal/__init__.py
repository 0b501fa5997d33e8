"""The terminal chat: a person or a script at a `refold.chat.Chat`.

`event_text` turns the events of a chat into text, as a pure function. `dialogue` is the loop between a person or a
script and a chat, the plain terminal that can do nothing but print lines, and the status line with the context and the
cost. `screen` is the terminal with an input area (prompt_toolkit).
"""
