"""What one step may still take: tokens, and seats for sequences that are not running yet."""


class StepBudget:
    """The tokens and seats left while one step is put together."""

    def __init__(self, *, num_tokens: int, num_seats: int) -> None:
        self.num_tokens = num_tokens
        self.num_seats = num_seats

    def fit(self, wanted: int) -> int:
        """How many of the tokens wanted are left to spend."""
        return min(wanted, self.num_tokens)

    def take_seat(self) -> None:
        """Seat one sequence."""
        assert self.num_seats > 0, "a sequence is admitted without a seat"
        self.num_seats -= 1
