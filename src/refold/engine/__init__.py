"""The engine: conversations that stay inside their context window.

The pure core decides; the engine holds the state that changes. It stores messages and changes, commits them
in transactions, keeps the earlier state so that a change can be undone, and writes a receipt for every
automatic change. Start with `state`, `actions`, `conversation` and `engine`, in this order.
"""
