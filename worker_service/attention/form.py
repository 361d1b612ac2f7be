"""What a layer's attention is beside causal."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """window: a query sees so many tokens, its own the last, 0: all; soft_cap bounds scores, 0: nothing."""

    window: int = 0
    soft_cap: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether it is causal attention and nothing more."""
        return not self.window and not self.soft_cap


PLAIN = AttentionForm()
