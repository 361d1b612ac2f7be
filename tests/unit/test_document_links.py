"""Documents lead to files and headings that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([\w-]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    """The names of its headings, as GitHub makes them."""
    headings = HEADING.findall(CODE.sub("", document.read_text()))
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_links_lead_somewhere(document: Path):
    """Each link without a host names a file of the tree and, behind #, one of its headings."""
    for path, anchor in LINK.findall(CODE.sub("", document.read_text())):
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{document.name} leads to {path}"
        assert not anchor or anchor in anchors(target), f"{document.name} leads to {path}#{anchor}"


def test_every_document_is_found():
    """README leads to each document in docs, by itself or through another one."""
    found, unread = set(), [ROOT / "README.md"]
    while unread:
        document = unread.pop()
        found.add(document)
        for path, _ in LINK.findall(document.read_text()):
            target = (document.parent / path).resolve()
            if target in DOCUMENTS and target not in found:
                unread.append(target)
    assert found == set(DOCUMENTS)
