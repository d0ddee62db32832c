"""Label noise, and test data with part of train's classes."""

import dataclasses

import numpy as np
import pytest
from helpers.suites import run_suite

from sslbench.data.images import Arrays
from sslbench.data.labels import multi_labels, single_labels
from sslbench.data.noise import noisy_labels, with_label_noise
from sslbench.data.source import Source
from sslbench.data.splits import match_classes, name_numbered
from sslbench.errors import DataError, UsageError
from sslbench.evaluation import Request, RunSettings, evaluate, make_task, prepare, suite
from sslbench.evaluation.floors import guessing
from sslbench.evaluation.score import is_subset, restricted, widened
from sslbench.features.array import Features
from sslbench.leaderboard import table
from sslbench.metrics import classification
from sslbench.names import find_module
from sslbench.results import records
from sslbench.targets.classes import Classes
from sslbench.targets.numbers import Numbers

RUN = RunSettings(device="cpu", workers=0, overlaps=False)


def request(**changes):
    tasks = (make_task("linear", {"c": [0.01, 0.1]}),)
    fields = {"weights": "pixels:8", "data": "sklearn:digits", "limit": 400, "tasks": tasks}
    return Request(**{**fields, **changes})


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_exactly_the_share_of_single_labels_is_wrong_and_every_other_class_occurs(share):
    labels = single_labels([f"{i % 5}" for i in range(1000)])
    noisy = noisy_labels(labels, share, seed=3)
    wrong = noisy.values != labels.values
    assert wrong.sum() == 1000 * share and noisy.classes == labels.classes
    distances = np.bincount((noisy.values - labels.values)[wrong] % 5, minlength=5)
    assert distances[0] == 0 and distances[1:].min() > 0.5 * wrong.sum() / 4
    smaller = noisy_labels(labels, share / 2, seed=3).values != labels.values
    assert (wrong | ~smaller).all(), "the wrong labels of a smaller share are among those of a larger one"


def test_wrong_labels_leave_the_order_of_draws():
    """Else it would depend on the names of class folders: files of one name can get one class."""
    ids = tuple(f"{'abcd'[i // 3]}/{i % 3}.png" for i in range(12))
    images = Arrays(np.arange(36, dtype=np.uint8).reshape(12, 1, 1, 3), "drawn")
    source = Source("drawn", ids, single_labels([sample[0] for sample in ids]), images)
    noisy = with_label_noise(source, 0.5, seed=0)
    assert (noisy.target.values != source.target.values).sum() == 6
    assert noisy.rank.tolist() == source.rank.tolist()


def test_several_labels_and_numbers_change_places():
    several = multi_labels([{"a"} if i % 3 else {"a", "b"} for i in range(60)])
    noisy = noisy_labels(several, 0.5, seed=0)
    assert (noisy.values.sum(axis=0) == several.values.sum(axis=0)).all()
    assert (noisy.values != several.values).any(axis=1).sum() == 30, "exactly the share, although labels repeat"
    numbers = Numbers(("height",), np.arange(60.0)[:, None])
    noisy = noisy_labels(numbers, 0.5, seed=0)
    assert (noisy.values != numbers.values).sum() == 30 and set(noisy.values[:, 0]) == set(numbers.values[:, 0])


def test_a_share_that_the_labels_do_not_allow_is_refused_with_the_largest():
    rare = multi_labels([{"a"} if i < 6 else set() for i in range(60)])
    with pytest.raises(UsageError, match=r"54 of the 60 train samples have the same labels") as caught:
        noisy_labels(rare, 0.4, seed=0)
    assert caught.value.remedy == "The largest share is 0.2."
    wrong, smaller = ((noisy_labels(rare, share, 0).values != rare.values)[:, 0] for share in (0.2, 0.1))
    assert wrong.sum() == 12 and smaller.sum() == 6 and (wrong | ~smaller).all()


def test_each_share_is_a_record_with_its_floors_and_a_column(tmp_path):
    prepared = prepare(request(noise=(0.2, 0.6)), RUN)
    results = evaluate(prepared, store=tmp_path / "store", out=tmp_path / "out", command="eval")
    assert [result.data.label_noise for result in results] == [0.0, 0.2, 0.6] and len({r.id for r in results}) == 3
    clean, _, worst = (result.metrics["top1"].value for result in results)
    assert clean > worst + 5, "wrong labels cost accuracy on the same test labels"
    assert len({result.data.test.fingerprint for result in results}) == 1
    assert len({result.data.train.fingerprint for result in results}) == 3
    plain = evaluate(prepare(request(), RUN), store=tmp_path / "store", out=tmp_path / "plain", command="eval")
    assert (plain[0].id, plain[0].metrics) == (results[0].id, results[0].metrics), "without noise, the usual record"
    names = [column.name for column in table(records.read_tree(tmp_path / "out")).columns]
    assert sorted(names) == ["linear/sklearn:digits" + end for end in ("", ", 20 % label noise", ", 60 % label noise")]


