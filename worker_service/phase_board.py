"""What the device thread is doing: it writes, and anyone may read without asking it.

Knows neither steps nor health: the watchdog judges, and leaves its verdict here. Only COMPUTE can
hang, since every other wait of the device thread is for someone else and can be cancelled.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock

from common.clock import Clock
from common.step import CudagraphStats, StepId
from common.worker_api import DevicePhase, Rank
from worker_service.step_times import StepTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceActivity:
    """A phase, and since when it lasts, in seconds of the monotonic clock.

    step_id: the step that runs, or ran last; None when none has. waiting_on: the rank whose tensors are
    waited for or sent to. deadline: seconds COMPUTE may last; None: no limit.
    """

    phase: DevicePhase
    since: float
    step_id: StepId | None = None
    waiting_on: Rank | None = None
    deadline: float | None = None

    @property
    def step(self) -> int:
        """The number of that step, 0 when there is none."""
        return self.step_id.step if self.step_id else 0

    @property
    def hangs_at(self) -> float | None:
        """When, on the same clock, the phase counts as hung; None when it cannot."""
        if self.phase is not DevicePhase.COMPUTE or self.deadline is None:
            return None
        return self.since + self.deadline

    def is_hung(self, now: float) -> bool:
        """Whether COMPUTE has outlived the step's deadline."""
        return self.hangs_at is not None and now >= self.hangs_at


class PhaseBoard:
    """The activity of one device thread, which alone enters phases.

    `activity` may be read from any thread: each change is the assignment of one frozen value.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._activity = DeviceActivity(phase=DevicePhase.IDLE, since=clock.monotonic())
        self._hung: DeviceActivity | None = None
        self.num_prefill_tokens = 0
        """Tokens computed for prompts, and again after preemptions, of whatever generation."""
        self.num_graph_steps: Counter[str] = Counter()
        """Steps with tokens by how they ran: in a graph of this mode, or "none"."""
        self.num_padding_tokens = 0
        """Tokens computed only to fill the shapes of graphs."""
        self.step_times = StepTimes()
        self.seconds_by_phase: dict[DevicePhase, float] = dict.fromkeys(DevicePhase, 0.0)
        """How long the thread was in each phase, phases that are over alone."""

    def note_graph(self, stats: CudagraphStats | None) -> None:
        """A step with tokens ran so."""
        if stats is not None:
            self.num_graph_steps[stats.mode] += 1
            self.num_padding_tokens += stats.num_padded_tokens - stats.num_tokens

    @property
    def activity(self) -> DeviceActivity:
        """What the device thread is doing now."""
        return self._activity

    def excuse(self, seconds: float) -> None:
        """For so long the whole process did not run: the phase is that much younger."""
        with self._lock:
            doing, now = self._activity, self._clock.monotonic()
            self._activity = replace(doing, since=min(doing.since + seconds, now))

    def note_hung(self, activity: DeviceActivity) -> None:
        """The verdict that this activity hangs; it is void as soon as another one begins."""
        self._hung = activity

    def is_found_hung(self, activity: DeviceActivity) -> bool:
        """Whether that is the verdict."""
        return self._hung is activity

    @contextmanager
    def computing(self, step_id: StepId, *, deadline: float | None) -> Iterator[None]:
        """The body computes a phase of this step; what it waits for in between is `during`."""
        self._enter(
            DeviceActivity(
                phase=DevicePhase.COMPUTE,
                since=self._clock.monotonic(),
                step_id=step_id,
                deadline=deadline,
            )
        )
        try:
            yield
        finally:
            self._enter(
                DeviceActivity(
                    phase=DevicePhase.IDLE, since=self._clock.monotonic(), step_id=step_id
                )
            )

    @contextmanager
    def during(self, phase: DevicePhase, *, waiting_on: Rank | None = None) -> Iterator[None]:
        """The body is in this phase; the phase around it then starts anew, with age 0."""
        around = self._activity
        self._enter(
            DeviceActivity(
                phase=phase,
                since=self._clock.monotonic(),
                step_id=around.step_id,
                waiting_on=waiting_on,
            )
        )
        try:
            yield
        finally:
            self._enter(replace(around, since=self._clock.monotonic()))

    def _enter(self, activity: DeviceActivity) -> None:
        with self._lock:
            before = self._activity
            self.seconds_by_phase[before.phase] += activity.since - before.since
            self._activity = activity
