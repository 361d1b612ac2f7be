"""The text of one output: tokens are decoded one by one and checked for stop strings."""

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.text.detokenizer import Detokenizer
from coordinator.text.stop_strings import StopStrings


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPiece:
    """What some tokens add: text to append and, per token used, where its text begins.

    offsets: characters of decoded text before each token, [tokens used]; fewer than were given when
    a stop string was complete, which is stop_string then.
    """

    text: str
    offsets: tuple[int, ...] = ()
    stop_string: str | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return self.stop_string is not None


class OutputText:
    """Decodes the tokens of one output and ends it at a stop string."""

    def __init__(
        self, detokenizer: Detokenizer, stop: Sequence[str], *, min_tokens: int = 0
    ) -> None:
        """Take a fresh detokenizer and the stop strings, which the first min_tokens tokens do not end."""
        self._detokenizer = detokenizer
        self._stop_strings = StopStrings(stop)
        self._num_characters = 0
        self._num_exempt = min_tokens

    def push(self, token_ids: Sequence[int], *, hides_last: bool = False) -> TextPiece:
        """Add tokens, up to the one that completes a stop string; a hidden one adds no text."""
        texts: list[str] = []
        offsets: list[int] = []
        num_shown = len(token_ids) - hides_last
        for token_id in token_ids[:num_shown]:
            offsets.append(self._num_characters)
            texts.append(self._push(token_id))
            if self._stop_strings.is_stopped:
                return self._piece("".join(texts), tuple(offsets))
        offsets += [self._num_characters] * (len(token_ids) - num_shown)
        return self._piece("".join(texts), tuple(offsets))

    def flush(self) -> TextPiece:
        """End the output: return what was held back, unless it completes a stop string."""
        text = self._append(self._detokenizer.flush())
        return self._piece(text + self._stop_strings.flush(), ())

    def _push(self, token_id: int) -> str:
        decoded = self._detokenizer.push(token_id)
        if not self._num_exempt:
            return self._append(decoded)
        self._num_exempt -= 1
        self._num_characters += len(decoded)
        return decoded

    def _append(self, decoded: str) -> str:
        self._num_characters += len(decoded)
        return self._stop_strings.push(decoded)

    def _piece(self, text: str, offsets: tuple[int, ...]) -> TextPiece:
        return TextPiece(text=text, offsets=offsets, stop_string=self._stop_strings.matched)
