"""The command line: it starts the gateway, the demo, the replay and the MCP server, and works on transcripts and stored conversations.

Data goes to stdout and everything else to stderr. A command first makes a value (a report), then renders it, for people with `rich`
or for programs as JSON, so that both say the same. Content of conversations is printed only by commands that are asked for it.

`main` is the typer app, and `commands` has a module for every command. Around them:

    options                     options that commands share
    output                      text for the terminal, the text of a message among it
    transcript                  reads a transcript and chooses its model and window
    store_access, settings      open a store, and find the one that the settings name
    changes                     the report of a compaction, which several commands print
"""
