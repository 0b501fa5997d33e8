"""The cost of a request and of a job in a cluster, and the size of a cluster for a number of conversations."""
