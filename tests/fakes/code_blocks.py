"""The fenced code blocks of Markdown documents, and what their first lines say of running them.

Behind the language stands how a block is run:

  sh run            must succeed
  sh fails          must fail
  sh background     goes on running; the output block behind it says what it prints when it is ready
  sh restart        the same, after all that runs in the background was ended
  sh syntax: WHY    is only parsed, for this reason
  text output       what the block before it prints; "..." stands for anything

`on HOST` behind run, fails, background or restart names the machine. Python blocks have run and
syntax; TOML blocks have `settings` and YAML blocks `kustomization`, which say what they are. Diagrams,
and text without a word behind it, are not run. Knows nothing of processes.
"""

import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^( *)```(.*)$")
MARKER = re.compile(
    r"(?P<mode>run|fails|background|restart)(?: on (?P<host>[\w-]+))?|syntax: (?P<reason>.{10,})"
)
NOT_RUN = {"mermaid", "text"}
DOCUMENTED_FILES = {("text", "output"), ("toml", "settings"), ("yaml", "kustomization")}
THIS_MACHINE = ""

ANYTHING = {"\n...\n": r"(?s:.*?\n.*?)", "...": r"(?s:.*?)"}
"""What three dots of an output block stand for; on a line of their own, for a line's end at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeBlock:
    """One block; line is that of its fence, host is empty for the reader's own machine."""

    file: Path
    line: int
    language: str
    mode: str
    host: str
    text: str

    def __str__(self) -> str:
        return f"{self.file.name}:{self.line}"


def code_blocks(file: Path) -> list[CodeBlock]:
    """The blocks of a document in order, without those that nobody runs.

    Raises ValueError for a fence that does not say how its block is run.
    """
    blocks: list[CodeBlock] = []
    opened: tuple[int, str, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        fence = FENCE.match(line)
        if opened is None:
            opened = (number, fence[2], fence[1]) if fence else None
            lines = []
        elif fence and not fence[2]:
            start, info, indent = opened
            text = "\n".join(each.removeprefix(indent) for each in lines)
            if info.strip() not in NOT_RUN:
                blocks.append(_block(file, start, info, text=text + "\n"))
            opened = None
        else:
            lines.append(line)
    return blocks


def _block(file: Path, line: int, info: str, *, text: str) -> CodeBlock:
    language, _, marker = info.partition(" ")
    mode, host = _mode(language, marker)
    if not mode:
        raise ValueError(f"{file.name}:{line}: {info!r} does not say how the block is run")
    return CodeBlock(file=file, line=line, language=language, mode=mode, host=host, text=text)


def _mode(language: str, marker: str) -> tuple[str, str]:
    if (language, marker) in DOCUMENTED_FILES:
        return marker, THIS_MACHINE
    match = MARKER.fullmatch(marker)
    if language not in {"sh", "python"} or match is None:
        return "", THIS_MACHINE
    if match["reason"]:
        return "syntax", THIS_MACHINE
    if language == "python" and match["mode"] != "run":
        return "", THIS_MACHINE
    return match["mode"], match["host"] or THIS_MACHINE


def output_pattern(expected: str) -> re.Pattern[str]:
    """What a printed text is searched for: the lines of an output block."""
    pattern = re.escape(expected.strip())
    for dots, anything in ANYTHING.items():
        pattern = pattern.replace(re.escape(dots), anything)
    return re.compile(pattern)
