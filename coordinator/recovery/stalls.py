"""Which rank keeps its group waiting: judged from what the ranks say and the steps they were sent.

Pure: times are arguments, in seconds of one monotonic clock. The rank blamed is one whose event loop
is silent or that is too long in COMPUTE, never one that waits for another.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from common.worker_api import DevicePhase, Rank, WorkerActivity

MAX_QUIET = 10.0
"""Seconds a step may be on its way without any rank computing: longer than tensors travel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """The rank to blame and why, in words that follow its name."""

    rank: Rank
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What a rank said last, and when that was heard."""

    activity: WorkerActivity | None
    heard_at: float

    def seconds_computing(self, now: float) -> float:
        """Age of the COMPUTE phase; 0 in every other phase."""
        if self.activity is None or self.activity.phase is not DevicePhase.COMPUTE:
            return 0.0
        return self.activity.seconds_in_phase + now - self.heard_at

    def busy_until(self, now: float) -> float:
        """When it last worked, as far as is known: now while it computes or compiles."""
        if self.activity is None or self.activity.phase in (
            DevicePhase.COMPUTE,
            DevicePhase.COMPILING,
        ):
            return now
        return self.heard_at - self.activity.seconds_in_phase


@dataclass(slots=True, kw_only=True)
class _SentStep:
    """A step without its answer; only the oldest one's time runs, the others queue behind it."""

    deadlines: Mapping[Rank, float]
    running_since: float

    @property
    def overdue_at(self) -> float:
        """When every stage, one after the other, has had its time."""
        return self.running_since + sum(self.deadlines.values())


class StallDetector:
    """The evidence of one generation. `max_silence`: seconds an event loop may say nothing."""

    def __init__(self, ranks: Iterable[Rank], *, now: float, max_silence: float) -> None:
        self._max_silence = max_silence
        self._told = {rank: _Told(activity=None, heard_at=now) for rank in ranks}
        # In the order of sending, which is the order of the answers.
        self._sent: dict[int, _SentStep] = {}

    def activity(self, rank: Rank) -> WorkerActivity | None:
        """What a rank said last, None before it said anything."""
        return self._told[rank].activity

    def note_activity(self, rank: Rank, activity: WorkerActivity, *, now: float) -> None:
        """Take what a rank says."""
        self._told[rank] = _Told(activity=activity, heard_at=now)

    def note_sent(self, step: int, deadlines: Mapping[Rank, float], *, now: float) -> None:
        """A step has gone to all ranks; deadlines are seconds of compute."""
        self._sent[step] = _SentStep(deadlines=deadlines, running_since=now)

    def note_answered(self, step: int, *, now: float) -> None:
        """All ranks have answered the step; the time of the one behind it begins."""
        self._sent.pop(step, None)
        oldest = self._oldest()
        if oldest is not None:
            oldest.running_since = max(oldest.running_since, now)

    def excuse(self, seconds: float, *, now: float) -> None:
        """For so long until now nobody listened here: it is no rank's silence nor slowness."""
        for rank, told in self._told.items():
            # The next word of each rank may still be on its way; what it said then is outdated.
            self._told[rank] = _Told(activity=told.activity, heard_at=now)
        for step in self._sent.values():
            step.running_since += seconds

    def find(self, *, now: float) -> Stall | None:
        """The rank to blame, None while all is well."""
        return self._silent(now) or self._hung(now) or self._overdue(now)

    def _oldest(self) -> _SentStep | None:
        return next(iter(self._sent.values()), None)

    def _silent(self, now: float) -> Stall | None:
        rank, told = min(self._told.items(), key=lambda item: item[1].heard_at)
        silence = now - told.heard_at
        if silence <= self._max_silence:
            return None
        return Stall(rank=rank, cause=f"its event loop is silent for {silence:.1f} s")

    def _hung(self, now: float) -> Stall | None:
        """The longest computing rank of those whose own watchdog says that they hang."""
        hung = [
            rank
            for rank, told in self._told.items()
            if told.activity is not None and told.activity.is_hung
        ]
        return self._longest_computing(hung, now) if hung else None

    def _overdue(self, now: float) -> Stall | None:
        oldest = self._oldest()
        if oldest is None or (now <= oldest.overdue_at and not self._is_quiet(oldest, now)):
            return None
        computing = [rank for rank, told in self._told.items() if told.seconds_computing(now) > 0]
        if computing:
            return self._longest_computing(computing, now)
        number = next(iter(self._sent))
        age = now - oldest.running_since
        return Stall(
            rank=self._furthest_behind(),
            cause=f"step {number} is unanswered for {age:.1f} s and no rank computes it"
            + self._who_waits(),
        )

    def _is_quiet(self, oldest: _SentStep, now: float) -> bool:
        """Whether tensors must have been lost: no rank has worked for long, though a step is due."""
        busy_until = max(told.busy_until(now) for told in self._told.values())
        return now - max(busy_until, oldest.running_since) > MAX_QUIET

    def _who_waits(self) -> str:
        waits = [
            f"; {rank} waits for tensors of {told.activity.waiting_on}"
            for rank, told in self._told.items()
            if told.activity is not None and told.activity.waiting_on is not None
        ]
        return "".join(waits)

    def _longest_computing(self, ranks: Iterable[Rank], now: float) -> Stall:
        rank = max(ranks, key=lambda rank: self._told[rank].seconds_computing(now))
        told = self._told[rank]
        assert told.activity is not None, "a rank that said nothing is not known to compute"
        step, seconds = told.activity.step, told.seconds_computing(now)
        sent = self._sent.get(step)
        limit = f", its deadline is {sent.deadlines[rank]:.1f} s" if sent is not None else ""
        return Stall(rank=rank, cause=f"in COMPUTE of step {step} for {seconds:.1f} s{limit}")

    def _furthest_behind(self) -> Rank:
        """Of the ranks that wait for nobody the one with the lowest step; the first one if all wait."""

        def progress(rank: Rank) -> tuple[bool, int]:
            activity = self._told[rank].activity
            if activity is None:
                return False, 0
            return activity.waiting_on is not None, activity.step

        return min(self._told, key=progress)
