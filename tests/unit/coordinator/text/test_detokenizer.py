"""Incremental text equals the decoding of all tokens at once."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as TokenizerFile

from coordinator.text.detokenizer import PieceDetokenizer
from coordinator.text.tokenizer import Tokenizer
from tests.fakes.byte_tokenizer import EOS_ID, VOCAB_SIZE, byte_tokenizer

BYTE_LEVEL = Tokenizer(byte_tokenizer(), template=None)


def sentencepiece_tokenizer() -> Tokenizer:
    """A vocabulary of marked pieces with single-byte fallback, as Llama 2 has it."""
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += ["<unk>", "<s>", "</s>", "▁", "▁a", "a", "▁b", "é", "▁▁", "<0x", "😀"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    file = TokenizerFile(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    file.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    file.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "</s>")])
    return Tokenizer(file, template=None)


PIECES = sentencepiece_tokenizer()


def streamed(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    """Texts returned token by token, the last one at the end."""
    detokenizer = tokenizer.detokenizer()
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


@given(st.lists(st.integers(0, VOCAB_SIZE + 4)))
def test_random_bytes_join_to_the_whole_decoding(token_ids: list[int]):
    """Any bytes, specials and unknown ids: the pieces join to what decoding everything gives."""
    assert "".join(streamed(BYTE_LEVEL, token_ids)) == BYTE_LEVEL.decode(token_ids)


@given(st.text(st.characters(codec="utf-8")), st.integers(0, 3))
def test_text_survives_byte_by_byte(text: str, cut: int):
    """Text of any script is returned whole; one cut inside a character ends in U+FFFD."""
    token_ids = list(text.encode())[: max(0, len(text.encode()) - cut)]
    assert "".join(streamed(BYTE_LEVEL, token_ids)) == BYTE_LEVEL.decode(token_ids)
    if not cut:
        assert "".join(streamed(BYTE_LEVEL, token_ids)) == text


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from([0x41, 0xC3, 0xA9, 0xF0, 0x9F, 0x98, 0x80, 0x20, *range(256, 268)]))
)
def test_pieces_with_byte_fallback_join_to_the_whole_decoding(token_ids: list[int]):
    """Marked spaces and runs of byte tokens decode in pieces as they do at once."""
    assert "".join(streamed(PIECES, token_ids)) == PIECES.decode(token_ids)


def test_a_split_character_comes_with_its_last_byte():
    """Nothing is returned for the first three bytes of an emoji, the emoji for the fourth."""
    assert streamed(BYTE_LEVEL, list("😀!".encode())) == ["", "", "", "😀", "!", ""]


def test_held_bytes_end_as_one_replacement_character():
    """An output that ends inside a character ends in U+FFFD."""
    assert streamed(BYTE_LEVEL, list("a😀".encode())[:3]) == ["a", "", "", "\ufffd"]


def test_special_tokens_are_not_part_of_the_text():
    """A special token inside a character neither appears nor breaks the character."""
    first, *rest = "é".encode()
    assert "".join(streamed(BYTE_LEVEL, [first, EOS_ID, *rest])) == "é"


@given(st.lists(st.integers(0, VOCAB_SIZE + 4)))
def test_special_tokens_are_text_where_they_are_wanted(token_ids: list[int]):
    """The pieces join to what decoding everything gives with them, in both kinds of vocabularies."""
    for tokenizer in (BYTE_LEVEL, PIECES):
        detokenizer = tokenizer.detokenizer(skip_special_tokens=False)
        texts = [*map(detokenizer.push, token_ids), detokenizer.flush()]
        assert "".join(texts) == tokenizer.decode(token_ids, skip_special_tokens=False)


def test_cost_is_linear_in_the_tokens():
    """Every token, byte tokens too, is decoded at most three times however long the output is."""
    decoded: list[int] = []

    def count(token_ids: Sequence[int]) -> str:
        decoded.append(len(token_ids))
        return PIECES.decode(token_ids)

    detokenizer = PieceDetokenizer(
        count, is_text=lambda _: True, is_byte=lambda token_id: token_id < 256
    )
    token_ids = [*[0xF0] * 300, *[0x41, 260] * 300]
    for token_id in token_ids:
        detokenizer.push(token_id)
    detokenizer.flush()
    assert sum(decoded) <= 3 * len(token_ids)
