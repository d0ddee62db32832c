"""Documents: their commands run, their Python runs, messages name commands that exist, notebooks have results."""

import ast
import functools
import re
import runpy
import shlex
import sys
from pathlib import Path

import click
import pytest
from helpers import guides

import sslbench
from sslbench.backbones.int8 import _sums_are_exact
from sslbench.cli.main import COMMANDS, LazyGroup, main
from sslbench.evaluation import estimate

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("*/README.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
]


def commands(page):
    """Return the words of every command that begins a line of a code block, or stands between backticks."""
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)).replace("\\\n", " ")
    inline = re.findall(r"`(sslbench [^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    lines = [line for line in blocks.splitlines() if re.match(r"(\S+=\S+ )*sslbench \S", line)] + inline
    return [shlex.split(line[line.index("sslbench ") :], comments=True)[1:] for line in lines]


def unknown_words(words):
    """Return the first unknown command of a documented line, else its unknown flags."""
    command, rest = LazyGroup("sslbench"), words
    while isinstance(command, click.Group) and rest:
        with click.Context(command) as ctx:
            found = {name: command.get_command(ctx, name) for name in rest[0].split("|")}
        if not all(found.values()):
            return [name for name, one in found.items() if one is None]
        command, rest = next(iter(found.values())), rest[1:]
    known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    return sorted({word.partition("=")[0] for word in rest if word.startswith("--")} - known)


def test_every_documented_command_and_its_flags_exist():
    cases = [(page.relative_to(ROOT).as_posix(), words) for page in PAGES for words in commands(page)]
    assert len(cases) > 60
    wrong = [
        f"{page}: sslbench {' '.join(words)}: there is no {', '.join(unknown)}"
        for page, words in cases
        if (unknown := unknown_words(words))
    ]
    assert wrong == []


DOCS = Path(__file__).parents[1] / "docs"
PYTHON_PAGES = [page for page in sorted(DOCS.glob("*.md")) if page.name == "python.md"]


def test_there_is_a_page():
    assert PYTHON_PAGES


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=lambda page: page.stem)
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


HERE = {"w.torch", "a.torch", "b.torch", "photos/", "labelled/", "imagenet/", "folder_without_classes/", "photos.csv"}


HERE |= {"moco_v2_800ep.pth.tar", "resnet50.pth", "products.csv", "trees.csv", "train.csv", "test.csv", "results/"}


HERE |= {
    "x.npy",
    "y.npy",
    "embeddings.npy",
    "labels.csv",
    "small.csv",
    "random",
    "pixels",
    "cifar10/",
    "birds/",
    "vit.torch",
}


HERE |= {"photos.parquet", "x.parquet", "textures:images", "'slides/?unit=tile&size=224&overlap=32'", "slides/"}


HERE |= {"runs/simclr-resnet50/weights.torch", "finetuned.weights.torch", "homography:photos/"}


FILES = ("--weights", "--data", "--test-data", "--features", "--labels", "--eval-data")
NOT_HERE = (
    "backbone my_",
    "classifier=file",
    "--launcher",
    "runs/*",
    "/checkpoints",
    "imagenet-",
    "--backbone resnet50",
    "corrupt=[main]",
    "=svhn/",
    "d2.",
)
"""Parts of commands that need a user's module, a cluster, a finished run, a file of 100 MB, or further data."""


def is_here(words):
    """Return whether a command needs only files that the fixture makes."""
    if any(part in " ".join(words) for part in NOT_HERE) or any(re.search("[A-Z]{4}|\\|", word) for word in words):
        return False
    for i, word in enumerate(words[:-1]):
        if word in FILES:
            values = words[i + 1 :]
            last = next((j for j, w in enumerate(values) if w.startswith("-") or "=" in w), len(values))
            if not set(values[: max(1, last)] if word == "--weights" else values[:1]) <= HERE:
                return False
    return True


def runnable(words):
    """Return the words to run, None where the command cannot run here."""
    if not is_here(words) or "--benchmark" in words or "--suite" in words or "d2" in words:
        return None
    if len(words) < 3 and words[-1] in ("show", "list", "eval", "check-data", "inspect", "--weights"):
        return None
    if words[0] == "eval" and "--weights" in words:
        return [*words, "--dry-run"]
    if (words[0] == "list" and len(words) == 2) or words[-1] == "--help":
        return words
    if words[0] in ("inspect", "check-data") and set(words[1:]) <= HERE:
        return words
    if words[0] in ("show", "diff-preset") and all("/" in word and "." not in word for word in words[1:]):
        return words
    return None


