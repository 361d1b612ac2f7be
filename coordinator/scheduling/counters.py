"""What a scheduler has done so far, as counts that only grow. Knows nothing of how they are shown."""


class ScheduleCounters:
    """Counts over all generations.

    num_looked_up_tokens: prompt tokens asked for in the prefix cache, once a request, at its first
    admission; num_cached_tokens: those of them that stood there.
    """

    __slots__ = ("num_cached_tokens", "num_looked_up_tokens", "num_preemptions")

    def __init__(self) -> None:
        self.num_looked_up_tokens = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0

    @property
    def hit_ratio(self) -> float:
        """Share of the prompt tokens asked for that stood in the prefix cache; 0 before any."""
        if not self.num_looked_up_tokens:
            return 0.0
        return self.num_cached_tokens / self.num_looked_up_tokens

    def note_lookup(self, *, num_tokens: int, num_cached: int) -> None:
        """Count the look-up of one prompt."""
        self.num_looked_up_tokens += num_tokens
        self.num_cached_tokens += num_cached
