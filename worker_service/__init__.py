"""The service that computes: one rank of a worker group, on a GPU or a CPU."""

from common.config_loader import let_waiting_threads_sleep

# Here, as whatever of this package is imported first may import torch next.
let_waiting_threads_sleep()
