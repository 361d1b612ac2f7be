"""Which coordinator commands a worker: the highest epoch seen, and the newest generation it began.

May be used from any thread. Never goes back: who lost the worker does not get it by a call that was
admitted earlier and ends later.
"""

from dataclasses import dataclass
from threading import Lock

from common.errors import Fenced
from common.step import StepId
from common.worker_api import Authority


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """The coordinator that commands, None for nobody, and its newest generation, 0 for none."""

    authority: Authority | None = None
    generation: int = 0

    @property
    def current(self) -> tuple[int, int]:
        """Epoch and generation, to be compared lexicographically."""
        return (self.authority.epoch if self.authority else 0), self.generation


class Claim:
    """Remembers the coordinator of the highest epoch among those whose calls were admitted."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held = _Held()

    @property
    def epoch(self) -> int:
        """Highest epoch seen, 0 when none."""
        return self._held.current[0]

    @property
    def generation(self) -> int:
        """Highest generation begun in that epoch, 0 when none."""
        return self._held.generation

    def is_current(self, step_id: StepId) -> bool:
        """Whether a step is of the newest generation."""
        return (step_id.epoch, step_id.generation) == self._held.current

    def is_past(self, step_id: StepId) -> bool:
        """Whether a step is of a generation that a newer one has followed."""
        return (step_id.epoch, step_id.generation) < self._held.current

    def has_begun(self, authority: Authority) -> bool:
        """Whether the newest generation is one that this coordinator began."""
        held = self._held
        return held.authority == authority and held.generation > 0

    def check(self, authority: Authority) -> None:
        """Raise Fenced for a lower epoch, and for another coordinator of the same epoch."""
        holder = self._held.authority
        if holder is None or authority.epoch > holder.epoch or authority == holder:
            return
        raise Fenced(
            f"coordinator {authority.coordinator_id} of epoch {authority.epoch} does not command "
            f"this worker: {holder.coordinator_id} of epoch {holder.epoch} does"
        )

    def take(self, authority: Authority) -> None:
        """Give the worker to a coordinator, whose generations count from 0; raises like `check`."""
        with self._lock:
            self.check(authority)
            if authority != self._held.authority:
                self._held = _Held(authority=authority)

    def begin(self, authority: Authority, generation: int) -> None:
        """Give the worker to a coordinator and its next generation.

        Raises like `check`, and Fenced unless the generation is newer than every one of this
        coordinator; then nothing has changed.
        """
        with self._lock:
            self.check(authority)
            held = self._held
            if authority == held.authority and generation <= held.generation:
                raise Fenced(
                    f"generation {generation} is not newer than generation {held.generation}"
                )
            self._held = _Held(authority=authority, generation=generation)
