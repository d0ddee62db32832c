"""Detection with several seeds, comparisons of its records, error analysis, and detections made elsewhere."""

import csv
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from test_cli_detection import NET, QUICK, world

from sslbench.backbones.build import build
from sslbench.data.open import open_objects
from sslbench.detection.train import Trained
from sslbench.leaderboard import table
from sslbench.metrics.detection import Detections, coco_ap
from sslbench.metrics.detection.average_precision import detector_difference
from sslbench.metrics.detection.files import read_objects, read_results, write_objects
from sslbench.results.records import predictions_paths, read_tree
from sslbench.runtime.signals import StoppedError

__all__ = ["world"]  # the fixture: ten pictures in the current folder

RUN = ("eval", "detection", *NET, *QUICK)


def jittered(truth, jitter, seed):
    rng = np.random.default_rng(seed)
    boxes = truth.boxes + rng.normal(0, jitter, truth.boxes.shape)
    scores = rng.uniform(0.3, 1, len(truth)).astype(np.float32)
    return Detections(truth.images, boxes.astype(np.float32), scores, truth.labels)


@pytest.fixture
def trained(monkeypatch):
    """Seeds of the trainings, in whose place the objects come back moved by the seed; what is in `stop` is stopped."""
    from sslbench.detection.backends import DetectorRun
    from sslbench.evaluation import on_objects

    seeds, stop = [], []

    def moved(settings, backbone, data, training, **_):
        seeds.append(training.seed)
        if training.seed in stop:
            raise StoppedError(15, "stopped")
        found = jittered(data.test.truth(), 1 + training.seed, training.seed)
        return DetectorRun(None, Trained(1.5, 2, None), found, 0.1)

    monkeypatch.setattr(on_objects, "run_backend", moved)
    return seeds, stop


def whole():
    return next(result for result in read_tree(Path("results")) if result.trainings)


def test_seeds_are_told_before_they_are_trained(world, sslbench):
    code, out, err = sslbench(*RUN, "seeds=3", "--baseline", "random", "--dry-run")
    assert code == 0 and re.search(r"detection +3, with seeds 0 to 2", out), err
    assert not Path("results").exists()


def test_the_mean_of_seeds_is_resumed_repeated_compared_and_analysed(world, sslbench, trained):
    seeds, stop = trained
    stop.append(2)
    code, _, err = sslbench(*RUN, "seeds=3")
    assert code != 0 and seeds == [0, 1, 2] and "training 3 of 3 (seed 2)" in err
    stop.clear()
    code, out, err = sslbench(*RUN, "seeds=3")
    assert code == 0 and seeds == [0, 1, 2, 2] and err.count("finished before") == 2, err
    assert "the mean of 3 trainings" in out
    result = whole()
    singles = {one.id: one for one in read_tree(Path("results")) if not one.trainings}
    values = np.array([singles[each.record].metrics["AP"].value for each in result.trainings])
    metrics = [singles[each.record].metrics["AP"] for each in result.trainings]
    half = stats.t.ppf(0.975, 2) * values.std(ddof=1) / math.sqrt(3)
    below = np.mean([m.value - m.low for m in metrics])
    assert result.metrics["AP"].value == pytest.approx(values.mean()) and len(set(values)) == 3
    assert result.metrics["AP"].low == pytest.approx(max(0, values.mean() - math.hypot(below, half)))
    assert result.timings["train"] == 4.5 and result.seeds == 3

    before = result.file.read_bytes()
    code, again, err = sslbench(*RUN, "seeds=3")
    assert code == 0 and "nothing is computed" in err and seeds == [0, 1, 2, 2] and again == out
    assert result.file.read_bytes() == before

    code, out, err = sslbench("show", str(result.file), "--out", "shown")
    assert code == 0, err
    with Path("shown/classes.csv").open() as file:
        rows = list(csv.DictReader(file))
    first = singles[result.trainings[0].record]
    assert {row["class"]: float(row["AP"]) for row in rows} == pytest.approx(first.per_class, abs=1e-3)
    page = Path("shown/index.html").read_text()
    assert "It would gain, if all errors of a kind were mended" in page and "precision and recall" in page
    assert Path("shown/precision-and-recall.png").is_file() and Path("shown/errors.csv").is_file()


