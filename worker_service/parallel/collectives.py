"""Sums and gathers over a tensor-parallel group; on one rank they return their input."""

import torch
from torch import Tensor

from worker_service.parallel.groups import Ranks


def all_reduce(x: Tensor, ranks: Ranks) -> Tensor:
    """Sum x over the group, in place."""
    if ranks.group is not None:
        ranks.group.allreduce([x]).wait()
    return x


def all_gather(x: Tensor, ranks: Ranks) -> Tensor:
    """Join every rank's x along the last dimension, in rank order."""
    if ranks.group is None:
        return x
    parts = [torch.empty_like(x) for _ in range(ranks.size)]
    ranks.group.allgather([parts], [x.contiguous()]).wait()
    return torch.cat(parts, dim=-1)
