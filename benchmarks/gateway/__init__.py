"""The gateway compared with a direct connection and with other proxies: `python -m benchmarks.gateway`.

`stub` is an upstream that answers at once, `talks` makes the clients' requests, `load` sends them, one after
the other or 32 at once. `proxies` are the programs in between: none, Refold (`served`), LiteLLM, headroom;
each in a process of its own. `cases` are the measurements, `beside` measures small requests during large
ones, `places` profiles Refold, `telling` prints the table.
"""
