"""Documents whose code blocks do not say how they are run, or do not do what is written there, fail."""

from pathlib import Path

import pytest

from tests.fakes.code_blocks import code_blocks, output_pattern
from tests.fakes.document_reader import DocumentReader

FENCE = "```"


def document(folder: Path, *blocks: tuple[str, str]) -> Path:
    """A document of these blocks: what stands behind the fence, and the text."""
    file = folder / "document.md"
    file.write_text("".join(f"{FENCE}{info}\n{text}\n{FENCE}\n\n" for info, text in blocks))
    return file


def read(folder: Path, *blocks: tuple[str, str]) -> None:
    """Read a document of these blocks."""
    with DocumentReader(folder) as reader:
        for block in code_blocks(document(folder, *blocks)):
            reader.read(block)


@pytest.mark.parametrize(
    "info", ["", "sh", "sh maybe", "sh syntax: why", "python fails", "json run", "toml", "yaml"]
)
def test_a_block_without_a_known_way_to_run_is_refused(tmp_path: Path, info: str):
    """Every fence says how its block is run, and a reason not to is more than a word."""
    with pytest.raises(ValueError, match=r"document\.md:1: .* does not say"):
        code_blocks(document(tmp_path, (info, "true")))


def test_diagrams_and_plain_text_are_not_run(tmp_path: Path):
    """What is no code is left alone."""
    assert code_blocks(document(tmp_path, ("mermaid", "flowchart LR"), ("text", "x"))) == []


def test_blocks_are_run_in_order_in_one_folder(tmp_path: Path):
    """What a block leaves the next one finds; commands that must fail do."""
    read(
        tmp_path,
        ("sh run", "echo one > file"),
        ("sh run", "cat file; echo two"),
        ("text output", "one\ntwo"),
        ("sh fails", "cat file; exit 3"),
        ("text output", "one"),
        ("python run", "print(open('file').read())"),
        ("text output", "one"),
    )


@pytest.mark.parametrize(
    "blocks",
    [
        [("sh run", "exit 1")],
        [("sh run", "false; true")],
        [("sh fails", "true")],
        [("python run", "1 / 0")],
        [("sh run", "echo one"), ("text output", "two")],
        [("sh run", "echo one; echo x; echo two"), ("text output", "one\ntwo")],
        [("sh background", "true"), ("text output", "ready")],
        [("sh syntax: it cannot run here", "if true")],
        [("sh syntax: it cannot run here", "stepwire fly")],
    ],
    ids=lambda blocks: " ".join(info for info, _ in blocks),
)
def test_what_is_not_as_it_is_written_fails(tmp_path: Path, blocks: list[tuple[str, str]]):
    """A wrong exit code, another output and words that are no command are noticed."""
    with pytest.raises(AssertionError):
        read(tmp_path, *blocks)


@pytest.mark.parametrize(
    ("expected", "printed", "fits"),
    [
        ("a ... c", "a b c", True),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a\n...\nd", "a\nb d", True),
        ("a\n...\nd", "a d", False),
        ("a.c", "abc", False),
        ("b", "a\nb\nc", True),
        ("a ... c", "c b a", False),
    ],
)
def test_three_dots_stand_for_anything(expected: str, printed: str, *, fits: bool):
    """The rest of an output block is compared letter by letter, anywhere in what is printed."""
    assert (output_pattern(expected).search(printed) is not None) == fits


def test_what_runs_in_the_background_ends_with_the_reader(tmp_path: Path):
    """A background block is waited for, then ended; the next one of the same kind may begin anew."""
    script = (
        "echo $$ > pid; trap 'touch ended; exit 0' INT; echo ready; while :; do sleep 0.05; done"
    )
    read(
        tmp_path,
        ("sh background", script),
        ("text output", "ready"),
        ("sh run", 'kill -0 "$(cat pid)"'),
        ("sh restart", "test -e ended && echo anew; sleep 60"),
        ("text output", "anew"),
    )
