"""Constraints become matchers, or errors that say what is wrong with them."""

import json

import numpy as np
import pytest

from common.errors import InvalidRequest
from coordinator.engine.limits import MAX_GRAMMAR_CHARACTERS
from coordinator.structured.compiler import MOST_KEPT, GrammarCompiler
from coordinator.structured.constraint import Constraint, ConstraintKind
from coordinator.structured.matcher import Matcher
from tests.fakes.byte_tokenizer import EOS_ID, VOCAB_SIZE, byte_tokenizer

KIND = ConstraintKind


def compiler(**options: float) -> GrammarCompiler:
    """A compiler for tokens that are bytes."""
    return GrammarCompiler(
        byte_tokenizer().to_str, vocab_size=VOCAB_SIZE, eos_token_ids=[EOS_ID], **options
    )


async def matcher(kind: ConstraintKind, text: str = "", choices: tuple[str, ...] = ()) -> Matcher:
    """A fresh matcher of a constraint."""
    return (await compiler().compile(Constraint(kind=kind, text=text, choices=choices)))()


def allowed(grammar: Matcher) -> set[int]:
    """The tokens that may come next."""
    (mask,) = grammar.masks_along()
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def accepts(grammar: Matcher, text: str) -> bool:
    """Whether the text is a whole output: each byte is allowed, and an end after the last one."""
    for byte in text.encode():
        if byte not in allowed(grammar):
            return False
        assert grammar.advance(byte)
    return grammar.is_over or EOS_ID in allowed(grammar)


SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"size": {"enum": ["s", "größer"]}, "count": {"type": "integer"}},
        "required": ["size", "count"],
        "additionalProperties": False,
    }
)


@pytest.mark.parametrize(
    ("kind", "text", "choices", "good", "bad"),
    [
        (KIND.JSON_SCHEMA, SCHEMA, (), '{"size": "größer", "count": 12}', '{"size": "m"'),
        (KIND.JSON_OBJECT, "", (), '{"a": [1, {"b": null}]}', "[1]"),
        (KIND.REGEX, "[ab]+x", (), "abax", "ax "),
        (KIND.GRAMMAR, 'start: "a" | "b" start', (), "bba", "bc"),
        (KIND.GRAMMAR, 'root ::= "yes" | "no"', (), "no", "never"),
        (KIND.CHOICE, "", ('a "b"', "c\\d|e"), 'a "b"', "c"),
    ],
)
async def test_grammars_allow_what_they_say(
    kind: ConstraintKind, text: str, choices: tuple[str, ...], good: str, bad: str
) -> None:
    """Every kind, with quotes, backslashes and characters of several bytes."""
    assert accepts(await matcher(kind, text, choices), good)
    assert not accepts(await matcher(kind, text, choices), bad)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (KIND.JSON_SCHEMA, '{"type": "nothing"}', "json_schema is not valid: Invalid type"),
        (KIND.JSON_SCHEMA, '{"enum": []}', "json_schema is not valid: Unsatisfiable"),
        (KIND.JSON_SCHEMA, '{"$ref": "#/gone"}', "json_schema is not valid: Pointer"),
        (KIND.REGEX, "(a", "regex is not valid: .*unclosed group"),
        (KIND.GRAMMAR, "start: gone", "grammar is not valid: .*unknown name"),
    ],
)
async def test_what_cannot_be_compiled_says_why(
    kind: ConstraintKind, text: str, message: str
) -> None:
    """The error names the field and holds the library's own reason, on one line."""
    with pytest.raises(InvalidRequest, match=message) as caught:
        await matcher(kind, text)
    assert caught.value.param == kind.value
    assert "\n" not in str(caught.value)


async def test_compiling_has_a_time_limit() -> None:
    """What takes longer is the request's fault, and told as such."""
    with pytest.raises(InvalidRequest, match="regex takes more than 0 s to compile"):
        await compiler(seconds=0.0).compile(Constraint(kind=KIND.REGEX, text="a*"))


async def test_matchers_of_one_grammar_do_not_know_each_other() -> None:
    """Each output begins at the beginning, also when the grammar is an old one."""
    grammars = compiler()
    constraint = Constraint(kind=KIND.REGEX, text="ab")
    first = (await grammars.compile(constraint))()
    assert first.advance(ord("a"))
    second = (await grammars.compile(constraint))()
    assert allowed(second) == {ord("a")}
    assert allowed(first) == {ord("b")}


async def test_token_that_is_not_allowed_is_not_taken() -> None:
    """It is for the caller to say what that means."""
    assert not (await matcher(KIND.REGEX, "ab")).advance(ord("x"))


async def test_masks_follow_drafts_as_far_as_they_are_allowed() -> None:
    """One mask for the output and one behind each allowed draft; then all is as before."""
    grammar = await matcher(KIND.REGEX, "abc")
    masks = grammar.masks_along([ord("a"), ord("b"), ord("x"), ord("c")])
    assert len(masks) == 3
    bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")
    assert [np.flatnonzero(row).tolist() for row in bits] == [[ord("a")], [ord("b")], [ord("c")]]
    assert allowed(grammar) == {ord("a")}


async def test_an_end_is_all_that_is_left() -> None:
    """Once nothing can follow, an output is over, whatever its end token."""
    grammar = await matcher(KIND.REGEX, "a")
    assert not grammar.is_over
    assert grammar.advance(ord("a"))
    assert grammar.is_over


async def test_the_cache_is_bounded() -> None:
    """The grammar that was asked for longest ago is compiled anew; the newest is not."""
    grammars = compiler()
    for number in range(MOST_KEPT + 1):
        await grammars.compile(Constraint(kind=KIND.REGEX, text=f"a{{{number + 1}}}"))
    assert grammars.num_kept == MOST_KEPT


def chain(link: str, end: str, *, joint: str) -> str:
    """As many links as the limits let in; {0} is a link's number, {1} that of the next one."""
    links: list[str] = []
    while len(joint.join([*links, link, end])) < MAX_GRAMMAR_CHARACTERS - 64:
        links.append(link.format(len(links), len(links) + 1))
    return joint.join([*links, end.format(len(links))])


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (KIND.GRAMMAR, "start: r0\n" + chain("r{0}:r{1}", 'r{0}:"x"', joint="\n")),
        (KIND.GRAMMAR, "start: R0\n" + chain('R{0}:~(R{1} "x")', 'R{0}:"x"', joint="\n")),
        (
            KIND.JSON_SCHEMA,
            '{"$ref":"#/$defs/0","$defs":{'
            + chain('"{0}":{{"$ref":"#/$defs/{1}"}}', '"{0}":{{"const":1}}', joint=",")
            + "}}",
        ),
    ],
    ids=["rules", "terminals", "references"],
)
async def test_the_longest_chains_do_not_end_the_process(kind: ConstraintKind, text: str) -> None:
    """The library recurses along a chain; on a usual stack each of these is a segmentation fault."""
    grammar = await matcher(kind, text)
    assert allowed(grammar)
    assert not grammar.is_over
