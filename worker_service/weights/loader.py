"""Fills a model's parameters from a checkpoint by rules and proves that nothing is missing or unused."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from common.errors import ModelError
from worker_service.parallel.groups import Ranks
from worker_service.weights.checkpoint import (
    BYTES_PER_ELEMENT,
    Checkpoint,
    region_bytes,
    region_shape,
)
from worker_service.weights.rules import Pack, Source, WeightRules

_MAX_NAMES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightReport:
    """What loading did: bytes the parameters take, bytes and tensors read, digest of the checkpoint.

    The digest is the whole checkpoint's, so it is equal on all stages that read the same one.
    """

    parameter_bytes: int
    bytes_read: int
    tensors_read: int
    weights_digest: str


@torch.no_grad()
def load_weights(
    model: nn.Module, *, folder: Path, rules: WeightRules, ranks: Ranks
) -> WeightReport:
    """Copy each tensor's share into its parameter, converting the dtype on the way.

    Reads exactly the sources of rules.packs, and of these only this rank's share. Raises ModelError
    naming tensors that are missing, that nothing claims, or that have the wrong shape or dtype.
    """
    parameters = dict(model.named_parameters())
    assert parameters.keys() == {pack.parameter for pack in rules.packs}, "rules fit the model"
    with Checkpoint.open(folder) as checkpoint:
        _prove_complete(checkpoint, rules)
        bytes_read = sum(
            _fill(parameters[pack.parameter], pack=pack, checkpoint=checkpoint, ranks=ranks)
            for pack in rules.packs
        )
        return WeightReport(
            parameter_bytes=sum(parameter.nbytes for parameter in parameters.values()),
            bytes_read=bytes_read,
            tensors_read=sum(len(pack.sources) for pack in rules.packs),
            weights_digest=checkpoint.digest,
        )


def _prove_complete(checkpoint: Checkpoint, rules: WeightRules) -> None:
    needed = {source.name for pack in rules.packs for source in pack.sources}
    names = set(checkpoint.tensors)
    if missing := sorted(needed - names):
        raise ModelError(f"the checkpoint lacks {_list(missing)}")
    if unused := rules.unused(names):
        raise ModelError(f"the checkpoint holds tensors the model has no use for: {_list(unused)}")


def _fill(parameter: torch.Tensor, *, pack: Pack, checkpoint: Checkpoint, ranks: Ranks) -> int:
    """Fill one parameter and return the bytes read."""
    row = bytes_read = 0
    for source in pack.sources:
        _check(source, checkpoint)
        region = source.shard.region(source.shape, ranks)
        num_rows = region_shape(source.shape, region)[0]
        parameter[row : row + num_rows].copy_(checkpoint.read(source.name, region))
        bytes_read += region_bytes(checkpoint.tensors[source.name], region)
        row += num_rows
    return bytes_read


def _check(source: Source, checkpoint: Checkpoint) -> None:
    stored = checkpoint.tensors[source.name]
    if stored.shape != source.shape:
        raise ModelError(
            f"tensor {source.name} has shape {list(stored.shape)}, config.json asks for {list(source.shape)}"
        )
    if stored.dtype not in BYTES_PER_ELEMENT:
        raise ModelError(
            f"tensor {source.name} has dtype {stored.dtype}; only {', '.join(BYTES_PER_ELEMENT)} can be loaded"
        )


def _list(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    rest = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")