@pytest.mark.parametrize("protocol", ["finetune", "linear-online"])
def test_protocols_on_images_train_on_the_wrong_labels(protocol, tmp_path):
    short = {"epochs": 4, "lr": [0.05 if protocol == "finetune" else 0.5], "batch_size": 16}
    asked = request(weights="random", backbone="resnet_basic_1-1-1-1w0.125", tasks=(make_task(protocol, short),))
    asked = dataclasses.replace(asked, preprocessing={"resize": (12, 12), "crop": None}, noise=(0.7,))
    clean, noisy = evaluate(prepare(asked, RUN), store=tmp_path / "store", out=tmp_path / "out", command="eval")
    assert (clean.data.label_noise, noisy.data.label_noise) == (0.0, 0.7) and clean.id != noisy.id
    assert clean.data.test.fingerprint == noisy.data.test.fingerprint
    assert clean.data.train.fingerprint != noisy.data.train.fingerprint
    assert clean.metrics["top1"].value > noisy.metrics["top1"].value + 5


def test_the_labels_that_the_probe_gets_are_the_noisy_ones_of_the_same_samples(tmp_path):
    from sslbench.evaluation import encode
    from sslbench.evaluation import on_features as module
    from sslbench.evaluation.score import NO_SETS

    seen = []
    for noise in ((), (0.3,)):
        prepared = prepare(request(noise=noise), RUN)
        share = noise[0] if noise else 0.0
        data, _ = module.as_scored(prepared, prepared.request.tasks[0], share)
        encoded = encode.encode_parts(prepared.backbone, prepared.data, prepared.layers, RUN, tmp_path, None)
        layer = prepared.layers[0].text
        scored = module._Scored(prepared.backbone, encoded, {0: NO_SETS})
        _, train, test = module._describe_parts(data, scored, layer, request().tasks[0], 0, "", share)
        seen.append((train, test))
    (clean, test), (noisy, same) = seen
    assert (
        clean.ids == noisy.ids
        and np.array_equal(clean.x, noisy.x)
        and np.array_equal(test.target.values, same.target.values)
    )
    assert (clean.target.values != noisy.target.values).sum() == round(0.3 * len(clean))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"noise": (0.0,)}, "should lie between 0 and 1"),
        ({"noise": (1.5,)}, "should lie between 0 and 1"),
        ({"noise": (0.2, 0.2)}, "has a share twice"),
        ({"noise": (0.01,), "limit": 20}, "none of the 20 train labels would be wrong"),
        ({"noise": (0.2,), "tasks": (make_task("geometry", {}),)}, "geometry does not train on labels"),
        ({"noise": (0.2,), "tasks": (make_task("robustness", {}),)}, "robustness does not train on labels"),
    ],
)
def test_noise_without_effect_or_sense_is_refused(changes, problem):
    with pytest.raises(UsageError, match=problem) as caught:
        prepare(request(**changes), RUN)
    assert "train on labels" not in problem or "knn" in caught.value.remedy


def test_a_suite_finds_the_records_of_all_shares_again(tmp_path, monkeypatch):
    cells = [suite.SuiteCell("pixels:8", "linear", (request(noise=(0.3,)),))]
    places = {"store": tmp_path / "store", "out": tmp_path / "out", "command": "eval"}
    first, _ = run_suite(cells, RUN, **places)
    monkeypatch.setattr(suite, "evaluate", lambda *_, **__: pytest.fail("computed again"))
    again, holes = run_suite(cells, RUN, **places)
    assert [result.id for result in again] == [result.id for result in first] and len(first) == 2 and not holes


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
    for bad in (["a", "1"], ["1", "01"], ["-1", "0"], ["3", "0"]):
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
    once = np.ones((1, len(test)))

    def balanced(guessed):
        return classification.ClassCounts(test.values, guessed, len(CLASSES)).balanced_accuracy(once)[0]

    found = np.mean([balanced(row) for row in guesses])
    assert floors["chance"]["balanced_accuracy"] == pytest.approx(100 * found, abs=0.5)
    always = np.full(len(test), CLASSES.index("ant"))
    assert floors["majority"]["balanced_accuracy"] == pytest.approx(100 * balanced(always))


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
