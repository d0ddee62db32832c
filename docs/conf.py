"""Settings of the site: `make site` writes it to site/, from the pages that GitHub shows too.

From any folder: `sphinx-build -b html DOCS OUT`, with the path of this folder. It writes to OUT only.
"""

import functools
import importlib
import shutil
import sys
from pathlib import Path

import yaml
from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package beside the pages, installed or not

from sslbench.cli.tables import show_value
from sslbench.config import describe
from sslbench.library.benchmarks import load_benchmark
from sslbench.library.presets import Preset, load_preset
from sslbench.names import find_file, list_names, modules
from sslbench.paths import DataFolder, builtin_dir
from sslbench.protocols import find

DOCS = Path(__file__).resolve().parent
project = "sslbench"
extensions = ["myst_parser", "sphinx_click", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
html_theme = "furo"
html_title = "sslbench"
html_math_renderer = "mathml"
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
smartquotes = False  # it would turn -- of flags into dashes
autodoc_typehints = "description"
autodoc_typehints_format = "short"
suppress_warnings = ["myst.xref_missing"]  # links to source files; tests/test_site.py follows every link itself


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def first_line(module: str) -> str:
    """Return the first line of a module's docstring."""
    return (importlib.import_module(module).__doc__ or "").partition("\n")[0]


def comment(path: Path) -> str:
    """Return the comment at the head of a recipe."""
    lines = [line[1:].strip() for line in path.read_text(encoding="utf-8").split("\n") if line.startswith("#")]
    return " ".join(line for line in lines if not line.startswith("@package"))


@functools.cache
def presets() -> list[Preset]:
    """Return all presets."""
    return [load_preset(name) for name in list_names("preset")]


def names_page() -> str:
    """Return the page of everything that has a name: read from the files, so that it is never out of date."""
    benchmarks = [load_benchmark(name) for name in list_names("benchmark")]
    formats = [(name, yaml.safe_load(find_file("format", name).read_text("utf-8"))) for name in list_names("format")]
    return "\n\n".join(
        (
            "# Names",
            "## Methods",
            table(("recipe", "from"), [(f"`{n}`", comment(find_file("method", n))) for n in list_names("method")]),
            "## Protocols",
            table(
                ("protocol", ""),
                [(f"`{n}`", first_line(module)) for n, module in sorted(modules("protocol").items())],
            ),
            "## Presets",
            table(("preset", "", "source"), [(f"`{p.name}`", p.title, p.source) for p in presets()]),
            "## Benchmarks",
            table(("benchmark", ""), [(f"`{b.name}`", b.title) for b in benchmarks]),
            "## Formats of weights",
            table(
                ("format", "", "source"), [(f"`{n}`", str(f["title"]), str(f.get("source", ""))) for n, f in formats]
            ),
            "## Kinds of data",
            table(
                ("kind", ""),
                [(f"`{n}`", first_line(module)) for n, module in sorted(modules("source").items())],
            ),
        )
    )


def settings_part(protocol: str) -> str:
    """Return what the page of a protocol includes: defaults and presets, read from the code and the YAML."""
    found = find(protocol)
    rows = [
        (f"`{s.name}`", f"`{show_value(s.default)}`", f"{s.meaning} [{s.type}{', in ' + s.unit if s.unit else ''}]")
        for s in describe(found.settings)
    ]
    published = [p for p in presets() if p.protocol == protocol]
    parts = [f"Defaults of version {found.version}:", table(("setting", "default", "meaning"), rows)]
    if published:
        parts += ["Published settings, by `--preset`; where one says nothing, the defaults hold:"]
        parts += [
            table(("preset", "settings", "source"), [(f"`{p.name}`", preset_settings(p), p.source) for p in published])
        ]
    return "\n\n".join(parts)


def preset_settings(preset: Preset) -> str:
    """Return the settings, layers and preprocessing that a preset fixes."""
    fixed = [f"`{name}={typed(value)}`" for name, value in (preset.settings | preset.preprocessing).items()]
    layers = [f"layers `{', '.join(preset.layers)}`"] if preset.layers else []
    return ", ".join(fixed + layers + (["selects on test"] if preset.selects_on_test else []))


def typed(value: object) -> str:
    """Return a value of YAML as it is typed on the command line."""
    return show_value(tuple(value)) if isinstance(value, list) else show_value(value)


def gather_pages(app: Sphinx) -> None:
    """Copy the pages of the repository into the folder of OUT that sphinx reads from, and write the generated ones."""
    pages = Path(app.doctreedir).resolve() / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(DOCS, pages / "docs", ignore=shutil.ignore_patterns("__pycache__", "names.md", "settings"))
    for name in ("README", "CONTRIBUTING", "CHANGELOG"):
        page = DOCS.parent / f"{name}.md"
        absent = f"# sslbench\n\n{page.name} is in the repository, not beside these pages.\n\n## Guides\n"
        text = page.read_text(encoding="utf-8") if page.is_file() else absent
        (pages / page.name).write_text(text, encoding="utf-8")
    kinds: tuple[DataFolder, ...] = ("benchmarks", "configs", "model_converters")
    for kind in kinds:
        (pages / kind).mkdir()
        for page in builtin_dir(kind).glob("*.md"):
            shutil.copy2(page, pages / kind)
    (pages / "docs" / "names.md").write_text(names_page() + "\n", encoding="utf-8")
    (pages / "docs" / "settings").mkdir()
    for name in list_names("protocol"):
        (pages / "docs" / "settings" / f"{name}.md").write_text(settings_part(name) + "\n", encoding="utf-8")
    app.srcdir = type(app.srcdir)(pages)


def write_start(app: Sphinx, error: Exception | None) -> None:
    """Write index.html, which leads to the first page: the pages keep the folders of the repository."""
    if error is None:
        to_docs = '<meta http-equiv="refresh" content="0; url=docs/index.html">'
        (Path(app.outdir) / "index.html").write_text(to_docs + "\n", encoding="utf-8")


def inline_formula(writer: HTML5Translator, node: nodes.math) -> None:
    """Write a formula in a line as MathML, which browsers draw without a script and without a network."""
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def displayed_formula(writer: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula in lines of its own as MathML."""
    style = "margin: 1em 0; overflow-x: auto; overflow-y: hidden; padding: 0.4em 0"
    writer.body.append(f'<div style="{style}">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def generated(app: Sphinx, what: str, name: str, member: object, skip: bool, options: object) -> bool | None:
    """Leave out the methods that scikit-learn generates for estimators; their texts refer to its own pages."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def setup(app: Sphinx) -> None:
    """Write the generated pages before and after sphinx does its work."""
    app.add_html_math_renderer("mathml", (inline_formula, None), (displayed_formula, None))
    app.connect("config-inited", lambda app, _: gather_pages(app))
    app.connect("build-finished", write_start)
    app.connect("autodoc-skip-member", generated)
