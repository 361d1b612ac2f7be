"""Which coordinator commands a worker: the highest epoch seen, and the generations it began.

Written by the device thread alone; `epoch` and `generation` may be read from any thread.
"""

from common.errors import Fenced
from common.worker_api import Authority


class Claim:
    """Remembers the coordinator whose control call succeeded last with the highest epoch."""

    def __init__(self) -> None:
        self._holder: Authority | None = None
        self._generation = 0

    @property
    def epoch(self) -> int:
        """Highest epoch seen, 0 when none."""
        return self._holder.epoch if self._holder else 0

    @property
    def generation(self) -> int:
        """Highest generation begun in that epoch, 0 when none."""
        return self._generation

    def check(self, authority: Authority) -> None:
        """Raise Fenced for a lower epoch, and for another coordinator of the same epoch."""
        holder = self._holder
        if holder is None or authority.epoch > holder.epoch or authority == holder:
            return
        raise Fenced(
            f"coordinator {authority.coordinator_id} of epoch {authority.epoch} does not command "
            f"this worker: {holder.coordinator_id} of epoch {holder.epoch} does"
        )

    def take(self, authority: Authority) -> None:
        """Give the worker to a coordinator that passed `check`; its generations count from 0."""
        if authority != self._holder:
            self._holder, self._generation = authority, 0

    def check_generation(self, authority: Authority, generation: int) -> None:
        """Raise Fenced unless the generation is newer than every one of this coordinator."""
        if authority == self._holder and generation <= self._generation:
            raise Fenced(f"generation {generation} is not newer than generation {self._generation}")

    def begin(self, generation: int) -> None:
        """Note the generation that begins."""
        self._generation = generation
