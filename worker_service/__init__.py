"""The service that computes: one rank of a worker group, on a GPU or a CPU."""
