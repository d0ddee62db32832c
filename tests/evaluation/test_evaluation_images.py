"""Protocols on images from end to end: weights and data in, records out; several trainings with different seeds."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.coloured_pictures import class_folders
from helpers.sample_record import sample
from scipy import stats
from torch import nn

import sslbench
from sslbench import evaluation, protocols
from sslbench.errors import DataError, UsageError
from sslbench.evaluation import RunSettings
from sslbench.evaluation.trainings import together
from sslbench.leaderboard.board import table
from sslbench.leaderboard.compare import compare
from sslbench.metrics.differences import Predictions, difference
from sslbench.results import MetricValue, records
from sslbench.results.records import read_scores, read_tree, scores_path
from sslbench.targets.classes import Classes

SETTINGS = {"epochs": 4, "batch_size": 8, "lr": [1.0, 3.0], "flip": 0.0}
RUN = RunSettings(workers=0, batch_size=8)


class Colours(nn.Module):
    """Averages of quarters: a layer to name, and what the network returns."""

    def __init__(self):
        super().__init__()
        self.quarters = nn.AvgPool2d(4)
        self.flat = nn.Flatten()

    def forward(self, x):
        return self.flat(self.quarters(x))


@pytest.fixture
def photos(tmp_path):
    rng, colours = np.random.default_rng(0), {"red": (220, 40, 40), "green": (40, 220, 40), "blue": (40, 40, 220)}
    return class_folders(
        tmp_path / "photos", colours, lambda c: list(colours.values())[c] + rng.integers(-40, 36, (12, 16, 3))
    )


def evaluate(photos, settings=SETTINGS, *, protocols=("linear-online",), run=RUN, **more):
    return sslbench.evaluate(
        Colours(),
        photos,
        protocols=list(protocols),
        settings={"linear-online": settings} if "linear-online" in protocols else {},
        out=photos.parent / "results",
        run=run,
        preprocessing={"resize": 8, "crop": [8, 8], "mean": [0.5] * 3, "std": [0.25] * 3},
        **more,
    )


def test_one_record_per_layer_comes_out_of_one_training(photos):
    results = evaluate(photos, layers=("quarters:flatten", "flat"))
    assert [result.layer for result in results] == ["quarters:flatten", "flat"]
    for result in results:
        assert result.protocol.name == "linear-online" and result.metrics["top1"].value == 100
        assert result.selected["lr"] in (1.0, 3.0) and len(result.variants) == 1
        assert result.floors["chance"]["top1"] == pytest.approx(100 / 3)
        assert result.costs.parameters == 0, "the network of this test has none"
        assert result.costs.stages["linear-online"].seconds > 0
        assert result.probabilities == "softmax" and result.metrics["ece"].value < 50
        assert result.missing_floors["untrained"] == "Colours has no trainable parameters"
        assert "linear-online" in result.missing_floors["pixels"]
        assert result.file.is_file() and json.loads(result.file.read_text())["protocol"]["name"] == "linear-online"
    assert len({result.id for result in results}) == 2
    assert not list((photos.parent / "results").rglob("*.checkpoints")), "removed when the records are there"


def test_protocols_on_features_run_beside_it(photos):
    results = evaluate(photos, protocols=("knn", "linear-online"), run=dataclasses.replace(RUN, floors=False))
    assert {result.protocol.name for result in results} == {"knn", "linear-online"}
    assert not any(result.floors for result in results)


def test_the_untrained_backbone_beside_it_when_asked_for(tmp_path, photos):
    request = evaluation.Request(
        weights=str(weights_file(tmp_path)),
        data=str(photos),
        tasks=(evaluation.make_task("linear-online", {**SETTINGS, "epochs": 1, "lr": [1.0]}),),
        preprocessing={"resize": 16, "crop": [16, 16]},
    )
    prepared = evaluation.prepare(request, dataclasses.replace(RUN, baseline=True))
    out = tmp_path / "out"
    (result,) = evaluation.evaluate(prepared, store=tmp_path / "store", out=out, command="test")
    assert set(result.floors) >= {"chance", "majority", "untrained"}
    assert set(result.missing_floors) == {"pixels"}
    assert sorted(path.name.rpartition("-")[0] for path in out.glob("linear-online/*.json")) == [
        "resnet_basic_1-1-1-1w0.125-untrained",
        "w.torch",
    ]
    assert not list(out.rglob("*.checkpoints"))


def weights_file(folder: Path) -> Path:
    from sslbench.backbones.build import build
    from sslbench.weights.save import save

    path = folder / "w.torch"
    backbone = build("resnet_basic_1-1-1-1w0.125", seed=3)
    save(path, backbone.module.state_dict(), backbone=backbone.name, metadata={})
    return path


def test_unreadable_images_stop_it_or_are_left_out_and_counted(photos):
    (photos / "train" / "red" / "3.png").write_bytes(b"no picture")
    (photos / "val" / "blue" / "1.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match="1 of 36 images"):
        evaluate(photos)
    (result,) = evaluate(photos, run=dataclasses.replace(RUN, on_error="skip"))
    assert (result.data.train.n, result.data.train.n_used) == (36, 35)
    assert (result.data.test.n, result.data.test.n_used) == (18, 17)
    assert [Path(row.path).name for row in result.data.unreadable] == ["3.png", "1.png"]


def test_features_made_elsewhere_are_refused(tmp_path):
    from sslbench.features.external import read_train_test

    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32))
    (tmp_path / "y.csv").write_text("label\n" + "\n".join(["a", "b"] * 10) + "\n")
    pair = read_train_test(
        tmp_path / "x.npy", tmp_path / "y.csv", None, None, label_column=None, test_fraction=0.5, seed=0
    )
    task = evaluation.make_task("linear-online", {})
    with pytest.raises(UsageError, match="takes images and cannot run on features"):
        evaluation.evaluate_features(pair, [task], RUN, out=tmp_path / "out", command="test")


def test_what_cannot_work_is_said_before_any_image_is_decoded(photos, monkeypatch):
    from sslbench.data.loading import loader

    monkeypatch.setattr(loader, "read", lambda *_: pytest.fail("an image was decoded"))
    with pytest.raises(UsageError, match="has no modules blocks"):
        evaluate(photos, {**SETTINGS, "blocks": [4]})


def test_the_global_random_state_stays_as_it_was(photos):
    torch.manual_seed(1)
    wanted = torch.rand(3)
    torch.manual_seed(1)
    evaluate(photos)
    assert torch.equal(torch.rand(3), wanted)


HARD = {**SETTINGS, "epochs": 1, "lr": [0.01], "batch_size": 6}
THREE = dataclasses.replace(RUN, seeds=3, floors=False)


def test_the_mean_of_three_seeds_has_their_values_range_and_interval(photos):
    (result,) = evaluate(photos, HARD, run=THREE)
    singles = [records.read(result.file.with_name(each.record_file)) for each in result.trainings]
    assert [(one.seed, one.seeds, one.id) for one in singles] == [
        (s, 1, t.record) for s, t in zip(range(3), result.trainings, strict=True)
    ]
    top1 = [one.metrics["top1"] for one in singles]
    values = np.array([metric.value for metric in top1])
    assert len(set(values)) > 1, "the trainings differ"
    half = stats.t.ppf(0.975, 2) * values.std(ddof=1) / math.sqrt(3)
    below, above = (np.mean([abs(getattr(m, end) - m.value) for m in top1]) for end in ("low", "high"))
    found = result.metrics["top1"]
    assert found.value == pytest.approx(values.mean())
    assert found.low == pytest.approx(max(0, values.mean() - math.hypot(below, half)))
    assert found.high == pytest.approx(min(100, values.mean() + math.hypot(above, half)))
    assert (result.ranges["top1"].lowest, result.ranges["top1"].highest) == (values.min(), values.max())
    assert [each.metrics["top1"] for each in result.trainings] == values.tolist()
    assert any("the mean of 3 trainings" in note for note in result.notes)
    assert not any("One training" in note for note in result.notes)
    assert all(any("One training" in note for note in one.notes) for one in singles)
    draws = read_scores(scores_path(result)).draws
    assert [draw.tolist() for draw in draws] == [read_scores(scores_path(one)).scores.tolist() for one in singles]


def test_the_interval_of_a_metric_that_is_not_known_here_has_no_bounds():
    ends = ((-4.0, -6.0, -1.0), (150.0, 140.0, 170.0))
    metrics = [{"own": MetricValue(value=value, low=low, high=high, n=4)} for value, low, high in ends]
    parts = [dataclasses.replace(sample(), seed=i, headline="own", metrics=values) for i, values in enumerate(metrics)]
    found = together(parts, seeds=2).metrics["own"]
    half = stats.t.ppf(0.975, 1) * 154 / 2  # the standard deviation is 154 / sqrt(2)
    wanted = (73, 73 - math.hypot(6, half), 73 + math.hypot(11.5, half))
    assert (found.value, found.low, found.high) == pytest.approx(wanted)


def test_as_many_records_as_seeds_are_put_together():
    with pytest.raises(ValueError, match="1 records of 2 trainings"):
        together([sample()], seeds=2)


def test_finished_seeds_are_not_trained_again(photos, monkeypatch):
    kind = protocols.find("linear-online").kind
    seeds = []

    def counting(inputs):
        seeds.append(inputs.seed)
        if seeds == [0, 1]:
            raise KeyboardInterrupt
        return original(inputs)

    original = kind.run
    definition = dataclasses.replace(protocols.find("linear-online"), kind=dataclasses.replace(kind, run=counting))
    find = protocols.find
    monkeypatch.setattr(protocols, "find", lambda name: definition if name == "linear-online" else find(name))
    with pytest.raises(KeyboardInterrupt):
        evaluate(photos, HARD, run=THREE)
    (first,) = evaluate(photos, HARD, run=THREE)
    assert seeds == [0, 1, 1, 2]
    (again,) = evaluate(photos, HARD, run=THREE)
    assert seeds == [0, 1, 1, 2] and again.metrics == first.metrics and again.timings == first.timings
    (more,) = evaluate(photos, HARD, run=dataclasses.replace(THREE, seeds=4))
    assert seeds == [0, 1, 1, 2, 3] and more.id != first.id


def test_trainings_made_apart_are_put_together_and_not_trained_again(tmp_path, photos, monkeypatch):
    request = evaluation.Request(
        weights=str(weights_file(tmp_path)),
        data=str(photos),
        tasks=(evaluation.make_task("linear-online", HARD),),
        preprocessing={"resize": 16, "crop": [16, 16]},
    )
    run, out = dataclasses.replace(THREE, floors=True, baseline=True), tmp_path / "out"

    def at(folder, **changed):
        prepared = evaluation.prepare(request, dataclasses.replace(run, **changed))
        return evaluation.evaluate(prepared, store=tmp_path / "store", out=folder, command="test")

    for seed in (2, 0, 1):
        (one,) = at(out, only_seed=seed)
        assert (one.seed, one.seeds) == (seed, 1)
    trained = {record.id for record in read_tree(out)}
    assert len(trained) == 6, "three trainings, and three of the untrained backbone"
    monkeypatch.setattr("sslbench.evaluation.images._ImageEvaluation._run", None)
    (joined,) = at(out)
    monkeypatch.undo()
    (whole,) = at(tmp_path / "whole")
    assert {each.record for each in joined.trainings} < trained
    assert (joined.id, joined.metrics, joined.floors) == (whole.id, whole.metrics, whole.floors)
    with pytest.raises(UsageError, match="whose seeds are 0 to 2"):
        at(out, only_seed=3)
    knn = dataclasses.replace(request, tasks=(evaluation.make_task("knn", {}),))
    with pytest.raises(UsageError, match="only_seed=1 has no effect on knn"):
        evaluation.prepare(knn, dataclasses.replace(run, only_seed=1))


def test_a_single_seed_is_the_record_of_that_seed_alone(photos):
    (alone,) = evaluate(photos, HARD, run=dataclasses.replace(THREE, seed=1, seeds=1))
    (result,) = evaluate(photos, HARD, run=THREE)
    assert result.trainings[1].record == alone.id


def test_the_untrained_backbone_is_trained_with_the_same_seeds(tmp_path, photos, caplog):
    request = evaluation.Request(
        weights=str(weights_file(tmp_path)),
        data=str(photos),
        tasks=(evaluation.make_task("linear-online", {**HARD, "lr": [1e-4]}),),
        preprocessing={"resize": 16, "crop": [16, 16]},
    )
    prepared = evaluation.prepare(request, dataclasses.replace(THREE, floors=True, baseline=True))
    out = tmp_path / "out"
    (result,) = evaluation.evaluate(prepared, store=tmp_path / "store", out=out, command="test")
    found = {one.id: one for one in read_tree(out)}
    floor = next(one for one in found.values() if one.weights.untrained and one.trainings)
    assert len(found) == 8 and [each.seed for each in floor.trainings] == [0, 1, 2]
    assert result.floors["untrained"]["top1"] == floor.metrics["top1"].value
    (warning,) = (note for note in result.notes if "is not clearly above the untrained" in note)
    apart = compare(result, floor)
    assert f"({apart.difference:+.1f} points, the interval reaches {apart.low:+.1f})" in warning
    assert apart.trainings == (3, 3) and "unknown" not in warning
    assert not list(out.rglob("*.checkpoints"))


def test_comparisons_and_boards_use_all_seeds(photos):
    (one,) = evaluate(photos, HARD, run=THREE)
    (two,) = evaluate(photos, {**HARD, "lr": [3.0]}, run=THREE)
    two = dataclasses.replace(two, protocol=one.protocol)  # as if from other weights
    found = compare(one, two)
    assert found.trainings == (3, 3) and found.p_mcnemar is None
    scores = [read_scores(scores_path(each)) for each in (one, two)]
    answers = [Predictions.of(0, each.scores, each.draws, seeds=3) for each in scores]
    assert answers[0].trainings == ("seed 0, draw 0", "seed 1, draw 0", "seed 2, draw 0")
    wanted = difference("top1", Classes, scores[0].labels, *answers)
    assert (found.low, found.high) == pytest.approx((100 * wanted.low, 100 * wanted.high))
    singles = [records.read(one.file.with_name(each.record_file)) for each in one.trainings]
    assert compare(singles[0], dataclasses.replace(singles[1], seed=0)).trainings == (1, 1)

    board = table([result for result in read_tree(one.file.parent) if result.protocol == one.protocol])
    (cell,) = (
        row.cells[0] for row in board.rows if not row.floor and row.cells[0] is not None and row.cells[0].records
    )
    assert [record.id for record in cell.records] == [one.id], "the single trainings do not count a second time"
    assert any("mean of 3 seeds" in flag for row in board.rows for flag in row.flags)


def test_seeds_without_effect_are_refused(photos):
    with pytest.raises(UsageError, match="seeds=3 has no effect on knn"):
        evaluate(photos, protocols=["knn"], run=THREE)
    with pytest.raises(UsageError, match="seeds should be 1 or more"):
        evaluate(photos, HARD, run=dataclasses.replace(RUN, seeds=0))


def test_seeds_and_draws_exclude_each_other(tmp_path, photos):
    from sslbench.evaluation import make_task
    from sslbench.evaluation.trainings import check_seeds

    with pytest.raises(UsageError, match="exclude each other"):
        check_seeds(THREE, [make_task("finetune", {"draws": 5, "per_class": (1,)})])
    check_seeds(THREE, [make_task("finetune", {}), make_task("knn", {})])


def test_records_of_single_protocols_keep_their_ids(photos):
    """The number of trainings enters the key only where it is larger than one."""
    (single,) = evaluate(photos, HARD, run=dataclasses.replace(THREE, seeds=1))
    content = json.loads(single.file.read_text())
    assert content["seeds"] == 1 and content["trainings"] == []
    from sslbench.identity import record_id

    assert (
        record_id(dataclasses.replace(single, seeds=None))
        == single.id
        != record_id(dataclasses.replace(single, seeds=2))
    )


def test_protocols_that_take_other_views_of_the_same_maps_are_named():
    tasks = tuple(evaluation.make_task(name, {}) for name in ("segmentation", "segmentation-knn"))
    with pytest.raises(UsageError, match="segmentation cannot run together with segmentation-knn"):
        evaluation.Request(weights="random", data="maps", tasks=tasks).view  # noqa: B018
