"""Tables on terminals, Windows, and threads that wait."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sslbench.cli.tables import print_table

NAMES = ("weights", "layer", "protocol", "metric")
HEADINGS = (*NAMES, "value", "95 % interval", "train", "untrained", "selected")
ROWS = [
    (
        "resnet50-of-a-long-name.pth",
        "res5avg",
        "knn",
        "top1",
        "91.84",
        "89.99 .. 93.37",
        "",
        "9.57",
        "k = 100 on train",
    ),
    ("resnet50-of-a-long-name.pth", "res5avg", "linear", "top1", "92.23 (underfitted)", "", "99.7", "", ""),
]


def printed(capsys, rows=ROWS):
    print_table(HEADINGS, rows, names=NAMES, shared=("weights", "layer"), wrapped="selected")
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_every_number_and_name_is_whole_at_any_width(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = printed(capsys)
    text = "\n".join(lines)
    for cell in {cell for row in ROWS for cell in row[:-1] if cell}:
        assert cell in text
    assert all(len(line.rstrip()) <= width for line in lines)
    assert text.count("resnet50-of-a-long-name.pth") == 1 and lines[0].startswith("weights resnet50")


def test_what_does_not_fit_beside_each_other_is_a_line_per_number(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert printed(capsys) == [
        "weights resnet50-of-a-long-name.pth, layer res5avg",
        "knn  top1",
        "  value      91.84  (89.99 .. 93.37)",
        "  untrained   9.57",
        "  selected   k = 100 on train",
        "linear  top1",
        "  value      92.23 (underfitted)",
        "  train       99.7",
    ]
    monkeypatch.setenv("COLUMNS", "100")
    assert re.fullmatch(r"protocol +metric +value +95 % interval +train +untrained +selected *", printed(capsys)[1])


def test_a_column_that_differs_stands_in_every_row(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    lines = printed(capsys, [ROWS[0], ("other.pth", *ROWS[1][1:])])
    assert lines[0] == "layer res5avg" and lines[1] == "resnet50-of-a-long-name.pth  knn  top1"
    assert "other.pth  linear  top1" in lines


def test_missing_floors_are_one_line_for_all_protocols(tmp_path, sslbench, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    classes = np.repeat(["cat", "dog"], 20)
    np.savez("f.npz", features=rng.normal(size=(40, 4)).astype("float32") + (classes == "cat")[:, None], label=classes)
    code, out, err = sslbench("eval", "knn", "clustering", "--features", "f.npz", "--labels", "f.npz")
    assert code == 0, err
    (line,) = [line for line in out.splitlines() if "no floor" in line]
    assert line.startswith("knn, clustering (2 results): no floor 'pixels': ") and "; no floor 'untrained': " in line


def test_eval_and_compare_on_a_narrow_terminal(world, sslbench, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    common = ("--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--data", "photos", "--workers", 0)
    code, out, err = sslbench("eval", "knn", "lsr", *common, "--seed", 1, "--out", "a")
    assert code == 0, err
    table, _, below = out.partition("\nfloors of knn")
    assert table.startswith("weights w.pth, layer output\n") and max(map(len, table.splitlines())) <= 60
    assert re.search(r"knn +top1 +\d+\.\d\d +\d+\.\d\d \.\. \d+\.\d\d", table), table
    assert re.search(r"(, lsr)?: untrained \d+\.\d\d \(.*?\), pixels \d+\.\d\d, ", below), "floors are one line"
    assert "w.pth has" in below and str(world / "a") not in out and ".json" not in out
    of_w, of_pixels = (next((world / "a" / "knn").glob(f"{name}*.json")) for name in ("w.pth", "pixels"))
    code, out, err = sslbench("compare", of_w, of_pixels)
    assert code == 0, err
    table = out.splitlines()[:8]
    assert max(map(len, table)) <= 60 and any(re.match(r"  A - B +[+-]\d+\.\d\d  \([+-]", line) for line in table), out


NETWORK = "--backbone resnet_basic_1-1-1-1w0.125_cifar"
BATCHES = "batch_size=16 --workers 0"
COMMANDS = [
    f"pretrain simclr {NETWORK} epochs=1 schedule.warmup_epochs=0 augment=small --limit 32 {BATCHES} --out p",
    "pretrain p/config.yaml --out q --workers 1",
    "eval knn linear --weights p/weights.torch --data kwcoco:shapes16 --no-floors --workers 1 --out r",
    "eval knn linear --weights p/weights.torch --data kwcoco:shapes16 --no-floors --workers 0 --out r",
    "eval finetune --weights p/weights.torch --limit 40 epochs=1 --workers 0 --no-floors --out r",
    "leaderboard r --csv board.csv --html board.html",
    "data to-kwcoco kwcoco:shapes8 shapes.kwcoco.json",
    "convert p/weights.torch y.pth --to torchvision",
    "inspect y.pth",
    "check-data kwcoco:shapes8 --workers 0",
]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="open files are found in /proc")
def test_commands_work_without_what_windows_lacks(tmp_path):
    environment = os.environ | {"SSLBENCH_CACHE": str(tmp_path / "cache"), "SSLBENCH_TRACEBACK": "1"}
    program = [sys.executable, str(Path(__file__).parents[1] / "helpers" / "windows.py"), *COMMANDS]
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "start no second run that writes there" in done.stderr
    for written in ("p/weights.torch", "board.csv", "board.html", "y.pth", "shapes.kwcoco.json"):
        assert (tmp_path / written).is_file()
    assert len((tmp_path / "board.csv").read_text().splitlines()) > 1
    assert not list(tmp_path.rglob("*.part*"))


# libgomp prints what it has read from the environment as it is loaded, by torch or by this.
SHOW = """
import ctypes, importlib.util, pathlib, sys
from sslbench.cli import main
assert "torch" not in sys.modules, "it is too late once OpenMP is loaded"
try:
    main.main(["--version"])
except SystemExit:
    folder = pathlib.Path(importlib.util.find_spec("torch").origin).parent
    for library in [*folder.glob("lib/libgomp*.so*"), *folder.parent.glob("torch.libs/libgomp*.so*")][:1]:
        ctypes.CDLL(str(library))
"""


@pytest.mark.parametrize(
    ("own", "wanted"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "active"}, "ACTIVE"), ({"GOMP_SPINCOUNT": "77"}, None)]
)
@pytest.mark.skipif(sys.platform != "linux", reason="libgomp of torch's wheels for Linux")
def test_the_library_itself_has_read_the_policy(own, wanted):
    theirs = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}
    env = {key: value for key, value in os.environ.items() if key not in theirs}
    env |= {"OMP_DISPLAY_ENV": "verbose"} | own
    done = subprocess.run([sys.executable, "-c", SHOW], env=env, capture_output=True, text=True, check=True)
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("torch's OpenMP library is not libgomp")
    if wanted is None:
        assert "GOMP_SPINCOUNT = '77'" in done.stderr
    else:
        assert f"OMP_WAIT_POLICY = '{wanted}'" in done.stderr
