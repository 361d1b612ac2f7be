"""What single tokens of a `tokenizers` file stand for: bytes, special tokens, kinds of decoders."""

import json
import re
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer as TokenizerFile

BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
SPACE_MARK = "\u2581"
CACHED_TOKENS = 1 << 16


class Vocabulary:
    """Looks up tokens by id; ids the file does not know stand for nothing."""

    def __init__(self, file: TokenizerFile) -> None:
        """Read the added tokens and the decoder of a loaded file."""
        added = file.get_added_tokens_decoder()
        self._file = file
        self._special_ids = frozenset(
            token_id for token_id, token in added.items() if token.special
        )
        self._plain_ids = frozenset(added)
        self._decoder_kinds = _decoder_kinds(file)
        self._cached_bytes = lru_cache(CACHED_TOKENS)(self._read_bytes)
        self.max_token_characters = max(map(len, file.get_vocab()))
        """Characters of the longest token, so the most of a text that one token takes."""

    @property
    def is_byte_level(self) -> bool:
        """Whether the text of an output is its tokens' bytes read as UTF-8."""
        return "ByteLevel" in self._decoder_kinds

    def is_text(self, token_id: int) -> bool:
        """Whether the token is part of the text: known, and not special."""
        return token_id not in self._special_ids and self.is_known(token_id)

    def is_known(self, token_id: int) -> bool:
        """Whether the token stands for anything."""
        return self._file.id_to_token(token_id) is not None

    def is_byte(self, token_id: int) -> bool:
        """Whether the token stands for a single byte beside pieces of text."""
        if "ByteFallback" not in self._decoder_kinds:
            return False
        return BYTE_PIECE.fullmatch(self._file.id_to_token(token_id) or "") is not None

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes the token stands for on its own; a special token stands for its name."""
        return self._cached_bytes(token_id)

    def _read_bytes(self, token_id: int) -> bytes:
        piece = self._file.id_to_token(token_id) or ""
        if self.is_byte_level and all(character in BYTE_BY_CHARACTER for character in piece):
            return bytes(BYTE_BY_CHARACTER[character] for character in piece)
        if self.is_byte(token_id):
            return bytes.fromhex(piece[3:5])
        if token_id in self._plain_ids or self.is_byte_level:
            return piece.encode()
        return piece.replace(SPACE_MARK, " ").encode()


def _decoder_kinds(file: TokenizerFile) -> frozenset[str]:
    """Type names of the decoder and of those inside it, which the library tells only serialized."""
    if file.decoder is None:
        return frozenset()
    decoder: dict[str, Any] = json.loads(file.decoder.__getstate__())
    return frozenset(step["type"] for step in decoder.get("decoders", [decoder]))


def _byte_by_character() -> dict[str, int]:
    """The byte each character of a byte-level vocabulary stands for, [256].

    Printable Latin-1 characters stand for themselves, those from 256 up for the other bytes in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }


BYTE_BY_CHARACTER = _byte_by_character()
