"""The chat: a conversation with a model that streams, calls tools, takes commands and queues input.

`chat` has the class `Chat` and its events; `tools` are functions and MCP servers that the model may call;
`commands` is the table of commands that the chat, the library and the gateway share; `holder` names the program in the lease of a
branch.
"""
