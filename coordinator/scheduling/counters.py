"""What a scheduler has done so far, as counts that only grow. Knows nothing of how they are shown."""


class ScheduleCounters:
    """Counts over all generations.

    num_prompt_tokens: of the requests admitted, each counted once; num_cached_tokens: those of them
    found in the prefix cache at the first admission.
    """

    __slots__ = (
        "num_cached_tokens",
        "num_generated_tokens",
        "num_preemptions",
        "num_prompt_tokens",
    )

    def __init__(self) -> None:
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_generated_tokens = 0
        self.num_preemptions = 0

    def note_prompt(self, *, num_tokens: int, num_cached: int) -> None:
        """Count one prompt."""
        self.num_prompt_tokens += num_tokens
        self.num_cached_tokens += num_cached
