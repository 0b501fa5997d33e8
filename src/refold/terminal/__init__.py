"""The terminal chat: a person or a script at a `refold.chat.Chat`.

`event_text` turns the events of a chat into text, and `status_line` draws the line with the context and the cost;
both are pure. `dialogue` is the loop between a person and a chat. A person sits at a `screen` (prompt_toolkit)
or, where a terminal can do nothing but print lines, at the plain one of `line_mode`, which also serves scripts.
"""
