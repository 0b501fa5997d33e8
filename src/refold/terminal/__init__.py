"""The terminal chat: a person or a script at a `refold.chat.Chat`.

`event_text` turns the events of a chat into text, as a pure function. `dialogue` is the loop between a person and a
chat, and the status line with the context and the cost. A person sits at a `screen` (prompt_toolkit)
or, where a terminal can do nothing but print lines, at the plain one of `line_mode`, which also serves scripts.
"""
