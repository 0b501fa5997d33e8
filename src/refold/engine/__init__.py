"""The engine: conversations that stay inside their window.

It holds what the pure core cannot: a state that changes. Every decision is the core's; the engine remembers the answer,
keeps what was there before so that it can be undone, and writes a receipt for everything it does on its own.
"""
