"""Guides: each begins with an example and what it prints, no line of it is cut off, and no sentence is long."""

import re
from pathlib import Path

import pytest
from helpers import guides

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


FOLDERS = ("docs", "benchmarks", "configs", "model_converters", "plugins", "examples")
EVERY = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])


def test_no_sentence_has_more_than_25_words():
    long = [
        f"{page.relative_to(ROOT)}: {len(words)} words: {sentence}"
        for page in EVERY
        if page.name != "CHANGELOG.md"
        for sentence in sentences(page)
        if len(words := re.findall(r"\w[\w'.,/%*^-]*", sentence)) > 25
    ]
    assert not long, "\n".join(long)


GUIDES = [page for page in PAGES if guides.BLOCK.search(page.read_text(encoding="utf-8"))]
WITHOUT = {
    *("index", "commands", "functions", "versions", "names"),  # lists
    *("faq", "differences", "evidence", "inside", "method-table", "performance", "gallery"),  # explanations and tables
    *("python", "own-parts", "data", "regions"),  # begin with code, or with data that are not here
    *("methods", "protocols", "tests", "weights"),  # extend it
}
LONG = {"correspondence", "masked-pretraining", "depth", "discovery", "segmentation", "tracking", "visbench"}


def test_a_guide_begins_with_an_example_that_fits_the_page():
    wrong = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        first = re.search(r"^```\w*\n(.*?)^```", text, re.M | re.S)
        if page.stem not in WITHOUT or page in GUIDES:
            begins = re.match(r"# .+\n\n```console\n", text) or (page.stem == "README" and page in GUIDES)
            wrong += [] if begins else [f"{page.name} begins without a block of console"]
        wide = [line for line in (first[1] if first else "").splitlines() if len(line) > guides.WIDTH]
        wrong += [f"{page.name} is cut off at {guides.WIDTH} characters: {line}" for line in wide]
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def files(shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("guides") / "files"
    folder.mkdir()
    return guides.write_files(folder, shared("simclr") / "a" / "weights.torch", tested=10)


def beginnings(lines):
    """Return the first words of the first lines of an output: figures differ between networks and machines."""
    return [re.sub(r"\d+", "0", line.split()[0]) for line in lines if line.strip() and not line.startswith(" ")][:2]


@pytest.mark.parametrize(
    "page", [pytest.param(p, id=p.stem, marks=[pytest.mark.long] if p.stem in LONG else []) for p in GUIDES]
)
def test_commands_print_what_the_guide_shows(page, files, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("SSLBENCH_CACHE", str(files.parent / "cache"))  # floors of the same pictures, computed once
    with guides.folder_of(files, tmp_path):
        for command, output in guides.consoles(page):
            shown = beginnings(output.removesuffix("...\n").splitlines())
            printed = beginnings(guides.printed(command))
            assert printed[: len(shown)] == shown, f"{page.name} shows another output of {command}: {printed}"
