"""The command line starts fast and answers mistakes with one message."""

import ast
import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from sslbench.backbones.build import build
from sslbench.cli.main import COMMANDS, main
from sslbench.cli.options import listed_layers
from sslbench.cli.words import split_words
from sslbench.errors import UsageError
from sslbench.evaluation import RunSettings
from sslbench.features.job import ExtractionJob
from sslbench.library.recipes import compose

HEAVY = ("numpy", "torch", "hydra", "pandas", "sklearn", "kwcoco", "timm", "rich")


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main(list(arguments))
    captured = capsys.readouterr()
    return exit_.value.code, captured.out, captured.err


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["eval", "--help"], ["leaderboard", "--help"], ["pretrain", "simclr", "--help"], ["--version"]],
)
def test_help_loads_nothing_heavy(arguments):
    code = (
        "import sys\nfrom sslbench.cli.main import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit as e:\n"
        f"    assert e.code == 0, e.code\nloaded = [m for m in {HEAVY} if m in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "sslbench" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["knn", "--weights", "weigths.pth"], "there is no weights file weigths.pth"),
        (["knn", "linear", "--weights", "random", "--data", "fotos"], "'fotos' does not exist"),
        (
            ["svm", "--weights", "pixels", "--data", "photos", "--test-data", "photos/tets"],
            "'photos/tets' does not exist",
        ),
        (["knn", "--weights", "random", "--data", "photos"], "needs --backbone"),
        (["nkn", "--weights", "weights.pth"], "nkn"),
        (["knn", "--features", "x.npy", "--labels", "y.npy", "--limit", "9"], "--limit does not go with --features"),
        (["knn", "--wieghts", "weights.pth"], "wieghts"),
        (["knn", "-w", "weights.pth", "kk=3"], "there is no setting 'kk'"),
        (["knn", "linear", "-w", "weights.pth", "linear.foldz=3"], "linear has no setting 'foldz'"),
        (["knn", "-w", "weights.pth", "k=a"], "k: should be a whole number, not 'a'"),
        (["knn", "-w", "vissl:nosuch"], "VISSL's model zoo has no 'nosuch'"),
        (["knn", "-w", "hf:nosuch"], "hf:nosuch is not a model on the Hub"),
        (["knn", "-w", "weights.pth", "-o", "weights.pth/results"], "weights.pth is a file"),
        (["knn", "-w", "weights.pth", "--device", "cdua"], "there is no device called 'cdua'"),
        (["knn", "-w", "weights.pth", "-b", "resnt18"], "Did you mean 'resnet18'"),
        (["knn", "-w", "weights.pth", "--preset", "dno"], "Did you mean 'dino'"),
        (["-w", "weights.pth", "--preset", "knn/dino", "kk=3"], "there is no setting 'kk'"),
        (["-w", "weights.pth", "--preset", "svm/voc07", "k=3"], "there is no setting 'k'"),
        (["-w", "weights.pth", "--benchmark", "knn/digits", "k=0"], "knn: k should be one or several"),
        (["-w", "weights.pth", "--suite", "digits", "knn.temperature=a"], "temperature: should be a number"),
        (["knn", "-w", "weights.pth", "k=0"], "knn: k should be one or several different numbers of at least 1"),
        (["linear", "-w", "weights.pth", "holdout=2"], "linear: holdout should lie between 0 and 1"),
        (["clustering", "-w", "weights.pth", "restarts=0"], "clustering: restarts"),
        (["knn", "--features", "weights.pth"], "--features needs --labels"),
        (["knn", "--features", "weights.pth", "--labels", "y.csv?group=a"], "there is no file y.csv"),
        (["knn", "-w", "resnet50"], "write timm:resnet50"),
        (["finetune", "-w", "weights.pth", "epochs=-1"], "finetune: epochs should be above 0"),
        (["finetune", "-w", "weights.pth", "schedule=cosin"], "Did you mean 'cosine'"),
        (["linear-online", "-w", "weights.pth", "lr=-1"], "linear-online: lr should be above 0"),
        (["segmentation", "-w", "weights.pth", "dropout=2"], "segmentation: dropout should lie between 0 and 1"),
        (["depth", "-w", "weights.pth", "bins=1"], "depth: bins should be at least 2"),
        (["tracking", "-w", "weights.pth", "topk=0"], "tracking: topk must be at least 1"),
        (["robustness", "-w", "weights.pth", "corrupt=fogg"], "Did you mean 'fog'"),
        (["detection", "-w", "weights.pth", "max_iter=9"], "detection has no setting 'max_iter'"),
        (["linear-online", "-w", "weights.pth", "strategy=fsdp"], "It is a setting of finetune."),
        (["detection", "-w", "weights.pth", "strategy=fsdp"], "It is a setting of finetune."),
        (["finetune", "-w", "weights.pth", "--precision", "int8"], "precision int8 is for protocols on features"),
        (["detection", "-w", "weights.pth", "iterations=0"], "iterations=0: should be at least 1"),
        (["knn", "-w", "weights.pth", "--crop", "big"], "--crop big: should be a number of pixels"),
        (["knn", "-w", "weights.pth", "--interpolation", "cubic"], "interpolation: 'cubic' is not possible"),
        (["knn", "-w", "weights.pth", "--noise", "x"], "--noise x: should be shares"),
        (["knn", "-w", "nosuch*.pth"], "no file matches this pattern"),
        (["knn", "photos"], "'photos' is a folder, not the name of a protocol"),
        (["knn", "nosuch/"], "'nosuch/' is a path, not the name of a protocol"),
        (
            ["knn", "--features", "a.npz", "weights.pth"],
            "--features and --labels take one file each, and a shell turns",
        ),
    ],
)
def test_a_mistyped_path_or_name_is_told_before_torch_is_loaded(tmp_path, arguments, message):
    refused_without_torch(tmp_path, ["eval", *arguments], message)


