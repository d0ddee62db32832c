"""Bags against slow loops: pooling, the concordance index, Cox regression, gated attention; what is refused."""

import csv
import dataclasses
import json

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.optimize import minimize

from sslbench.api import evaluate
from sslbench.arrays import rows_of_each
from sslbench.cli.main import main
from sslbench.data.labels import single_labels
from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.metrics.survival import Concordance, censoring_weights, concordance
from sslbench.protocols import bags
from sslbench.protocols._parts import gated_attention
from sslbench.protocols._parts.gated_attention import GatedAttention
from sslbench.protocols.bags import Settings
from sslbench.solvers import cox
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.times import Times
from sslbench.train.loop import NotFiniteError

QUICK = {"projection": 8, "attention": 8, "hidden": (), "epochs": 30, "lr": 0.02, "trainings": 1}


def bags_of_instances(number, seed, target):
    """Bags of 2 to 5 rows, which lie scattered; one row of a bag of class 1 has a large first number."""
    rng = np.random.default_rng(seed)
    classes = np.arange(number) % 2
    groups = rng.permutation(np.repeat(np.arange(number), rng.integers(2, 6, number)))
    x = rng.normal(size=(len(groups), 5)).astype(np.float32)
    x[np.unique(groups, return_index=True)[1], 0] += 6 * classes
    ids = tuple(f"{i:04d}" for i in range(len(groups)))
    return Features(x, target(classes[groups], groups), ids, groups=groups)


def of_classes(values, groups):
    return Classes(("no", "yes"), values)


def of_labels(values, groups):
    return MultiLabel(("no", "yes"), np.stack([1 - values, values], axis=1).astype(np.int8))


def of_times(values, groups):
    return Times(("months", "dead"), np.column_stack([3.0 - 2 * values + groups % 3, groups % 4 > 0]))


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_a_bag_is_the_mean_or_largest_of_its_images_known_by_the_first(pooling):
    part = bags_of_instances(12, 0, of_classes)
    found = bags.pooled(part, pooling, "train")
    firsts = sorted(np.flatnonzero(part.groups == group)[0] for group in range(12))
    assert found.ids == tuple(part.ids[row] for row in firsts) and found.groups is None
    for row, x, label in zip(firsts, found.x, found.target.values, strict=True):
        own = [part.x[i] for i in range(len(part)) if part.groups[i] == part.groups[row]]
        assert x == pytest.approx(getattr(np, pooling)(own, axis=0), abs=1e-6) and label == part.target.values[row]


@pytest.mark.parametrize("target", [of_classes, of_labels, of_times])
def test_metrics_are_of_bags(target):
    parts = [bags_of_instances(number, seed, target) for number, seed in ((60, 1), (40, 2))]
    outcome = bags.run(*parts, Settings(pooling="max"), seed=0)
    value, low, high = outcome.metrics[outcome.headline]
    assert value > (0.7 if target is of_times else 0.9) and low < value <= high and len(outcome.scores) == 40
    assert outcome.notes[0].startswith(f"Samples are bags: 60 train bags of {len(parts[0])} images")


def slow_concordance(times, risks, weights):
    right = pairs = 0.0
    for (time, event), risk, weight in zip(times, risks, weights, strict=True):
        for (other, other_event), other_risk, other_weight in zip(times, risks, weights, strict=True):
            if event and (time < other or (time == other and not other_event)):
                pairs += weight * other_weight
                right += weight * other_weight * (1.0 if risk > other_risk else 0.5 if risk == other_risk else 0.0)
    return right / pairs


def test_the_concordance_index_is_that_of_a_loop_over_pairs_with_ties_and_weights(monkeypatch):
    monkeypatch.setattr("sslbench.metrics.survival._PAIRS", 100)
    rng = np.random.default_rng(0)
    times = np.column_stack([rng.integers(1, 9, 40), rng.integers(0, 2, 40)]).astype(float)
    risks, weights = rng.integers(0, 5, 40).astype(float), rng.integers(0, 3, (2, 40)).astype(float)
    assert concordance(times, risks) == pytest.approx(slow_concordance(times, risks, np.ones(40)))
    found = Concordance(times, risks).statistic(weights)[:, 0]
    assert found == pytest.approx([slow_concordance(times, risks, each) for each in weights])
    assert np.isnan(concordance([[1, 0], [2, 0]], [1, 2])) and np.isnan(concordance([[5, 1], [5, 1]], [1, 2]))


