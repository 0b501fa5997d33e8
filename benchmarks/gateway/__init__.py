"""The gateway beside a direct connection and beside its peers: `python -m benchmarks.gateway`.

stub       an upstream that answers at once, in a process of its own
talks      the requests that a client sends
load       who sends them: one after the other, or 32 at once
proxies    what stands between: nothing, Refold, LiteLLM, headroom; each in a process of its own
cases      what is measured
places     where Refold's time goes, by py-spy
telling    the table
"""
