"""What a scheduler has done so far, as counts that only grow. Knows nothing of how they are shown."""


class ScheduleCounters:
    """Counts over all generations.

    num_prompt_tokens: of the requests admitted, each counted once; num_cached_tokens: those of them
    found in the prefix cache at the first admission. num_drafts: rows that checked draft tokens;
    num_draft_tokens: those they checked; num_accepted_tokens: those that were right, of which
    num_accepted_by_position tells how many stood first, second and so on.
    """

    __slots__ = (
        "num_accepted_by_position",
        "num_accepted_tokens",
        "num_cached_tokens",
        "num_draft_tokens",
        "num_drafts",
        "num_generated_tokens",
        "num_preemptions",
        "num_prompt_tokens",
    )

    def __init__(self) -> None:
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_generated_tokens = 0
        self.num_preemptions = 0
        self.num_drafts = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.num_accepted_by_position: list[int] = []

    def note_drafts(self, *, num_drafts: int, num_accepted: int) -> None:
        """Count the drafts of one row, of which the first num_accepted were right."""
        self.num_drafts += 1
        self.num_draft_tokens += num_drafts
        self.num_accepted_tokens += num_accepted
        by_position = self.num_accepted_by_position
        by_position += [0] * (num_drafts - len(by_position))
        for position in range(num_accepted):
            by_position[position] += 1

    def note_prompt(self, *, num_tokens: int, num_cached: int) -> None:
        """Count one prompt."""
        self.num_prompt_tokens += num_tokens
        self.num_cached_tokens += num_cached