def slow_uno(train, times, risks, tau):
    """Uno's index by its definition: products over the censored times of train, then a loop over pairs."""

    def uncensored(at):
        product = 1.0
        for time in sorted({t for t, event in train if not event and t <= at}):
            lost = sum(t == time and not event for t, event in train)
            product *= 1 - lost / sum(t > time or (t == time and not event) for t, event in train)
        return product

    right = pairs = 0.0
    for (time, event), risk in zip(times, risks, strict=True):
        if event and time < tau and time <= max(t for t, _ in train) and uncensored(time) > 0:
            for (other, other_event), other_risk in zip(times, risks, strict=True):
                if time < other or (time == other and not other_event):
                    pairs += uncensored(time) ** -2
                    right += uncensored(time) ** -2 * (risk > other_risk) + 0.5 * uncensored(time) ** -2 * (
                        risk == other_risk
                    )
    return right / pairs


@pytest.mark.parametrize("tau", [None, 6.0])
def test_unos_index_is_that_of_a_loop_over_pairs_with_weights_of_train(tau):
    rng = np.random.default_rng(1)
    train, times = (
        np.column_stack([rng.integers(1, most, 25), rng.integers(0, 2, 25)]).astype(float) for most in (9, 11)
    )
    risks = rng.integers(0, 5, 25).astype(float)
    index = Concordance(times, risks, censoring_weights(train, times, tau))
    wanted = slow_uno(train, times, risks, np.inf if tau is None else tau)
    assert index.statistic(np.ones((1, 25))) == pytest.approx(wanted) and wanted != concordance(times, risks)
    # Without censoring in train all events weigh the same.
    assert set(censoring_weights(np.ones((3, 2)) * [[20, 1]], times)) == {0.0, 1.0}


def test_unos_index_stands_beside_harrells_with_its_truncation():
    parts = [bags_of_instances(number, seed, of_times) for number, seed in ((60, 1), (40, 2))]
    outcome = bags.run(*parts, Settings(), seed=0)
    value, low, high = outcome.metrics["uno_c_index"]
    assert low < value < high and outcome.headline == "c_index" and outcome.chance["uno_c_index"] == 0.5
    last = float(parts[0].target.values[:, 0].max())
    early = bags.run(*parts, Settings(tau=last / 2), seed=0)
    assert early.metrics["uno_c_index"] != outcome.metrics["uno_c_index"]
    assert early.metrics["c_index"] == outcome.metrics["c_index"]
    assert any("Uno's index does not count" in note for note in early.notes)
    for target, tau, message in ((of_times, last + 1, "the last time of train is"), (of_classes, 3.0, "tau=3 is of")):
        train = bags_of_instances(60, 1, target)
        with pytest.raises(UsageError, match=message):
            bags.run(train, train, Settings(tau=tau), seed=0)


def slow_likelihood(weights, x, times, penalty):
    total = penalty * weights @ weights / 2
    for row, (time, event) in zip(x, times, strict=True):
        if event:
            total += np.log(sum(np.exp(x[i] @ weights) for i in range(len(x)) if times[i, 0] >= time)) - row @ weights
    return total


@pytest.mark.parametrize("penalty", [0.1, 20.0])
def test_cox_regression_is_the_optimum_of_a_slow_partial_likelihood(penalty):
    rng = np.random.default_rng(3)
    x, times = rng.normal(size=(25, 3)), np.column_stack([rng.integers(1, 8, 25), rng.integers(0, 2, 25)]).astype(float)
    weights, converged = cox.fit(x, times, penalty)
    slow = minimize(slow_likelihood, np.zeros(3), (x, times, penalty), tol=1e-12).x
    assert converged and weights == pytest.approx(slow, abs=1e-5)
    # The same from far away, where a full step of Newton's method would leave the optimum behind.
    assert cox.fit(x, times, penalty, start=np.full(3, 5.0))[0] == pytest.approx(weights, abs=1e-6)


