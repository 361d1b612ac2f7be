"""Which checkpoint tensors make up which parameter, and which share of them a rank holds, as data.

Knows no files and no model: a family states its rules, `loader` applies them.
"""

from dataclasses import dataclass
from typing import Protocol

from worker_service.parallel.groups import Ranks

Region = tuple[slice, ...]
"""One slice, step 1, for each leading dimension of a tensor that is cut."""


class Shard(Protocol):
    """How the ranks of a tensor-parallel group share a checkpoint tensor."""

    def region(self, shape: tuple[int, ...], ranks: Ranks) -> Region:
        """The part of a tensor of `shape` this rank holds; () is all of it."""
        ...


@dataclass(frozen=True, slots=True)
class Replicated:
    """Every rank holds all of it."""

    def region(self, shape: tuple[int, ...], ranks: Ranks) -> Region:
        """All of it."""
        return ()


REPLICATED = Replicated()


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Dimension `dim` consists of `units` equal parts (heads, columns) of which ranks get even shares."""

    dim: int
    units: int

    def region(self, shape: tuple[int, ...], ranks: Ranks) -> Region:
        """This rank's units along `dim`; raises ConfigError when they cannot be shared evenly."""
        if ranks.size == 1:
            return ()
        span, size = ranks.span(self.units), shape[self.dim] // self.units
        return (slice(None),) * self.dim + (slice(span.start * size, span.stop * size),)


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Ranks get equally many rows, the last ones padded: a vocabulary need not divide."""

    def region(self, shape: tuple[int, ...], ranks: Ranks) -> Region:
        """This rank's rows, without its padding."""
        if ranks.size == 1:
            return ()
        span = ranks.padded_span(shape[0])
        return (slice(min(span.start, shape[0]), min(span.stop, shape[0])),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A checkpoint tensor, the shape it must have there, and how ranks share it."""

    name: str
    shape: tuple[int, ...]
    shard: Shard = REPLICATED


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """A parameter is its sources' shares, one below the other along dimension 0."""

    parameter: str
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRules:
    """All that one stage must know of a checkpoint.

    `packs` fill the stage's parameters; `claimed` names the tensors of the whole model, other
    stages' included; `ignored` are endings of names a checkpoint may hold for no use.
    """

    packs: tuple[Pack, ...]
    claimed: frozenset[str]
    ignored: tuple[str, ...] = ()

    def unused(self, names: set[str]) -> list[str]:
        """Those of a checkpoint's tensors that no part of the model claims, sorted."""
        return sorted(name for name in names - self.claimed if not name.endswith(self.ignored))
