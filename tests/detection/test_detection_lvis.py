"""LVIS in detection: its lists through opening, splitting, caching and export; repeated images; the whole run."""

import collections
import dataclasses
import itertools
import json
import re

import numpy as np
import pytest
from helpers.annotated import pictures, save, write_coco
from helpers.drawn_rectangles import task

from sslbench.data.export import write_kwcoco
from sslbench.data.objects import ObjectSource, view
from sslbench.data.open import open_objects
from sslbench.detection.batches import order, repeat_factors
from sslbench.errors import DataError, UsageError
from sslbench.evaluation import Request, RunSettings, evaluate, prepare

RUN = RunSettings(device="cpu", workers=0)


@pytest.fixture
def lvis(tmp_path):
    """A manifest of twelve images of cats and dogs, and a class without objects that is absent in some."""
    samples = pictures(12, size=(64, 48))
    save(tmp_path / "images", samples)
    write_coco(tmp_path / "lvis_train.json", samples)
    content = json.loads((tmp_path / "lvis_train.json").read_text())
    for k, row in enumerate(content["images"]):
        row["neg_category_ids"] = [2 - k % 2, 9]  # of cats, dogs; and of birds
        row["not_exhaustive_category_ids"] = [1 + k % 2] if k % 3 == 0 else []
    content["categories"].append({"id": 9, "name": "bird"})
    for row, frequency in zip(content["categories"], "rfc", strict=True):
        row["frequency"] = frequency
    (tmp_path / "lvis_train.json").write_text(json.dumps(content))
    return tmp_path / "lvis_train.json"


def lists_of(source):
    """Id of an image -> names of the classes that are absent, and of those that are partly labelled."""
    found = {name: (set(), set()) for name in source.ids}
    for k, pairs in enumerate((source.target.federated.negative, source.target.federated.not_exhaustive)):
        for image, label in pairs.tolist():
            found[source.ids[image]][k].add(source.target.classes[label])
    return found


def wanted(ids):
    own = {name: int(re.fullmatch(r"p(\d+)\.png", name)[1]) for name in ids}
    kinds = ("cat", "dog")
    return {n: ({kinds[1 - k % 2]}, {kinds[k % 2]} if k % 3 == 0 else set()) for n, k in own.items()}


def test_the_lists_follow_their_images_and_classes(lvis):
    source = open_objects(str(lvis))["all"]
    assert source.target.federated.frequencies == ("r", "f") and source.target.classes == ("cat", "dog")
    assert lists_of(source) == wanted(source.ids)
    part = source.select([1, 5, 8]).with_classes(("dog", "zebra", "cat"), (2, 5, 1))
    assert lists_of(part) == wanted(part.ids) and part.target.federated.frequencies == ("f", "", "r")
    assert part.truth().federated is part.target.federated
    federated = dataclasses.replace(source.target.federated, negative=np.zeros((0, 2), int))
    other = dataclasses.replace(source, target=source.target.changed(federated=federated))
    assert other.fingerprint() != source.fingerprint()


def test_an_export_and_the_cache_of_large_manifests_keep_the_lists(lvis, tmp_path, monkeypatch):
    source = open_objects(str(lvis))["all"]
    write_kwcoco({"all": source}, tmp_path / "out.kwcoco.json")
    again = open_objects(str(tmp_path / "out.kwcoco.json"))["all"]
    assert lists_of(again) == lists_of(source) and again.target.federated.frequencies == ("r", "f")
    monkeypatch.setattr(view, "LARGE", 1)
    monkeypatch.setattr(view, "SETTLED_NS", -1)
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    for _ in range(2):
        cached = open_objects(str(lvis))["all"]
        assert lists_of(cached) == lists_of(source) and cached.fingerprint() == source.fingerprint()
    assert type(cached.target.objects).__name__ == "ObjectRows"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["images"][3].pop("neg_category_ids"), "1 image without neg_category_ids: id 4"),
        (lambda c: c["images"][3].update(neg_category_ids=3), "image 4: neg_category_ids is 3, not a list"),
        (lambda c: c["categories"][0].update(frequency="often"), "category 1: frequency is 'often'"),
    ],
)
def test_damaged_lists_are_named(lvis, change, words):
    content = json.loads(lvis.read_text())
    change(content)
    lvis.write_text(json.dumps(content))
    with pytest.raises(DataError, match=words):
        open_objects(str(lvis))


def test_repeat_factors_are_those_of_the_paper(lvis):
    source = open_objects(str(lvis))["all"]
    rows = np.array([0, 1, 2, 4, 6, 8])
    present = [{source.target.classes[c] for c in source.target.objects[i].classes} for i in rows]
    share = {name: np.mean([name in there for there in present]) for name in source.target.classes}
    slow = [max(max(1.0, np.sqrt(0.9 / share[name])) for name in there) for there in present]
    assert repeat_factors(source, rows, 0.9) == pytest.approx(slow) and len(set(np.round(slow, 6))) == 2
    assert repeat_factors(source, rows, 1e-6).tolist() == [1.0] * 6


def test_images_are_repeated_as_often_as_their_factors_on_average():
    repeats = np.array([1.0, 1.0, 2.5, 1.25])
    wide = np.zeros(4, bool)
    seen = collections.Counter(
        i for batch in itertools.islice(order(wide, 1, seed=0, grouped=True, repeats=repeats), 5750) for i in batch
    )
    assert [seen[i] / 1000 for i in range(4)] == pytest.approx(repeats.tolist(), abs=0.06)


def test_a_detector_is_trained_and_scored_on_lvis(lvis, tmp_path):
    used = task(iterations=2, steps=(), metric="lvis", detections=300, repeat_threshold=0.5)
    request = Request("random", str(lvis), (used,), backbone="resnet_basic_1-1-1-1w0.125")
    prepared = prepare(request, RUN)
    assert ObjectSource.of(prepared.data.test).target.federated is not None
    (result,) = evaluate(prepared, store=tmp_path, out=tmp_path / "out", command="")
    assert result.hardware.float32 == "ieee"
    assert {"AP", "APr", "APf", "AR300"} <= set(result.metrics) and "AP" in result.floors["constant box"]
    content = json.loads(lvis.read_text())
    for row in content["images"]:
        del row["neg_category_ids"]
    lvis.write_text(json.dumps(content))
    with pytest.raises(DataError, match="does not say which classes were looked for"):
        prepare(request, RUN)
    with pytest.raises(UsageError, match="metric=lvis is a setting of the torchvision backend"):
        settings = dataclasses.replace(used.settings, program="detectron2")
        prepare(dataclasses.replace(request, tasks=(dataclasses.replace(used, settings=settings),)), RUN)
