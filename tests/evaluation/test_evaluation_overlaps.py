"""Test images that train has too are counted beside every score, which stays as it is."""

import csv
import shutil

import numpy as np
import pytest
import torch
from helpers.suites import run_suite
from PIL import Image
from torch import nn

import sslbench
from sslbench.errors import SslbenchError
from sslbench.evaluation import RunSettings, evaluate_features, make_task
from sslbench.evaluation.request import Request
from sslbench.evaluation.suite import SuiteCell
from sslbench.features.external import read_train_test
from sslbench.leaderboard import table
from sslbench.leaderboard.html import how_made
from sslbench.results import records

RUN = RunSettings(device="cpu", workers=0, batch_size=32)
N = {"train": 120, "test": 60}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, stride=2)

    def forward(self, x):
        return torch.relu(self.conv(x)).flatten(1)


def picture(rng, label):
    """Smooth blobs with some texture, as photographs have; class 1 is brighter at the top."""
    blobs = np.asarray(
        Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8)).resize((48, 48), Image.Resampling.BICUBIC)
    )
    shade = np.linspace(30, -30, 48)[:, None, None] * (1 if label else -1)
    return Image.fromarray((blobs * 0.7 + 35 + shade + rng.normal(0, 6, (48, 48, 3))).clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """120 and 60 pictures; 10 of test lie in train as they are, 10 smaller or larger and as JPEG, with wrong labels."""
    rng = np.random.default_rng(0)
    root = tmp_path_factory.mktemp("made") / "photos"
    for part, n in N.items():
        for i in range(n):
            folder = root / part / "ab"[i % 2]
            folder.mkdir(parents=True, exist_ok=True)
            picture(rng, i % 2).save(folder / f"{i:03d}.png")
    for i in range(20):
        file = root / "test" / "ab"[i % 2] / f"{i:03d}.png"
        folder = root / "train" / "ba"[i % 2]
        if i < 10:
            (folder / f"copy{i:03d}.png").write_bytes(file.read_bytes())
        else:
            size = (40, 64, 96)[i % 3]
            Image.open(file).resize((size, size), Image.Resampling.BICUBIC).save(
                folder / f"copy{i:03d}.jpg", quality=85
            )
    return root


@pytest.fixture
def photos(made, tmp_path):
    """A copy of them."""
    return shutil.copytree(made, tmp_path / "photos")


def evaluate(photos, *, run=RUN, data=None, **request):
    torch.manual_seed(0)
    request = {
        "protocols": ["knn"],
        "settings": {"knn": {"k": 1}},
        "out": photos.parent / "r",
        "preprocessing": {"resize": [32, 32], "crop": None},
    } | request
    return sslbench.evaluate(Net(), data or photos, run=run, **request)


def listed(result):
    with (result.file.parent / result.overlaps.pairs_file).open() as file:
        return list(csv.DictReader(file))


def test_copies_are_counted_and_listed_and_the_score_without_them_stands_beside(photos):
    (result,) = evaluate(photos)
    found = result.overlaps
    assert (found.exact, found.by, found.problem) == (10, "content and pixels", "")
    assert 19 <= found.n <= 20
    rows = listed(result)
    for row in rows:
        number = row["test"].removesuffix(".png").rpartition("/")[2]
        assert f"/copy{number}." in row["train"]
        assert row["test_path"] == f"{photos}/test/{row['test']}" and row["train_path"].startswith(f"{photos}/train/")
    assert [row["how"] for row in rows].count("exact") == 10
    scores = records.read_scores(result.file)
    kept = ~np.isin(scores.ids, [row["test"] for row in rows])
    right = scores.scores.argmax(axis=1) == scores.labels
    assert found.without.n == kept.sum() == 60 - found.n
    assert found.without.value == pytest.approx(100 * right[kept].mean())
    assert found.without.low <= found.without.value <= found.without.high
    # Their copies have the wrong label, so with k = 1 they are what is wrong.
    assert found.without.value > result.metrics["top1"].value + 10
    assert records.read(result.file).overlaps == found


def test_nothing_of_the_measurement_itself_changes(photos):
    (on,) = evaluate(photos)
    list_ = on.file.parent / on.overlaps.pairs_file
    assert list_.is_file() and "overlaps" in on.timings
    (off,) = evaluate(photos, run=RunSettings(device="cpu", workers=0, overlaps=False))
    assert off.overlaps is None and not list_.exists()
    assert (off.id, off.metrics, off.selected, off.floors) == (on.id, on.metrics, on.selected, on.floors)


def test_without_floors_the_backbones_own_features_are_compared(photos):
    (result,) = evaluate(photos, run=RunSettings(device="cpu", workers=0, floors=False))
    assert result.overlaps.by == "content and features of Net"
    assert result.overlaps.exact == 10 and result.overlaps.n >= 15


def test_clean_data_have_none(photos):
    for file in photos.rglob("copy*"):
        file.unlink()
    (result,) = evaluate(photos)
    assert (result.overlaps.n, result.overlaps.without, result.overlaps.pairs_file) == (0, None, None)
    assert not list((photos.parent / "r").rglob("*overlaps*"))


def test_every_protocol_says_it_and_the_search_is_made_once(photos, monkeypatch):
    from sslbench.evaluation import overlaps

    calls = []
    search = overlaps.near_pairs
    monkeypatch.setattr(overlaps, "near_pairs", lambda *a, **k: calls.append(1) or search(*a, **k))
    settings = {"knn": {"k": 3}, "low-shot": {"k": 5, "draws": 2}}
    results = evaluate(photos, protocols=["knn", "svm", "low-shot", "clustering", "geometry"], settings=settings)
    assert len(calls) == 1
    by_name = {result.protocol.name: result.overlaps for result in results}
    assert {by_name[name].n for name in ("knn", "svm", "low-shot")} == {by_name["knn"].n}
    assert by_name["svm"].without is not None and by_name["low-shot"].without is not None
    assert by_name["geometry"] is None, "one part alone"


@pytest.mark.parametrize("protocol", ["low-shot", "lsr"])
def test_a_mean_over_draws_stays_one_without_overlaps(photos, protocol):
    (result,) = evaluate(photos, protocols=[protocol], settings={protocol: {"k": 2, "draws": 4}})
    scores = records.read_scores(result.file)
    kept = ~np.isin(scores.ids, [row["test"] for row in listed(result)])
    right = [(draw.argmax(axis=1) == scores.labels)[kept].mean() for draw in scores.draws]
    assert len(right) == 4 and len(set(right)) > 1
    found = result.overlaps.without
    assert found.value == pytest.approx(100 * np.mean(right)) and found.low < found.value < found.high


def test_leave_one_out_has_no_train_part_to_overlap_with(photos):
    (result,) = evaluate(photos, settings={"knn": {"k": 1, "leave_one_out": True}})
    assert result.overlaps is None


@pytest.mark.parametrize(("kind", "metric"), [("multi", "mAP"), ("value", "r2")])
def test_other_labels_too(photos, kind, metric):
    rng = np.random.default_rng(1)
    lines = ["path,split," + ("cat,dog" if kind == "multi" else "height")]
    for part in ("train", "test"):
        for file in sorted((photos / part).rglob("*.*g")):
            label = int(file.parent.name == "b")
            values = [label, rng.integers(0, 2)] if kind == "multi" else [label + rng.normal() / 9]
            lines.append(",".join(map(str, (file.relative_to(photos), part, *values))))
    (photos / "all.csv").write_text("\n".join(lines) + "\n")
    columns = {"value_columns": ("height",)} if kind == "value" else {}
    (result,) = evaluate(photos, data=photos / "all.csv", protocols=["linear"], settings={}, **columns)
    assert result.headline == metric and result.overlaps.n >= 19
    assert result.overlaps.without.n == 60 - result.overlaps.n and result.overlaps.without.value is not None


def embeddings(folder, train, test):
    for name, x in (("train", train), ("test", test)):
        np.save(folder / f"{name}.npy", x.astype(np.float32))
        (folder / f"{name}.csv").write_text("label\n" + "\n".join("ab"[i % 2] for i in range(len(x))) + "\n")
    files = (folder / f"{name}" for name in ("train.npy", "train.csv", "test.npy", "test.csv"))
    pair = read_train_test(*files, label_column=None, test_fraction=0.2, seed=0)
    return evaluate_features(pair, [make_task("knn", {"k": 3})], RUN, out=folder / "r", command="")


def test_embeddings_made_elsewhere_are_judged_by_themselves(tmp_path):
    rng = np.random.default_rng(0)
    train, test = rng.normal(size=(200, 16)), rng.normal(size=(50, 16))
    test[7] = train[33] + 0.01
    (result,) = embeddings(tmp_path, train, test)
    assert (result.overlaps.n, result.overlaps.exact, result.overlaps.by) == (1, 0, "features")
    (row,) = listed(result)
    assert (row["test"], row["train"], row["how"]) == ("000000007", "000000033", "near")


def test_collapsed_embeddings_are_not_judged(tmp_path):
    test = np.ones((50, 8))
    (result,) = embeddings(tmp_path, np.ones((200, 8)), test)
    assert result.overlaps.n == 0 and "all equal" in result.overlaps.problem


def test_the_leaderboard_says_it(photos):
    (result,) = evaluate(photos)
    board = table([records.read(result.file)])
    row = board.rows[[row.label for row in board.rows].index("Net")]
    (made,) = how_made(row, row.cells[0])
    text = dict(made)["overlaps of train and test"]
    assert text.startswith(
        f"{result.overlaps.n} suspected by content and pixels (10 with the same content), listed in "
    )
    assert f"top1 without them {result.overlaps.without.value:.2f} (" in text
    assert any("of test suspected to be in train" in flag for flag in row.flags)


def test_a_disk_that_is_full_is_an_error_of_one_line(photos, monkeypatch):
    def full(file, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records, "replace_file", full)
    with pytest.raises(SslbenchError, match=r"cannot write .*overlaps\.csv: No space left"):
        evaluate(photos, run=RunSettings(device="cpu", workers=0, floors=False))


def test_suites_hold_it_too(photos):
    request = Request("pixels", str(photos), (make_task("knn", {"k": 1}),))
    results, holes = run_suite(
        [SuiteCell("pixels", "knn", (request,))], RUN, store=photos.parent / "s", out=photos.parent / "o", command=""
    )
    assert not holes and results[0].overlaps.n >= 19
