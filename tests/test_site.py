"""The site: it builds without a warning, and every link of every page leads to a file and a heading."""

import re
import shutil
from pathlib import Path

import pytest

from sslbench.names import list_names

ROOT = Path(__file__).parents[1]
PAGES = sorted(page for page in ROOT.glob("*.md")) + sorted(
    page
    for folder in ("docs", "docs/extend", "benchmarks", "configs", "model_converters")
    for page in (ROOT / folder).glob("*.md")
)


def anchors(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(page):
    """Return the links of a page that lead to no file or to no heading of it."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in (link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


def test_every_link_leads_somewhere():
    assert len(PAGES) > 40
    assert [f"{page.relative_to(ROOT)}: {link}" for page in PAGES for link in dead_links(page)] == []


def test_every_guide_is_in_the_table_of_contents():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").splitlines()
    docs = ROOT / "docs"
    pages = [page for page in docs.rglob("*.md") if page.parent.name != "settings"]
    guides = {page.relative_to(docs).with_suffix("").as_posix() for page in pages} - {"index"}
    assert guides <= set(index)


def test_the_readme_is_one_page():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of extensions about Sphinx's next version
def test_the_site_builds_from_any_folder_with_the_package_alone(tmp_path, monkeypatch, capsys):
    from sphinx.cmd.build import main as build

    shutil.copytree(ROOT / "docs", tmp_path / "pages of mine")
    monkeypatch.chdir(tmp_path)
    assert build(["-q", "-W", "--keep-going", "pages of mine", "alone"]) == 0
    assert capsys.readouterr().err == ""
    assert "is in the repository" in (tmp_path / "alone" / "README.html").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore")
def test_the_site_builds_without_a_warning(tmp_path, monkeypatch, capsys):
    from sphinx.cmd.build import main as build

    monkeypatch.chdir(tmp_path)
    assert build(["-q", "-W", "--keep-going", str(ROOT / "docs"), "site"]) == 0
    assert capsys.readouterr().err == ""
    for page in ("index", "docs/index", "docs/names", "docs/commands", "docs/functions", "README"):
        assert (tmp_path / "site" / f"{page}.html").is_file()
    assert "<math" in (tmp_path / "site" / "docs" / "linear.html").read_text(encoding="utf-8")
    fetched = re.compile(r"<(?:script|link|img)[^>]*(?:src|href)=.(?:https?:|//)|url\(.?https?:|@import .?https?:")
    files = [f for f in (tmp_path / "site").rglob("*") if f.suffix in (".html", ".css")]
    assert not [f.name for f in files if fetched.search(f.read_text(encoding="utf-8"))], "read without a network"
    for known in ("barlow_twins", "segmentation-knn", "knn/dino", "detectron2"):
        assert known in (tmp_path / "site" / "docs" / "names.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["evidence", "performance"])
def test_the_tests_that_a_page_names_exist(page):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    named = set(re.findall(r"tests/[\w/*.]+", text)) | {
        f"tests/golden/{n}" for n in re.findall(r"`(golden_[\w*.]+)`", text)
    }
    assert len(named) > 10
    assert not [name for name in named if not list(ROOT.glob(name.rstrip("/")))]


def test_every_protocol_has_its_settings_on_a_page():
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    assert not [name for name in list_names("protocol") if f"{{include}} settings/{name}.md" not in pages]
