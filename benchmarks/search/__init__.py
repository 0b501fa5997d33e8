"""How well search finds, and how fast."""
