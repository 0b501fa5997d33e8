"""The gateway compared with a direct connection and with other proxies: `python -m benchmarks.gateway`.

`stub` is an upstream that answers at once, `client_requests` makes the clients' requests, `load` sends them, one
after the other or 32 at once. `proxies` are the programs in between: none, Refold (`gateway_process`), LiteLLM,
headroom; each in a process of its own. `cases` are the measurements, `neighbours` measures small requests during
large ones, `profile` profiles Refold, `table` prints the table.
"""
