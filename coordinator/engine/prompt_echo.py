"""The prompt of an output as its client wants it back: text, tokens and their log-probabilities."""

from collections.abc import Callable

from common.requests import TokenLogprobs
from coordinator.engine.generation import PositionLogprobs, PromptText, TokenLogprob
from coordinator.text.detokenizer import Detokenizer


class PromptEcho:
    """Spells one prompt; used up by the first delta of its output."""

    def __init__(
        self,
        token_ids: tuple[int, ...],
        *,
        detokenizer: Detokenizer,
        token_bytes: Callable[[int], bytes],
        has_text: bool,
    ) -> None:
        """has_text: the text is wanted too; take a fresh detokenizer."""
        self._token_ids = token_ids
        self._detokenizer = detokenizer
        self._token_bytes = token_bytes
        self._has_text = has_text

    def spell(self, logprobs: tuple[TokenLogprobs, ...] | None) -> PromptText:
        """The prompt with the log-probabilities of its tokens but the first, if there are any."""
        text, offsets = self._text()
        positions = None
        if logprobs is not None:
            positions = tuple(
                PositionLogprobs(
                    chosen=self._token(each.token_id, each.logprob),
                    rank=each.rank,
                    top=tuple(self._token(*top) for top in each.top),
                    text_offset=offset,
                )
                for each, offset in zip(logprobs, offsets[1:], strict=True)
            )
        return PromptText(
            text=text if self._has_text else "",
            first_token=self._token(self._token_ids[0], 0.0),
            logprobs=positions,
        )

    def _text(self) -> tuple[str, list[int]]:
        """All of it, and where the text of each token begins."""
        pieces: list[str] = []
        offsets: list[int] = []
        num_characters = 0
        for token_id in self._token_ids:
            offsets.append(num_characters)
            pieces.append(self._detokenizer.push(token_id))
            num_characters += len(pieces[-1])
        pieces.append(self._detokenizer.flush())
        return "".join(pieces), offsets

    def _token(self, token_id: int, logprob: float) -> TokenLogprob:
        return TokenLogprob(
            token_id=token_id, token_bytes=self._token_bytes(token_id), logprob=logprob
        )
