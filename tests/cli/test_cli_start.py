"""The command line starts fast and answers mistakes with one message."""

import ast
import dataclasses
import re
import subprocess
import sys

import pytest

from sslbench.cli.main import COMMANDS, main
from sslbench.cli.options import NetworkFlags
from sslbench.cli.words import split_words
from sslbench.errors import UsageError
from sslbench.evaluation import RunSettings
from sslbench.features.job import ExtractionJob
from sslbench.library.recipes import compose
from sslbench.names import list_names

HEAVY = ("numpy", "torch", "hydra", "pandas", "sklearn", "kwcoco", "timm", "rich")


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main(list(arguments))
    captured = capsys.readouterr()
    return exit_.value.code, captured.out, captured.err


QUESTIONS = """
import ast, os, sys
from sslbench.cli.main import COMMANDS, main

def answer(number, *commands):
    print(f"<{number}>")
    for words in commands:
        try:
            main(words.split())
        except SystemExit as end:
            assert not end.code, end.code
    print(f"<{number} {sorted(sys.modules)}>", flush=True)

if not os.fork():
    answer("commands", *(f"{name} --help" for name in COMMANDS))
    sys.exit()
assert os.wait()[1] == 0
if not os.fork():
    answer("help", "--help", "eval --help", "leaderboard --help", "--version", "list protocols")
    record = sys.argv[2]
    tables = ["list", "show simclr", "show knn/digits", f"leaderboard {sys.argv[3]}", f"compare {record} {record}"]
    answer("records", *tables, f"inspect {record}", f"inspect {sys.argv[3]}")
    sys.exit()
assert os.wait()[1] == 0
answer("inspect", f"inspect {sys.argv[1]}")
answer("knn", f"eval knn -w {sys.argv[1]} -b resnet18w0.25 --resize 32 --crop 32 -d photos --workers 0 --quiet -o out")
"""


