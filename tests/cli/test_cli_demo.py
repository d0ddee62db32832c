"""The demo: its drawn digits, and the command as a new user runs it."""

import csv
import shutil

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from sslbench.cli.commands.demo import work as demo
from sslbench.cli.main import main
from sslbench.data.prepare import grey_digits
from sslbench.data.prepare.grey_digits import SIDE, TRAIN, draw_digits
from sslbench.evaluation import make_task


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return draw_digits(tmp_path_factory.mktemp("demo") / "digits", 3)


def test_the_digits_are_drawn_once_and_in_two_parts(digits):
    train, test = (sorted((digits / part).glob("*/*.png")) for part in ("train", "val"))
    assert (len(train), len(train) + len(test)) == (TRAIN, 1797)
    assert not {file.name for file in train} & {file.name for file in test}
    pixels = np.stack([np.asarray(Image.open(file)) for file in test])
    assert pixels.shape[1:] == (SIDE, SIDE)
    corner, middle = pixels[:, 0, 0].astype(int), pixels[:, SIDE // 2].max(axis=1).astype(int)
    assert 0.2 < np.mean(middle > corner + 50) < 0.9  # strokes are brighter than the paper, or darker
    before = train[0].stat().st_mtime_ns
    assert draw_digits(digits, 3) == digits
    assert train[0].stat().st_mtime_ns == before


def test_the_digits_of_a_seed_are_always_the_same(tmp_path, monkeypatch):
    few = load_digits()
    few.images = few.images[:20]
    monkeypatch.setattr(grey_digits, "load_digits", lambda: few)
    folders = [draw_digits(tmp_path / name, seed) for name, seed in (("a", 3), ("b", 3), ("c", 4))]
    drawn = [{file.name: file.read_bytes() for file in folder.rglob("*.png")} for folder in folders]
    assert drawn[0] == drawn[1] != drawn[2] and len(drawn[0]) == 20


def test_the_demo_ends_with_a_score_and_with_what_it_promises(digits, tmp_path, monkeypatch, capsys):
    """Two epochs of a narrower network on a few of the images, with fewer labels and one cost."""

    def some(folder, seed):
        for kind in digits.glob("*/*"):
            to = folder / kind.relative_to(digits)
            to.mkdir(parents=True)
            for file in sorted(kind.iterdir())[:5]:
                shutil.copy(file, to)
        return folder

    monkeypatch.setattr(demo, "draw_digits", some)
    monkeypatch.setattr(demo, "LABELS", 4)
    costs = {"low-shot": {"costs": [1.0]}, "linear": {}}
    monkeypatch.setattr(demo, "make_task", lambda name, given: make_task(name, given | costs[name]))
    for key, value in {"epochs": 2, "workers": 0, "batch_size": 16, "backbone": "resnet18w0.125"}.items():
        monkeypatch.setitem(demo.SETTINGS, key, value)
    shown, score = run_demo(tmp_path, monkeypatch, capsys)
    for protocol in ("low-shot", "linear"):
        assert f"{protocol}: SimCLR is" in shown
    assert {"weights.torch", "chance"} < set(score) and score["chance"] == 10


@pytest.mark.long
def test_the_demo_ends_with_a_score_above_both_floors(tmp_path, monkeypatch, capsys):
    """All 30 epochs: with fewer the network is below its untrained self."""
    shown, score = run_demo(tmp_path, monkeypatch, capsys)
    assert "low-shot: SimCLR is above both floors" in shown
    assert max(score, key=lambda weights: score[weights]) == "weights.torch" and score["chance"] == 10


def run_demo(tmp_path, monkeypatch, capsys):
    """Return what the demo prints, and its scores with few labels."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["demo"])
    assert not end.value.code
    shown = capsys.readouterr().out
    assert "sslbench eval low-shot linear --weights" in shown
    folder = tmp_path / "sslbench-demo"
    for name in ("leaderboard.html", "show-features/index.html", "show-images/index.html"):
        assert (folder / name).stat().st_size > 1000, name
    with (folder / "leaderboard.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return shown, {row["weights"]: float(row["low-shot/digits-seed0"]) for row in rows}
