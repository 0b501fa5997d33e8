"""The gateway beside a direct connection and beside its peers: `python -m benchmarks.gateway`.

`stub` is an upstream that answers at once, `talks` are the requests of clients, `load` sends them, one after the other or 32 at
once. `proxies` stand between: none, Refold (`served`), LiteLLM, headroom; each in a process of its own. `cases` are what is
measured, `beside` measures small requests beside large ones, `places` says where Refold's time goes, `telling` makes the table.
"""
