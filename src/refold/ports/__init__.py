"""The protocols through which the engine sees the world: what it needs of others, and nothing about how they do it."""