def test_no_protocol_loads_torch_before_it_runs():
    """Its settings and their checks are read first of all, for help as for refusals."""
    code = (
        "import sys\nfrom sslbench import protocols\nfrom sslbench.config import describe\n"
        "from sslbench.names import list_names\nfor name in list_names('protocol'):\n"
        "    found = protocols.find(name)\n    describe(found.settings)\n    found.check_settings(found.settings())\n"
        "    assert 'torch' not in sys.modules, name\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def refused_without_torch(folder, arguments, message):
    (folder / "photos").mkdir()
    (folder / "photos" / "0.png").touch()  # not looked into
    (folder / "weights.pth").write_bytes(b"x")
    code = (
        "import sys\nfrom sslbench.cli.main import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit as e:\n"
        "    assert e.code, e.code\nprint([m for m in ('torch', 'sklearn', 'pandas') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
    assert message in done.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("extract -w weights.pth -d fotos", "'fotos' does not exist"),
        ("extract -w weights.pth -d photos -o e.csv", "should end in one of .parquet, .npz, .h5"),
        ("inspect fotos", "'fotos' does not exist"),
        ("inspect weight.pth", "Did you mean 'weights.pth'"),
        ("pretrain simclr -d fotos", "'fotos' does not exist"),
        ("pretrain simclr -d photos -b resnt18", "there is no backbone 'resnt18'"),
        ("pretrain simclr -d photos device=cdua", "there is no device called 'cdua'"),
        ("pretrain simclr -d photos --init weight.pth", "there is no weights file weight.pth"),
        ("cka weights.pth weight.pth", "there is no weights file weight.pth"),
        ("diff weights.pth weight.pth", "there is no weights file weight.pth"),
        ("convert weight.pth out.pth --to timm", "there is no weights file weight.pth"),
        ("check-data fotos", "'fotos' does not exist"),
        ("predict -w weights.pth -d fotos --csv out.csv", "'fotos' does not exist"),
        ("cluster -w weights.pth -d fotos", "'fotos' does not exist"),
        ("export -w weights.pth -b resnt18 --out net.onnx", "there is no backbone 'resnt18'"),
        ("show -w weights.pth -d fotos", "'fotos' does not exist"),
        ("show -w weights.pth -d photos -o page.html", "show writes a page with pictures into a folder"),
    ],
)
def test_other_commands_tell_mistyped_paths_and_names_before_torch_is_loaded(tmp_path, command, message):
    refused_without_torch(tmp_path, command.split(), message)


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


@pytest.mark.parametrize("name", ["nosuch", "torchvision:nosuch"])
def test_a_mistyped_download_is_told_before_torch_is_loaded(name):
    code = (
        "import sys\nfrom sslbench.cli.main import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit as e:\n"
        "    assert e.code == 2, e.code\nprint('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, "data", "download", name], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stdout + done.stderr
    assert f"there is no download called '{name}'" in done.stderr


def test_the_file_of_run_settings_names_them_all():
    """Settings are compared with it before `RunSettings`, which needs torch, is imported."""
    assert set(compose("eval", {})[0]) == {field.name for field in dataclasses.fields(RunSettings)}


def test_extract_refuses_a_file_that_cannot_be_written_before_an_image_is_encoded(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ExtractionJob, "run", lambda *given: pytest.fail("images were encoded"))
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "folder.npz").mkdir()
    for output, message in (("file/x.npz", "cannot write into"), ("folder.npz", "is a folder")):
        given = ["extract", "-w", "pixels:8", "-d", "sklearn:digits", "--store", str(tmp_path / "store")]
        code, _, err = run(capsys, *given, "-o", str(tmp_path / output))
        assert code == 2 and message in err, err