def test_attention_is_equation_9_and_the_same_for_bags_in_several_passes(monkeypatch):
    torch.manual_seed(0)
    network = GatedAttention(5, 2, projection=4, attention=3, hidden=(6,)).eval()
    part = bags_of_instances(9, 0, of_classes)
    rows = rows_of_each(bags.bags_of(part, part.groups, "test")[1])
    stored = gated_attention.Bags(part.x, rows, np.zeros(5), np.ones(5), "cpu")
    found = stored.outputs(network, range(9))
    weights = {name: value.double().numpy() for name, value in network.state_dict().items()}

    def linear(name, x):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    for own, output in zip(rows, found, strict=True):
        h = linear("project", part.x[own].astype(float))
        e = [np.tanh(linear("content", row)) / (1 + np.exp(-linear("gate", row))) for row in h]
        a = np.exp([linear("score", row)[0] for row in e])
        z = np.maximum(linear("classifier.0", (a / a.sum()) @ h), 0)
        assert output == pytest.approx(linear("classifier.2", z), abs=1e-5)
    monkeypatch.setattr(gated_attention, "_ROWS", 4)
    assert len(stored.passes(range(9))) > 5 and stored.outputs(network, range(9)) == pytest.approx(found, abs=1e-6)


@pytest.mark.parametrize("target", [of_classes, of_labels])
def test_attention_finds_the_one_image_that_counts_and_the_mean_does_not(target):
    parts = [bags_of_instances(number, seed, target) for number, seed in ((100, 1), (80, 2))]
    settings = dataclasses.replace(Settings(pooling="attention", **QUICK), trainings=2)
    outcome = bags.run(*parts, settings, seed=0)
    assert outcome.metrics[outcome.headline][0] > 0.95 and len(outcome.draws) == 2
    assert outcome.selected["on"] == "held-out 20 % of train" and len(outcome.selected["epochs"]) == 2
    again = bags.run(*parts, settings, seed=0) if target is of_classes else outcome
    assert np.array_equal(again.scores, outcome.scores) and repr(again.metrics) == repr(outcome.metrics)


def test_a_training_that_diverges_ends_with_a_remedy():
    part = bags_of_instances(20, 1, of_classes)
    with pytest.raises(NotFiniteError, match=r"bags: the loss is nan in update 2\nSet a lower lr"):
        bags.run(part, part, Settings(pooling="attention", **QUICK | {"lr": 1e30}), seed=0)


def test_attention_learns_nothing_from_labels_without_meaning():
    train, test = (bags_of_instances(number, seed, of_classes) for number, seed in ((60, 1), (200, 2)))
    mixed = np.random.default_rng(0).integers(0, 2, 60)[train.groups]
    train = dataclasses.replace(train, target=Classes(("no", "yes"), mixed))
    drawn = np.random.default_rng(1).integers(0, 2, 200)[test.groups]
    test = dataclasses.replace(test, target=Classes(("no", "yes"), drawn))
    right = bags.run(train, test, Settings(pooling="attention", **QUICK), seed=0).metrics["top1"][0]
    assert abs(right - 0.5) < 0.18, "200 coins differ more once in two million times"


def refused(match, target=of_classes, kind=UsageError, train=None, **settings):
    part = bags_of_instances(20, 0, target)
    with pytest.raises(kind, match=match):
        bags.run(train(part) if train else part, part, Settings(**settings), seed=0)


def test_what_does_not_go_together_is_refused():
    def no_event(part):
        values = part.target.values * [1, 0]
        return dataclasses.replace(part, target=Times(part.target.classes, values))

    def two_labels(part):
        return dataclasses.replace(part, target=Classes(("no", "yes"), np.arange(len(part)) % 2))

    refused("attention predicts classes, and these samples have times", of_times, pooling="attention")
    refused("chosen on train alone", pooling="attention", select_on="test")
    refused("folds of train alone", of_times, select_on="test")
    refused("no time of train is an event", of_times, DataError, no_event)
    refused("different labels: '0.*' is .* and '0.*' is", of_classes, DataError, two_labels)


