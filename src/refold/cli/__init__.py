"""The command line: looks at transcripts and at stored conversations, asks the packages below about them, and shows the answer.

Data goes to stdout and everything else to stderr. A command first makes a value (a report), then renders it, for people
with `rich` or for programs as JSON, so both always say the same. What was said is printed only by commands that are asked for it.

`app`, `asking` and `acting` declare the commands, `options` what they share; `reading` gets transcripts in, `stored` opens a store,
`output` gets text out (`columns` and `grid` lay it out), `flags` makes an option of every setting. Every other
module is one command or a few that belong together:

    transcripts     context  check  compact (with changes)  models
    settings        config (with configuring)
    gateway         serving (what it says), keys
    conversations   listing  telling  finding  folding  continuing  transfer  purging  doctor  database
"""