def test_knn_of_stored_features_imports_no_library_that_it_does_not_use(tmp_path):
    code = (
        "import sys\nfrom sslbench.cli.main import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit as e:\n"
        "    assert not e.code, e.code\nprint(sorted(sys.modules))\n"
    )
    for label in ("a", "b"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for i in range(10):
            picture = np.random.default_rng(i + 10 * (label == "b")).integers(0, 256, (8, 8, 3), np.uint8)
            Image.fromarray(picture).save(tmp_path / "photos" / label / f"{i}.png")
    torch.save(build("resnet18w0.25").module.state_dict(), tmp_path / "w.pth")
    command = (
        "eval knn -w w.pth -b resnet18w0.25 --resize 32 --crop 32 -d photos -o results --store store --quiet".split()
    )
    for out in ("first", "second"):
        command[command.index("-o") + 1] = out  # a record that exists would not be computed again
        done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    loaded = set(ast.literal_eval(done.stdout.splitlines()[-1]))
    assert not loaded & {
        "scipy.stats",
        "scipy.signal",
        "timm",
        "sklearn",
        "pandas",
        "kwcoco",
        "matplotlib",
        "cv2",
        "pyarrow",
        "h5py",
        "umap",
    }


def test_every_command_is_there_and_helps(capsys):
    assert set(COMMANDS) == {
        *"pretrain eval sweep extract cluster predict export inspect convert diff cka diff-preset".split(),
        *"check-data data leaderboard reproduce compare list show score demo".split(),
    }
    for name in COMMANDS:
        code, out, _ = run(capsys, name, "--help")
        assert code == 0
        assert out.startswith(f"Usage: sslbench {name}")


def test_the_bare_command_greets_with_five_commands(capsys):
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    shown = [line.split()[1] for line in out.splitlines() if line.startswith("  sslbench ")]
    assert len(shown) == 5 and set(shown) <= set(COMMANDS)


def test_a_grid_of_the_size_of_the_map_is_a_layer():
    assert listed_layers("blocks.11:grid+cls,res4:avg(8,3)") == ("blocks.11:grid+cls", "res4:avg(8,3)")


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate"], "there is no command 'evaluate'. Did you mean 'eval'?"),
        (
            ["eval", "knn", "--wieghts", "x"],
            "'--wieghts'. (Did you mean one of: '--quiet', '--weights'?)",
        ),
        (["eval"], "no protocol is named"),
        (["eval", "kn", "--weights", "random"], "there is no protocol called 'kn'"),
        (["eval", "knn"], "--weights is missing"),
        (["eval", "knn", "--weights", "random", "--backbone", "resnet18", "kk=3"], "there is no setting 'kk'"),
        (
            ["eval", "knn", "--weights", "random", "--backbone", "resnet18", "knn.tempratur=3"],
            "Did you mean 'temperature'?",
        ),
        (
            ["eval", "knn", "--weights", "random", "--backbone", "resnet18", "k=[1,two]"],
            "should be a whole number, not 'two'",
        ),
        (["eval", "knn", "--weights", "random", "--backbone", "resnet18", "k=[1"], "cannot be read as key=value"),
        (["eval", "knn", "--weights", "random", "--backbone", "resnet18", "k=1", "k=2"], "given twice"),
        (
            ["eval", "knn", "--weights", "random", "--backbone", "resnet18", "machine=huge"],
            "there is no machine called 'huge'",
        ),
        (
            ["eval", "knn", "--weights", "random", "--backbone", "resnet18", "--precision", "fp8"],
            "'fp8' is not possible",
        ),
        (
            ["eval", "knn", "--weights", "random", "--backbone", "resnet18", "--batch-size", "many"],
            "Invalid value for '--batch-size'",
        ),
        (["eval", "--benchmark", "knn/cifar", "--weights", "x"], "Did you mean 'knn/cifar10'"),
        (["eval", "--suite", "digit", "--weights", "x"], "Did you mean 'digits'"),
        (["eval", "svm", "--benchmark", "knn/digits", "--weights", "x"], "none of the requested benchmarks uses"),
        (
            ["eval", "knn", "--weights", "random", "--backbone", "resnet18", "--crop", "big"],
            "should be a number of pixels",
        ),
        (["eval", "knn", "--features", "x.npy"], "--features needs --labels"),
        (["eval", "knn", "--features", "x.npy", "--weights", "y"], "exclude each other"),
        (["list", "protocls"], "Did you mean 'protocol'"),
        (["show", "knn/digit"], "Did you mean 'knn/digits'"),
        (["leaderboard", "no-such-folder"], "there is no folder no-such-folder"),
        (["inspect", "no-such-file.pth"], "no-such-file.pth"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert message in err
    assert err.startswith("error: ") or "\nerror: " in err or err.startswith("no --data")
    assert "Traceback" not in err
    assert code in (1, 2)
    assert out == ""
    assert list(tmp_path.iterdir()) == [], "something was left behind"


def test_list_and_show_print_what_there_is(capsys):
    _, out, _ = run(capsys, "list", "protocols")
    names = "clustering correspondence depth detection discovery edges finetune geolocation geometry knn linear".split()
    names += "linear-online low-level low-shot lsr normals orientation".split()
    names += "relative-pose retrieval robustness saliency segmentation segmentation-knn similarity svm".split()
    assert out.split() == [*names, "tracking"]
    _, out, _ = run(capsys, "show", "knn/digits")
    assert "sklearn:digits" in out
    _, out, _ = run(capsys, "show", "knn")
    assert "temperature=0.07" in out


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
    code, _, err = run(capsys, "extract", "--data", *files)
    assert code == 2 and "photos/1.jpg photos/2.jpg photos/3.jpg and 2,996 more" in err and len(err) < 500
