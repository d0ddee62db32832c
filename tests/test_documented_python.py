"""Python in the guides: the blocks of a page run one after the other."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [page for page in sorted(DOCS.glob("*.md")) if page.name == "python.md"]


def test_there_is_a_page():
    assert PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    assert blocks
    namespace = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), namespace)  # noqa: S102 - our own pages
    assert not list(tmp_path.iterdir())
    if page.stem == "python":
        assert namespace["features"].shape[0] == 1797 and 90 < namespace["result"].metrics["top1"].value < 100
