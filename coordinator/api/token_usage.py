"""The tokens of one request over all its outputs, as clients count them."""

from coordinator.engine.generation import TextDelta


class TokenUsage:
    """Adds up the newest counts of each output; a prompt counts once, however many outputs it has."""

    def __init__(self, num_choices: int) -> None:
        """num_choices: outputs of each prompt."""
        self._num_choices = num_choices
        self._newest: dict[int, TextDelta] = {}

    def add(self, delta: TextDelta) -> None:
        """Take the counts of an output's newest delta."""
        self._newest[delta.index] = delta

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(delta.num_prompt_tokens for delta in self._first_choices())

    @property
    def cached_tokens(self) -> int:
        """Tokens of all prompts that their first output found in the prefix cache."""
        return sum(delta.num_cached_tokens for delta in self._first_choices())

    @property
    def completion_tokens(self) -> int:
        """Tokens of all outputs."""
        return sum(delta.num_generated_tokens for delta in self._newest.values())

    def _first_choices(self) -> list[TextDelta]:
        return [delta for index, delta in self._newest.items() if index % self._num_choices == 0]