@pytest.fixture(scope="module")
def asked(shared, tmp_path_factory):
    """Question -> what the commands print, and all modules imported by then."""
    folder, results = shared.copy("photos", tmp_path_factory.mktemp("asked")), shared("records") / "results"
    given = (shared("weights") / "resnet18w0.25.pth", next((results / "knn").glob("*.json")), results)
    done = subprocess.run([sys.executable, "-c", QUESTIONS, *given], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    answers = re.findall(r"^<(\w+)>\n(.*?)^<\1 (.*?)>$", done.stdout, re.DOTALL | re.MULTILINE)
    return {name: (out, set(ast.literal_eval(modules))) for name, out, modules in answers}


def test_help_and_lists_load_nothing_heavy(asked):
    out, modules = asked["help"]
    assert not modules & {*HEAVY}
    assert not asked["commands"][1] & {*HEAVY} - {"numpy"}
    assert out.count("Usage: sslbench") == 3 and "sslbench 0." in out and "\nknn\n" in out


def test_no_protocol_loads_torch_before_it_runs():
    """Its settings and their checks are read first of all, for help as for refusals."""
    code = (
        "import sys\nfrom sslbench import protocols\nfrom sslbench.config import describe\n"
        "from sslbench.names import list_names\nfor name in list_names('protocol'):\n"
        "    found = protocols.find(name)\n    describe(found.settings)\n    found.check_settings(found.settings())\n"
        "    assert 'torch' not in sys.modules, name"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_missing_file_of_weights_is_answered_with_files_or_with_downloads(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    _, _, err = run(capsys, "inspect", "nosuch.pth")
    assert "There are no weights files in this folder" in err
    (tmp_path / "other.pt").write_bytes(b"x")
    _, _, err = run(capsys, "inspect", "nosuch.pth")
    assert "Weights in this folder: other.pt." in err and "photos" not in err
    _, _, err = run(capsys, "inspect", "weights/nosuch.pth")
    assert "the folder weights does not exist" in err


def test_the_file_of_run_settings_names_them_all():
    """Settings are compared with it before `RunSettings`, which needs torch, is imported."""
    assert set(compose("eval", {})[0]) == {field.name for field in dataclasses.fields(RunSettings)}


def test_extract_refuses_a_file_that_cannot_be_written_before_an_image_is_encoded(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ExtractionJob, "open", lambda *given: pytest.fail("images were encoded"))
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "folder.npz").mkdir()
    for output, message in (("file/x.npz", "cannot write "), ("folder.npz", "is a folder")):
        given = ["extract", "-w", "pixels:8", "-d", "sklearn:digits", "--store", str(tmp_path / "store")]
        code, _, err = run(capsys, *given, "-o", str(tmp_path / output))
        assert code == 2 and message in err, err


def test_knn_imports_no_library_that_it_does_not_use(asked):
    unused = "scipy.stats scipy.signal timm sklearn pandas kwcoco cv2 pyarrow h5py umap"
    found = asked["knn"][1] & {*unused.split(), "torchvision", "torch._dynamo", "sympy"}
    assert not found, "torch's compiler takes a second"


def test_tables_and_comparisons_of_records_import_no_torch(asked):
    unused = {"torch", "torchvision", "timm", "scipy.stats", "sklearn", "pandas", "matplotlib", "PIL"}
    assert not asked["records"][1] & unused


def test_inspect_of_a_resnet_imports_torch_alone(asked):
    """torchvision, and initial values of tensors without memory, import torch's compiler: a second."""
    assert not asked["inspect"][1] & {"torchvision", "timm", "torch._dynamo", "sympy", "scipy"}


def test_every_command_is_there_and_helps(capsys):
    assert set(COMMANDS) == {
        *"pretrain eval run sweep extract cluster predict export inspect convert diff cka diff-preset".split(),
        *"check-data data leaderboard reproduce compare selective list show score demo".split(),
    }
    for name in COMMANDS:
        code, out, _ = run(capsys, name, "--help")
        assert code == 0
        assert out.startswith(f"Usage: sslbench {name}")
    code, out, err = run(capsys, "evaluate")
    assert (code, out) == (2, "") and "there is no command 'evaluate'. Did you mean 'eval'?" in err


def test_the_bare_command_greets_with_five_commands(capsys):
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    shown = [line.split()[1] for line in out.splitlines() if line.startswith("  sslbench ")]
    assert len(shown) == 5 and set(shown) <= set(COMMANDS)


def test_a_grid_of_the_size_of_the_map_is_a_layer():
    assert NetworkFlags(layers="blocks.11:grid+cls,res4:avg(8,3)").layer_names() == (
        "blocks.11:grid+cls",
        "res4:avg(8,3)",
    )


def test_a_list_needs_no_brackets():
    names, values = split_words(["knn", "k=20,200", "knn.k=[20,200]", "data='a,b'"])
    assert names == ["knn"] and values == {"k": [20, 200], "knn.k": [20, 200], "data": "a,b"}
    for word in ("k=choice(1,2)", "k=range(1,5)", "+k=1"):
        with pytest.raises(UsageError, match="not of the form key=value"):
            split_words([word])


def test_help_of_a_protocol_lists_its_settings(capsys):
    _, out, _ = run(capsys, "eval", "knn", "--help")
    assert "Settings of knn" in out
    assert "temperature=0.07" in out
    assert "Settings of svm" not in out


def test_list_and_show_print_what_there_is(capsys):
    _, out, _ = run(capsys, "list", "protocols")
    assert out.split() == list_names("protocol")
    _, out, _ = run(capsys, "show", "knn/digits")
    assert "sklearn:digits" in out
    _, out, _ = run(capsys, "show", "knn")
    assert "temperature=0.07" in out
    code, _, err = run(capsys, "show", __file__)
    assert code == 2 and "sslbench inspect" in err, "a path that is no record"


def test_python_dash_m_works():
    done = subprocess.run([sys.executable, "-m", "sslbench", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("sslbench 0.")


def test_every_command_has_one_line_in_the_help_at_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(capsys, "--help")
    assert len(out.partition("Commands:\n")[2].splitlines()) == len(COMMANDS)


def test_a_group_of_commands_without_a_command_prints_its_help(capsys):
    code, out, err = run(capsys, "data")
    assert (code, err) == (0, "")
    assert "Download the data set NAME, verify it and lay it out where benchmarks look for it." in " ".join(out.split())


def test_help_leaves_out_flags_that_a_command_refuses(capsys):
    _, out, _ = run(capsys, "predict", "--help")
    assert "--csv" in out and "--on-error" not in out and "--test-data" not in out


def test_thousands_of_files_that_a_shell_made_of_a_pattern_are_counted(capsys):
    files = [f"photos/{i}.jpg" for i in range(3000)]
    code, _, err = run(capsys, "cluster", "--data", *files)
    assert code == 2 and "photos/1.jpg photos/2.jpg photos/3.jpg and 2,996 more" in err and len(err) < 500
