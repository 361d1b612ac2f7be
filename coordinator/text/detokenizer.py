"""Tokens -> text, one token at a time: what was returned so far is never taken back.

The pieces, joined, equal the decoding of all tokens at once without special tokens; a character
split over tokens is returned with its last one, and what stays incomplete becomes U+FFFD at the
end. Cost is linear in the number of tokens.
"""

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol


class Detokenizer(Protocol):
    """The text of one output as it grows."""

    def push(self, token_id: int) -> str:
        """Add a token and return the text that is now certain, often that token's."""
        ...

    def flush(self) -> str:
        """Return what was held back; no token follows."""
        ...


class ByteDetokenizer:
    """For byte-level vocabularies, where the text is the tokens' bytes read as UTF-8."""

    def __init__(
        self, token_bytes: Callable[[int], bytes], *, is_text: Callable[[int], bool]
    ) -> None:
        """token_bytes gives the bytes of a token; is_text is false for tokens left out of the text."""
        self._token_bytes = token_bytes
        self._is_text = is_text
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Add a token and return the characters it completes."""
        if not self._is_text(token_id):
            return ""
        return self._decoder.decode(self._token_bytes(token_id))

    def flush(self) -> str:
        """Return U+FFFD for an incomplete character, if there is one."""
        return self._decoder.decode(b"", final=True)


class PieceDetokenizer:
    """For every other vocabulary: decodes the newest tokens behind those returned just before them.

    The tokens before give the decoder the context that decides about spaces. Byte tokens are held
    until another kind follows, because decoders judge a whole run of them at once.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        *,
        is_text: Callable[[int], bool],
        is_byte: Callable[[int], bool],
    ) -> None:
        """is_text is false for tokens that decode drops, is_byte true for those of a single byte."""
        self._decode = decode
        self._is_text = is_text
        self._is_byte = is_byte
        self._context: list[int] = []
        self._context_text = ""
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        """Add a token and return the text up to it, unless it is one byte."""
        if not self._is_text(token_id):
            return ""
        self._held.append(token_id)
        return "" if self._is_byte(token_id) else self._release()

    def flush(self) -> str:
        """Return the text of the held tokens."""
        return self._release() if self._held else ""

    def _release(self) -> str:
        text = self._decode([*self._context, *self._held])
        added = text[len(self._context_text) :]
        self._context, self._held = self._held, []
        self._context_text = self._decode(self._context)
        return added
