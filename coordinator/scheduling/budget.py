"""What one step may still take: tokens, and seats for sequences that are not running yet."""


class StepBudget:
    """The tokens and seats left while one step is put together.

    most_of_prompt: most tokens of one prompt; None: any number.
    """

    def __init__(
        self, *, num_tokens: int, num_seats: int, most_of_prompt: int | None = None
    ) -> None:
        self.num_tokens = num_tokens
        self.num_seats = num_seats
        self._most_of_prompt = num_tokens if most_of_prompt is None else most_of_prompt

    def fit(self, wanted: int) -> int:
        """How many of a prompt's tokens that are wanted the step may take."""
        return min(wanted, self.num_tokens, self._most_of_prompt)

    def take_seat(self) -> None:
        """Seat one sequence."""
        assert self.num_seats > 0, "a sequence is admitted without a seat"
        self.num_seats -= 1
