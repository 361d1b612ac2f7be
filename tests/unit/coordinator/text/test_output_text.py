"""Tokens of an output become text, and a stop string ends it."""

from coordinator.text.output_text import OutputText
from coordinator.text.tokenizer import Tokenizer
from tests.fakes.byte_tokenizer import byte_tokenizer


def output_text(*stop: str, min_tokens: int = 0) -> OutputText:
    """The text of an output whose tokens are bytes."""
    detokenizer = Tokenizer(byte_tokenizer(), template=None).detokenizer()
    return OutputText(detokenizer, stop, min_tokens=min_tokens)


def test_tokens_are_used_up_to_a_stop_string():
    """The text ends before it; the token that completes it is the last one used."""
    piece = output_text("ND").push(list(b"one END two"))
    assert (piece.text, piece.stop_string, piece.offsets) == ("one E", "ND", tuple(range(7)))


def test_a_hidden_token_adds_no_text():
    """It is used and stands where the text ends."""
    piece = output_text().push(list(b"abc"), hides_last=True)
    assert (piece.text, piece.offsets) == ("ab", (0, 1, 2))


def test_the_first_min_tokens_hold_no_stop_string():
    """Neither whole nor in part; behind them it is looked for."""
    text = output_text("ND", min_tokens=6)
    assert text.push(list(b"ND, ENDing")).text == "ND, ENDing"
    ended = text.push(list(b" eND"))
    assert (ended.text, ended.stop_string) == (" e", "ND")
    assert ended.offsets == (10, 11, 12, 13)
