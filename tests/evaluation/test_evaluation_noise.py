"""Label noise: the share of wrong labels is exact, test labels stay, and each share is a result of its own."""

import dataclasses

import numpy as np
import pytest
from helpers.suites import run_suite

from sslbench.data.images import Arrays
from sslbench.data.labels import multi_labels, single_labels
from sslbench.data.noise import noisy_labels, with_label_noise
from sslbench.data.source import Source
from sslbench.errors import UsageError
from sslbench.evaluation import Request, RunSettings, evaluate, make_task, prepare, suite
from sslbench.leaderboard import table
from sslbench.results import records
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
        data = module.with_noise(prepared, share)
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
