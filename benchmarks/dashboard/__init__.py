"""The speed of the page with thousands of long conversations: `python -m benchmarks.dashboard`."""