def test_several_weights_are_trained_in_turn_and_once(world, sslbench, trained):
    seeds, _ = trained
    state = build("resnet18w0.125").module.state_dict()
    torch.save({**state, "conv1.weight": state["conv1.weight"] * 1.1}, "w.pth")
    words = ("eval", "detection", "--weights", "random", "w.pth", "wrong.pth", *NET[2:], *QUICK)
    for _ in range(2):
        code, _, err = sslbench(*words)
        assert code == 1 and "1 of 3 cells are holes" in err, err
        assert {one.weights.name for one in read_tree(Path("results"))} == {"w.pth", "resnet18w0.125 untrained"}
    assert seeds == [0, 0]


def test_detectors_trained_with_other_settings_are_compared_by_their_detections(world, sslbench, trained):
    for rate in (0.01, 0.02):
        code, _, err = sslbench(*RUN, f"lr={rate}")
        assert code == 0, err
    one, other = (result.file for result in read_tree(Path("results")))
    code, _, err = sslbench("compare", str(one), str(other))
    assert code == 1 and "  setting lr: 0.0" in err
    found = one.with_name(one.stem + ".predictions.json")
    assert f"trained differently: sslbench score {found} --data ... for both, then compare." in err


def test_seeds_trained_by_jobs_of_their_own_are_put_together(world, sslbench, trained):
    seeds, _ = trained
    code, out, err = sslbench(*RUN, "seeds=3", "--launcher", "slurm", "--dry-run")
    assert code == 0, err
    jobs = re.split(r"job \d of 3:\n", out)[1:]
    assert [re.findall(r"only_seed: (\d)", job) for job in jobs] == [["0"], ["1"], ["2"]]
    for job in reversed(jobs):
        Path("job.yaml").write_text(job)
        code, _, err = sslbench("run", "job.yaml")
        assert code == 0, err
    assert seeds == [2, 1, 0]
    assert [one.data.split_seed for one in sorted(read_tree(Path("results")), key=lambda one: one.seed)] == [None, 0, 0]
    code, _, err = sslbench(*RUN, "seeds=3")
    assert code == 0 and seeds == [2, 1, 0] and err.count("finished before") == 3, err
    joined = whole()
    code, _, err = sslbench(*RUN, "seeds=3", "--out", "whole")
    assert code == 0 and seeds == [2, 1, 0, 0, 1, 2], err
    at_once = next(result for result in read_tree(Path("whole")) if result.trainings)
    assert (joined.id, joined.metrics, joined.ranges) == (at_once.id, at_once.metrics, at_once.ranges)
    code, _, err = sslbench(*RUN, "seeds=3", "only_seed=3")
    assert code == 2 and "whose seeds are 0 to 2" in err


def truth_of(name="squares.json"):
    (source,) = open_objects(name).values()
    return source, source.truth()


def as_rows(source, found, image=lambda source, i: source.target.numbers[i]):
    return [
        {
            "image_id": image(source, i),
            "category_id": source.target.class_numbers[label],
            "bbox": [float(x1), float(y1), float(x2) - float(x1), float(y2) - float(y1)],
            "score": float(score),
        }
        for i, label, (x1, y1, x2, y2), score in zip(found.images, found.labels, found.boxes, found.scores, strict=True)
    ]


