"""The store in memory: `store.MemoryStore` over one set of `tables` per owner, searched without an index."""
