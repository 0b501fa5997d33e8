"""The command line: reads a transcript, asks the pure packages about it, and shows the answer.

Data goes to stdout and everything else to stderr. A command first makes a value (a report), then renders it, for people
with `rich` or for programs as JSON, so both always say the same. No command prints the content of a message.

`app` declares the commands, `reading` gets transcripts in, `output` gets text out; every other module is one command
(`grid` draws the cells of `context`).
"""