def test_detections_made_elsewhere_are_scored_ranked_and_compared(world, sslbench):
    source, truth = truth_of()
    founds = {
        name: jittered(truth, jitter, seed)
        for name, jitter, seed in (("a", 1, 0), ("b", 2, 1), ("c", 3, 2), ("d", 2, 3))
    }
    for name, found in founds.items():
        Path(f"{name}.json").write_text(json.dumps(as_rows(source, found)))
    code, out, err = sslbench("score", "a.json", "--data", "squares.json", "--name", "good")
    assert code == 0, err
    (good,) = read_tree(Path("results"))
    wanted = coco_ap(truth, founds["a"]).metrics
    found = {name: (m.value, m.low, m.high) for name, m in good.metrics.items() if m.value is not None}
    assert found["AP"] == pytest.approx([100 * value for value in wanted["AP"]])
    assert found["AP75"][0] == pytest.approx(100 * wanted["AP75"][0])
    assert "constant box" in good.missing_floors and "One training" in " ".join(good.notes)

    code, out, err = sslbench(
        "score", "d.json", "b.json", "--data", "squares.json", "--name", "both", "--test-data", "squares.json"
    )
    assert code == 0 and "the mean of 2 trainings" in out, err
    both = whole()
    assert both.floors["constant box"]["AP"] is not None
    code, out, err = sslbench("score", "c.json", "--data", "squares.json", "--name", "poor")
    assert code == 0, err
    poor = next(result for result in read_tree(Path("results")) if result.weights.name == "poor")

    code, out, err = sslbench("compare", str(good.file), str(poor.file), "--metric", "AP75(wide)", "--json")
    assert code == 0, err
    (row,) = json.loads(out)
    apart = detector_difference(truth, {"seed 0": founds["a"]}, {"seed 0": founds["c"]}, "AP75(wide)", "coco", seed=0)
    assert (row["difference"], row["low"], row["high"]) == pytest.approx(
        [100 * v for v in (apart.difference, apart.low, apart.high)]
    )
    assert row["trainings"] == [1, 1] and row["value_a"] > row["value_b"]
    code, out, err = sslbench("compare", str(both.file), str(both.file))
    assert code == 0 and "tied" in out and "Means over 2 trainings" in out, err
    code, _, err = sslbench("compare", str(good.file), str(poor.file), "--metric", "AP57")
    assert code == 1 and "'AP57' cannot be compared for detections" in err
    code, out, err = sslbench("leaderboard", "results")
    assert code == 0 and "good" in out and "poor" in out, err


def test_detectors_tied_with_the_best_are_marked_on_leaderboards_as_compare_finds_them(world, sslbench, monkeypatch):
    source, truth = truth_of()
    founds = {"good": jittered(truth, 1, 0), "near": jittered(truth, 1.05, 1), "poor": jittered(truth, 1, 2)}
    founds["poor"].boxes[:] += 5
    for name, found in founds.items():
        Path(f"{name}.json").write_text(json.dumps(as_rows(source, found)))
        code, _, err = sslbench("score", f"{name}.json", "--data", "squares.json", "--name", name)
        assert code == 0, err
    files = {result.weights.name: str(result.file) for result in read_tree(Path("results"))}
    cells = {row.label: row.cells[0] for row in table(read_tree(Path("results"))).rows if not row.floor}
    best = next(name for name, cell in cells.items() if cell.best)
    for name, cell in cells.items():
        _, out, _ = sslbench("compare", files[best], files[name], "--json")
        assert cell.tied == (json.loads(out)[0]["verdict"] == "tied"), name
    assert [cells[name].tied for name in ("good", "near", "poor")] == [True, True, False]
    monkeypatch.setattr("sslbench.leaderboard.marks._DETECTIONS_BYTES", 1000)
    board = table(read_tree(Path("results")))
    assert [row.cells[0].tied for row in board.rows if row.label in cells and row.label != best] == [None, None]
    assert any("no ties are marked" in note for note in board.notes)


def test_names_of_images_and_classes_stand_for_their_numbers(world, sslbench):
    source, truth = truth_of()
    rows = as_rows(source, jittered(truth, 2, 0))
    Path("numbers.json").write_text(json.dumps(rows))
    named = [
        {
            **row,
            "image_id": source.ids[source.target.numbers.index(row["image_id"])],
            "category_id": "wide"
            if row["category_id"] == source.target.class_numbers[source.target.classes.index("wide")]
            else "tall",
        }
        for row in rows
    ]
    Path("names.json").write_text(json.dumps(named))
    floats = [{**row, "image_id": float(row["image_id"]), "category_id": float(row["category_id"])} for row in rows]
    Path("floats.json").write_text(json.dumps(floats))  # as of a column of floats
    for name in ("numbers", "names", "floats"):
        code, _, err = sslbench("score", f"{name}.json", "--data", "squares.json", "--out", name)
        assert code == 0, err
    values = [read_tree(Path(name))[0].metrics for name in ("numbers", "names", "floats")]
    assert values[0] == values[1] == values[2]