CASES = sorted({tuple(run) for page in PAGES for words in commands(page) if (run := runnable(words)) is not None})


@pytest.fixture(scope="module")
def files(shared, tmp_path_factory):
    return guides.write_files(tmp_path_factory.mktemp("guides"), shared("simclr") / "a" / "weights.torch")


def test_many_commands_run():
    assert len(CASES) > 40


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_a_documented_command_runs(words, files, monkeypatch, capsys):
    if "int8" in words and not _sums_are_exact():
        pytest.skip("sums of 8-bit products overflow on this processor")
    monkeypatch.chdir(files)
    monkeypatch.setattr(estimate, "_SECONDS", 0.0)  # the first images will do for the speed
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code in (0, None), capsys.readouterr().err


CODE = Path(sslbench.__file__).parent
COMMAND = re.compile(r"sslbench ([a-z][a-z-]+(?: [\w./=\[\]{}'-]+(?::[\w./-]+)*)*)")
OF_OTHERS = {
    *("--shm-size", "--no-build-isolation", "--upgrade"),  # docker run, pip
    *("--cpus-per-task", "--ntasks-per-node", "--nproc-per-node", "--kill-on-bad-exit"),  # srun, torchrun
    *("--verify", "--no-optional-locks", "--porcelain", "--untracked-files"),  # git
    *("--help", "--version", "--flag", "--knn"),  # of every command; of the help about options
}
"""Options in strings that are none of a command of sslbench."""


@functools.cache
def texts():
    """Return (file and line, text) of each string in the code but docstrings; holes of f-strings are X."""
    found = []
    for file in sorted(CODE.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if id(node) in documentation:
                continue
            if isinstance(node, ast.JoinedStr):
                text = "".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            found.append((f"{file.relative_to(CODE)}:{node.lineno}", text))
    return found


def test_commands_in_messages_exist_with_their_options():
    wrong, seen = [], 0
    for where, text in texts():
        for match in COMMAND.finditer(text):
            words = match[1].split()
            if words[0] in COMMANDS:
                seen += 1
                unknown = [word for word in unknown_words(words) if word not in ("--help", "X")]
                wrong += [f"{where}: sslbench {match[1]}: {', '.join(unknown)}"] if unknown else []
    assert seen > 40
    assert wrong == []


def test_options_in_messages_exist():
    known = {*OF_OTHERS}
    group = LazyGroup("sslbench")
    waiting = [group]
    while waiting:
        command = waiting.pop()
        known |= {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        if isinstance(command, click.Group):
            with click.Context(command) as ctx:
                waiting += [command.get_command(ctx, name) for name in command.list_commands(ctx)]
    wrong = [
        f"{where}: {flag}"
        for where, text in texts()
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+[a-z]", text)
        if flag not in known
    ]
    assert wrong == []


NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


def test_the_notebooks_run(tmp_path, monkeypatch):
    """One after the other in one kernel, each in a folder of its own and without the names of the one before."""
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    assert len(NOTEBOOKS) == 3
    together, lasts = nbformat.v4.new_notebook(), []
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        assert not any(cell.get("outputs") for cell in notebook.cells), "stored without outputs, which would grow old"
        (tmp_path / path.stem).mkdir()
        together.cells += [nbformat.v4.new_code_cell(f"%reset -f\n%cd -q {tmp_path / path.stem}"), *notebook.cells]
        lasts.append(max(i for i, cell in enumerate(together.cells) if cell.cell_type == "code"))
    done = NotebookClient(together, timeout=None, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in done.cells for output in cell.get("outputs", ())]
    assert {output.output_type for output in shown} <= {"execute_result", "display_data", "stream"}
    assert all(done.cells[i].outputs for i in lasts), "the last cell of each shows its result"


EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def test_there_are_four():
    assert len(EXAMPLES) == 4


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_a_script_runs(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(script.parent))  # as `python examples/NAME.py` has it
    monkeypatch.setattr(sys, "argv", [str(script)])
    runpy.run_path(str(script), run_name="__main__")
    assert re.search(r"\d\d\.\d", capsys.readouterr().out)