def command(*words):
    """Run a command; return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return ended.value.code


def write_table(folder, rows):
    with (folder / "tiles.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["path", "slide", "months", "dead", "split"], *rows])


def tiles(folder):
    """Slides of three grey tiles; the darker, the earlier the event."""
    rows = []
    for slide in range(24):
        for tile in range(3):
            name = f"{slide:02d}-{tile}.png"
            Image.fromarray(np.full((4, 4, 3), 10 * slide + tile, np.uint8)).save(folder / name)
            split = "test" if slide % 3 == 0 else "train"
            rows.append([name, f"s{slide}", slide + 1, ("True", "False")[slide % 4 == 1], split])
    return rows


def test_times_of_a_table_are_scored_by_slide(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path, tiles(tmp_path))
    place = "tiles.csv?group=slide&time=months&event=dead"
    target = open_data(place)["train"].target
    assert isinstance(target, Times) and target.values[0].tolist() == [2, 0] and target.text(0) == "2+"
    words = ("--weights", "pixels:4", "--data", place, "--device", "cpu", "--workers", "0", "--out", "results")
    assert command("eval", "bags", *words, "--groups", "dead") == 0, capsys.readouterr().err
    (file,) = (tmp_path / "results" / "bags").glob("*.json")
    record = json.loads(file.read_text())
    found = record["metrics"]["c_index"]
    assert (found["value"], found["n"]) == (100.0, 8) and record["floors"]["chance"]["c_index"] == 50.0
    assert record["data"]["test"]["n_used"] == 24
    with np.load(file.with_suffix(".scores.npz")) as scores:
        assert scores["ids"].tolist()[:2] == ["00-0.png", "03-0.png"] and scores["scores"].shape == (8, 1)
    assert any("no metric that can be computed per group (dead)" in note for note in record["notes"])


@pytest.mark.parametrize(
    ("option", "row", "message"),
    [
        ("?group=slide&time=months", {}, r"\?time= needs \?event= beside it"),
        ("?time=months&event=dead", {}, "no two images of tiles.csv.* are of one bag"),
        ("?group=slide&time=months&event=dead", {2: -1}, "the column 'months' has -1 in 00-0.png, and a time is 0"),
        ("?group=slide&time=months&event=dead", {3: 2}, "the column 'dead' has 2 in 00-0.png, and 1 is an event"),
        ("?group=slide&time=months&event=dead", {2: 7}, "different labels: '00-0.png' is 7 and '00-1.png' is 1"),
        ("?group=slide&time=months&event=deed", {}, "'deed'.*\n.*'dead'"),
    ],
)
def test_a_wrong_table_is_one_message_before_any_image_is_read(option, row, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = tiles(tmp_path)
    for column, value in row.items():
        rows[0][column] = value
    write_table(tmp_path, rows)
    with pytest.raises((DataError, UsageError), match=message):
        evaluate("pixels:4", f"tiles.csv{option}", protocols=["bags"], out="results")
    assert not (tmp_path / "results").exists()


def test_other_protocols_refuse_times(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path, tiles(tmp_path))
    place = "tiles.csv?group=slide&time=months&event=dead"
    assert command("eval", "linear", "--weights", "pixels:4", "--data", place, "--device", "cpu") == 1
    assert "linear predicts classes, but these samples have times to an event" in capsys.readouterr().err


def test_features_made_elsewhere_have_bags_and_times(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    risk = np.repeat(rng.normal(size=40), 3)
    np.save("e.npy", np.column_stack([risk, rng.normal(size=120)]).astype(np.float32))
    rows = [f"{i:03d},s{i // 3},{np.exp(-risk[i]):.4f},{('true', 'false')[i // 3 % 5 == 0]}" for i in range(120)]
    (tmp_path / "l.csv").write_text("\n".join(["id,slide,months,dead", *rows]))
    words = ("eval", "bags", "--features", "e.npy", "--out", "results", "--labels")
    assert command(*words, "l.csv?group=slide&time=months&event=dead") == 0
    (file,) = (tmp_path / "results" / "bags").glob("*.json")
    assert json.loads(file.read_text())["metrics"]["c_index"]["value"] > 90
    assert command(*words, "l.csv?time=months&event=dead") == 2
    assert command(*words, "l.csv?group=slide&time=months") == 2


def test_the_bundled_bags_have_the_label_of_their_digits():
    whole = open_data("sklearn:digit-bags")["all"]
    digits = open_data("sklearn:digits")["all"]
    nine = np.array(digits.target.classes)[digits.target.values] == "9"
    for bag in set(whole.attributes["bag"]):
        rows = [i for i, name in enumerate(whole.attributes["bag"]) if name == bag]
        labels = {whole.target.text(i) for i in rows}
        assert labels == {"with a 9" if nine[rows].any() else "without a 9"}
    assert single_labels([whole.target.text(i) for i in range(3)]).classes