def changed(rows, **values):
    return [{**rows[0], **values}, *rows[1:]]


BAD = {
    "an unknown image": (
        lambda rows: changed(rows, image_id=999),
        "image_id of 1 of 20 detections is not among the 10 images",
    ),
    "an unknown name": (
        lambda rows: changed(rows, image_id="nothing.png"),
        "is not among the 10 images of squares.json",
    ),
    "an unknown category": (
        lambda rows: changed(rows, category_id=77),
        "category_id of 1 of 20 detections is not among",
    ),
    "no score": (
        lambda rows: [{k: v for k, v in rows[0].items() if k != "score"}, *rows[1:]],
        "without 'score', the first is number 0",
    ),
    "a score of text": (lambda rows: changed(rows, score="high"), "score of detection 0 is not a number: 'high'"),
    "a score without a value": (
        lambda rows: changed(rows, score=float("nan")),
        "score of detection 0 is not a number: nan",
    ),
    "three numbers": (lambda rows: changed(rows, bbox=[1, 2, 3]), "bbox of detection 0 is not four numbers"),
    "a negative width": (lambda rows: changed(rows, bbox=[30, 2, -9, 3]), "has a negative width or height"),
    "corners": (
        lambda rows: [
            {**r, "bbox": [r["bbox"][0], r["bbox"][1], r["bbox"][0] + r["bbox"][2], r["bbox"][1] + r["bbox"][3]]}
            for r in rows
        ],
        "as corners x1, y1, x2, y2 they lie inside",
    ),
    "a resized image": (
        lambda rows: [{**r, "bbox": [3 * v for v in r["bbox"]]} for r in rows],
        "of the boxes reach out of their images",
    ),
    "shares": (lambda rows: [{**r, "bbox": [v / 64 for v in r["bbox"]]} for r in rows], "they are shares of the image"),
    "a manifest": (lambda rows: {"images": [], "annotations": []}, "annotations, not detections?"),
    "a list of lists": (lambda rows: [[1, 2]], "is not a list of detections"),
}


def test_files_that_cannot_be_scored_are_told_with_the_first_entry(world, sslbench):
    source, truth = truth_of()
    wrong = []
    for what, (change, message) in BAD.items():
        Path("bad.json").write_text(json.dumps(change(as_rows(source, jittered(truth, 0, 0)))))
        code, _, err = sslbench("score", "bad.json", "--data", "squares.json")
        if code != 1 or message not in err or "Traceback" in err:
            wrong.append((what, code, err))
    assert wrong == []
    assert not list(Path().rglob("results/**/*.json"))


def test_no_data_and_no_json_are_one_line_each(world, sslbench):
    Path("bad.json").write_text("hello")
    code, _, err = sslbench("score", "bad.json", "--data", "squares.json")
    assert code == 1 and "bad.json is not JSON" in err
    code, _, err = sslbench("score", "bad.json")
    assert code == 2 and "--data is missing" in err
    code, _, err = sslbench("score", "missing.json", "--data", "squares.json")
    assert code == 2 and "there is no file missing.json" in err


def test_files_give_back_detections_and_objects_as_they_were(world, sslbench, trained):
    code, _, err = sslbench(*RUN)
    assert code == 0, err
    (result,) = read_tree(Path("results"))
    objects = read_objects(result.file.with_name(result.objects_file))
    (path,) = predictions_paths(result).values()
    found = read_results(path, objects.image_numbers, objects.class_numbers, objects.sizes)
    wanted = jittered(objects.truth, 1, 0)
    for name in ("images", "boxes", "scores", "labels"):
        assert getattr(found, name).dtype == getattr(wanted, name).dtype
        assert np.array_equal(getattr(found, name), getattr(wanted, name))
    write_objects(Path("copy.npz"), objects)
    again = read_objects(Path("copy.npz"))
    assert (again.ids, again.image_numbers, again.truth.classes) == (
        objects.ids,
        objects.image_numbers,
        objects.truth.classes,
    )
    assert np.array_equal(again.truth.boxes, objects.truth.boxes)
    path.unlink()
    code, _, err = sslbench("compare", str(result.file), str(result.file))
    assert code == 1 and "the predictions of the record are gone" in err
