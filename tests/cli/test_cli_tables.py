"""Tables at the width of the terminal: names and numbers stay whole."""

import re

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
    table = out.split("\nknn: ")[0].splitlines()
    assert table[0] == "weights w.pth, layer output" and table[1] == "knn  top1"
    assert re.fullmatch(r"  value +\d+\.\d\d  \(\d+\.\d\d \.\. \d+\.\d\d\)", table[2])
    assert max(map(len, table)) <= 60 and any(re.fullmatch(r"  untrained +\d+\.\d\d", line) for line in table)
    of_w, of_pixels = (next((world / "a" / "knn").glob(f"{name}*.json")) for name in ("w.pth", "pixels"))
    code, out, err = sslbench("compare", of_w, of_pixels)
    assert code == 0, err
    table = out.splitlines()[:8]
    assert max(map(len, table)) <= 60 and any(re.match(r"  A - B +[+-]\d+\.\d\d  \([+-]", line) for line in table), out
