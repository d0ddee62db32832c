"""Guides: each begins with an example and what it prints, no line of it is cut off, and no sentence is long."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LITERAL = re.compile(r"`[^`]*`|\$[^$\n]+\$")
FENCED = re.compile(r"^```.*?^```$|^\$\$.*?^\$\$$", re.M | re.S)


def sentences(page):
    """Yield the sentences of prose, of lists and of tables; code and formulas count as a word each."""
    text = FENCED.sub("\n\n", page.read_text(encoding="utf-8"))
    text = LITERAL.sub("x", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text))
    for line in re.findall(r"^\|.*$", text, re.M):
        for cell in line.split("|"):
            yield from re.split(r"(?<=[.:;!?])\)?\s+", cell)
    text = re.sub(r"^(\||#).*$", "\n\n", text, flags=re.M)
    for paragraph in re.split(r"\n\s*\n|\n\s*(?=(?:[-*]|\d+\.) )", text):
        yield from re.split(r"(?<=[.:!?])[)*]*\s+", " ".join(paragraph.split()))


def test_no_sentence_has_more_than_25_words():
    long = [
        f"{page.relative_to(ROOT)}: {len(words)} words: {sentence}"
        for page in PAGES
        for sentence in sentences(page)
        if len(words := re.findall(r"\w[\w'.,/%*^-]*", sentence)) > 25
    ]
    assert not long, "\n".join(long)
