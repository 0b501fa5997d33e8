"""The protocols that the engine depends on: stores, summarisers, embedders and upstreams. Adapters implement
them.
"""
