"""Test data with part of train's classes: nothing else is predicted, and what is learnt is learnt on all of them."""

import dataclasses

import numpy as np
import pytest

from sslbench.data.images import Arrays
from sslbench.data.labels import multi_labels, single_labels
from sslbench.data.source import Source
from sslbench.data.splits import match_classes, name_numbered
from sslbench.errors import DataError, UsageError
from sslbench.evaluation import Request, RunSettings, make_task, prepare
from sslbench.evaluation.floors import guessing
from sslbench.evaluation.score import is_subset, restricted, widened
from sslbench.features.array import Features
from sslbench.metrics import classification
from sslbench.names import find_module
from sslbench.targets.classes import Classes

CLASSES = ("ant", "bee", "cat", "dog", "eel")


def source(names, classes=None, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 255, (len(names), 2, 2), dtype=np.uint8)
    ids = tuple(f"{i:03d}" for i in range(len(names)))
    return Source(f"data {seed}", ids, single_labels(names, classes), Arrays(pixels, "data"))


def test_the_test_part_keeps_its_own_classes_in_trains_order():
    train, test = (
        source(["dog", "bee", "ant", "cat", "eel"], seed=1),
        source(["eel", "bee", "eel"], ("eel", "cat", "bee")),
    )
    same, matched = match_classes(train, test, subset=True)
    assert same is train and matched.target.classes == ("bee", "eel")
    assert [matched.target.text(i) for i in range(3)] == ["eel", "bee", "eel"]
    assert match_classes(train, test)[1].fingerprint() != matched.fingerprint(), "another measurement, another identity"
    assert is_subset(train.target, matched.target) and not is_subset(train.target, match_classes(train, test)[1].target)


def test_multi_label_columns_are_left_out_too():
    pixels = Arrays(np.zeros((2, 2, 2), np.uint8), "data")
    train = Source("train", ("0", "1"), multi_labels([["a", "b"], ["c"]]), pixels)
    test = Source("test", ("0", "1"), multi_labels([["c"], ["a"]], [["a"], []], ("a", "b", "c")), pixels)
    labels = match_classes(train, test, subset=True)[1].target
    assert labels.classes == ("a", "c") and labels.values.tolist() == [[-1, 1], [1, 0]]


def test_numbers_name_the_classes_of_train_in_their_sorted_order():
    train, test = source(["dog", "bee", "ant"], ("dog", "bee", "ant")), source(["10", "0", "2"], seed=1)
    with pytest.raises(DataError, match="should be numbers from 0 to 2, each once: 10"):
        name_numbered(train, test)
    named = name_numbered(train, source(["1", "0", "2", "1"], seed=1))
    assert [named.target.text(i) for i in range(4)] == ["bee", "ant", "dog", "bee"]
    for bad in (["a", "1"], ["1", "01"], ["-1", "0"]):
        with pytest.raises(DataError, match="should be numbers"):
            name_numbered(train, source(bad, seed=1))


def features(n, seed, classes=CLASSES, used=None):
    rng = np.random.default_rng(seed)
    y = np.resize(np.arange(len(classes)) if used is None else [classes.index(name) for name in used], n)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    x[np.arange(n), y] += 1.5
    return Features(x, Classes(classes, y.astype(np.int64)), tuple(f"{seed}-{i:04d}" for i in range(n)))


@pytest.mark.parametrize(("name", "settings"), [("knn", {}), ("linear", {}), ("svm", {"costs": (1.0,)})])
def test_the_score_is_the_argmax_over_the_classes_of_test(name, settings):
    train, whole = features(200, 0), features(90, 1, used=("bee", "eel"))
    kept = ("bee", "eel")
    own = dataclasses.replace(whole, target=Classes(kept, (whole.target.values == 4).astype(np.int64)))
    module = find_module("protocol", name)
    outcome = module.run(train, widened(train.target, own), module.Settings(**settings), seed=0)
    found = restricted(outcome, name, train.target, own, seed=0)
    right = [
        max(kept, key=lambda c: row[CLASSES.index(c)]) == CLASSES[y]
        for row, y in zip(outcome.scores, whole.target.values, strict=True)
    ]
    assert found.metrics["top1"][0] == pytest.approx(np.mean(right), abs=1e-9)
    assert found.metrics["top1"][0] > outcome.metrics["top1"][0], "five classes are harder than two"
    assert found.scores.shape == (90, 2) and set(found.per_class) == set(kept)
    assert "2 of 5 classes" in found.notes[-1] and np.array_equal(found.scores, outcome.scores[:, [1, 4]])


def test_a_mean_over_draws_cannot_be_restricted_afterwards():
    train, test = features(200, 0), features(90, 1, used=("bee", "eel"))
    own = dataclasses.replace(test, target=Classes(("bee", "eel"), (test.target.values == 4).astype(np.int64)))
    module = find_module("protocol", "lsr")
    outcome = module.run(train, widened(train.target, own), module.Settings(k=(1, 2)), seed=0)
    with pytest.raises(UsageError, match=r"lsr cannot be scored .* subset of train's classes"):
        restricted(outcome, "lsr", train.target, own, seed=0)


def test_guessing_is_among_the_classes_that_can_be_predicted():
    train = single_labels(["bee"] * 5 + ["ant"] * 9 + ["eel"] * 2 + ["cat", "dog"], CLASSES)
    floors = guessing(train, single_labels(["eel", "bee", "bee", "eel"], ("bee", "eel")))
    assert floors["chance"]["top1"] == 50.0 and floors["majority"]["top1"] == 50.0
    assert guessing(train, single_labels(["ant", "bee"], CLASSES))["chance"]["top1"] == 20.0


def test_the_balanced_accuracy_of_guessing_is_that_of_a_long_simulation():
    train = single_labels(["ant"] * 9 + ["bee"] * 3 + ["cat", "dog", "eel"], CLASSES)
    test = single_labels(["ant"] * 50 + ["bee"] * 10 + ["dog"] * 5, CLASSES)
    floors = guessing(train, test)
    guesses = np.random.default_rng(0).integers(0, len(CLASSES), (4000, len(test)))
    found = np.mean([classification.balanced_accuracy(test.values, row, len(CLASSES)) for row in guesses])
    assert floors["chance"]["balanced_accuracy"] == pytest.approx(100 * found, abs=0.5)
    always = np.full(len(test), CLASSES.index("ant"))
    most = classification.balanced_accuracy(test.values, always, len(CLASSES))
    assert floors["majority"]["balanced_accuracy"] == pytest.approx(100 * most)


@pytest.mark.parametrize("name", ["lsr", "low-shot", "linear-online"])
def test_what_cannot_be_restricted_is_refused_before_any_work(name):
    request = Request(weights="pixels", data="sklearn:digits", tasks=(make_task(name, {}),), test_classes="subset")
    with pytest.raises(UsageError, match=f"{name} cannot be scored"):
        prepare(request, RunSettings())


@pytest.mark.parametrize("name", ["knn", "linear", "svm"])
def test_what_can_be_restricted_is_scored_on_the_classes_of_test(name):
    train, test = features(200, 0), features(90, 1, used=("bee", "eel"))
    own = dataclasses.replace(test, target=Classes(("bee", "eel"), (test.target.values == 4).astype(np.int64)))
    module = find_module("protocol", name)
    outcome = module.run(train, widened(train.target, own), module.Settings(), seed=0)
    assert restricted(outcome, name, train.target, own, seed=0).scores.shape == (90, 2)
