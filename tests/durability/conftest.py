from tests.contract.stores import postgres_url, store, store_set  # noqa: F401
