"""Every code block of the documents is run, or parsed where it cannot be, and prints what is written there."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.code_blocks import code_blocks
from tests.fakes.document_reader import Background, DocumentReader, shared_background

ROOT = Path(__file__).parents[2]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
QUICKSTART = ROOT / "docs" / "quickstart.md"


@pytest.fixture(scope="module")
def first_server(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    """What the quickstart starts first, with the bundled model; other documents start the same."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / ".venv").symlink_to(sys.prefix)
    begin = next(block for block in code_blocks(QUICKSTART) if block.mode == "background")
    server = shared_background(begin, folder)
    yield server
    server.end()


@pytest.mark.model
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_code_blocks_do_what_the_document_says(
    document: Path, tmp_path: Path, first_server: Background
):
    """Who does what the document says sees what it says."""
    with DocumentReader(tmp_path, shared=first_server) as reader:
        for block in code_blocks(document):
            reader.read(block)
