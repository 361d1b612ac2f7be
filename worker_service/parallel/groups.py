"""A tensor-parallel group as one object that is passed in: how many ranks, which one, how they talk."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranks:
    """Rank `index` of a tensor-parallel group of `size`; `group` is None exactly on one rank."""

    size: int = 1
    index: int = 0
    group: "ProcessGroup | None" = None

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.size:
            raise ConfigError(f"tensor-parallel rank {self.index} is not in a group of {self.size}")

    def span(self, units: int) -> range:
        """The units of `units` (heads, columns) this rank holds, equally many on every rank.

        With more ranks than units each unit is held by size / units neighbouring ranks. Raises
        ConfigError when neither number divides the other.
        """
        if units % self.size == 0:
            share = units // self.size
            return range(self.index * share, (self.index + 1) * share)
        if self.size % units == 0:
            unit = self.index * units // self.size
            return range(unit, unit + 1)
        raise ConfigError(f"{units} heads or columns cannot be shared evenly by {self.size} ranks")

    def padded_span(self, total: int) -> range:
        """This rank's range of `total` rows when all ranks get ceil(total / size); may pass the end."""
        share = -(-total // self.size)
        return range(self.index * share, (self.index + 1) * share)
