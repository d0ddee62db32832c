"""Estimates before long work: formulas of protocols, refusals with their remedies, and the line of a long run."""

import dataclasses
import logging

import numpy as np
import pytest
from helpers.offenders import offenders

from sslbench import evaluation
from sslbench.errors import ResourceError
from sslbench.evaluation import estimate
from sslbench.features.array import Features
from sslbench.features.external import FeaturePair
from sslbench.names import list_names
from sslbench.protocols import NotEstimated, OnFeatures, OnImages, OnSets, Shapes, find
from sslbench.runtime import machine
from sslbench.runtime.machine import Speed
from sslbench.targets.camera_pairs import CameraPairs
from sslbench.targets.classes import Classes
from sslbench.targets.label_maps import LabelMaps
from sslbench.targets.numbers import Numbers
from sslbench.targets.triplets import Triplets

IMAGENET = Shapes(1_281_167, 50_000, 2_048, 1_000)
CORES = Speed(single=3e11, double=1.5e11, search=1e11, traffic=1.2e10)
"""Rates of two cores, as they were measured."""
HOURS = {"knn": (0.5, 12), "linear": (2, 30), "svm": (24, 700), "low-shot": (0.5, 20), "clustering": (0.5, 6)}
GIGABYTES = {
    **{"knn": (1, 4), "linear": (0.5, 4), "low-shot": (1, 4), "lsr": (1, 4), "clustering": (1, 4)},
    **{"svm": (31, 50), "retrieval": (0.5, 4), "geometry": (1, 4)},
}


def of_kind(kinds):
    return [name for name in list_names("protocol") if isinstance(find(name).kind, kinds)]


def cost_of(name, shapes, **settings):
    found = find(name)
    return found.kind.cost(found.settings(**settings), shapes)


def shapes_for(name, factor=1, **changed):
    first = find(name).kind.takes[0]
    shapes = Shapes(4_000, 2_000, 256, 10)
    if first is LabelMaps:
        shapes = Shapes(200, 100, 64 * 49, 10, LabelMaps, 49, 224 * 224)
    for kind, classes in ((Numbers, 2), (Triplets, 1), (CameraPairs, 7)):
        if first is kind:
            shapes = dataclasses.replace(shapes, classes=classes, target=kind)
    shapes = dataclasses.replace(shapes, train=factor * shapes.train, test=factor * shapes.test)
    return dataclasses.replace(shapes, **changed)


def states_its_work_or_a_reason(name):
    kind, settings = find(name).kind, find(name).settings()
    if kind.on_objects:
        return  # without an estimate
    stated = kind.work if isinstance(kind, OnImages) else kind.cost
    if isinstance(stated, NotEstimated):
        assert len(stated.reason) > 20 and "does not state" not in stated.reason
    elif isinstance(kind, OnImages):
        assert stated(settings, shapes_for(name)).forward > 0
    else:
        assert CORES.seconds(stated(settings, shapes_for(name))) > 0


def costs_more_for_more_rows_and_wider_ones(name):
    small, large = cost_of(name, shapes_for(name)), cost_of(name, shapes_for(name, factor=4))
    assert CORES.seconds(large) > 1.5 * CORES.seconds(small) and large.memory >= small.memory
    wide = cost_of(name, shapes_for(name, width=4 * shapes_for(name).width))
    assert CORES.seconds(wide) > CORES.seconds(small) and wide.memory >= small.memory


def is_never_less_work_for_more_images(name):
    work, settings = find(name).kind.work, find(name).settings()
    if not isinstance(work, NotEstimated):
        small, large = (work(settings, shapes_for(name, factor=factor)) for factor in (1, 3))
        assert large.forward > small.forward and large.trained >= small.trained


def test_every_protocol_states_its_work_or_a_reason_of_its_own():
    assert offenders(list_names("protocol"), states_its_work_or_a_reason) == []


def test_more_rows_and_wider_ones_cost_more():
    assert offenders(of_kind(OnFeatures | OnSets), costs_more_for_more_rows_and_wider_ones) == []


def test_more_images_are_never_less_work():
    assert offenders(of_kind(OnImages), is_never_less_work_for_more_images) == []


def test_hours_and_gigabytes_of_imagenet():
    hours = {name: CORES.seconds(cost_of(name, IMAGENET)) / 3600 for name in HOURS}
    gigabytes = {name: cost_of(name, IMAGENET).memory / 1e9 for name in GIGABYTES}
    for found, wanted in ((hours, HOURS), (gigabytes, GIGABYTES)):
        assert {name: value for name, value in found.items() if not wanted[name][0] < value < wanted[name][1]} == {}


def test_the_settings_that_save_work_are_counted():
    one, all_c = (CORES.seconds(cost_of("linear", IMAGENET, **given)) for given in ({"c": (1.0,)}, {}))
    assert one < all_c / 5
    assert CORES.seconds(cost_of("knn", IMAGENET, k=(20,))) < CORES.seconds(cost_of("knn", IMAGENET))
    narrow = dataclasses.replace(IMAGENET, classes=10)
    assert cost_of("knn", narrow, max_memory=0.2).memory < cost_of("knn", narrow).memory
    assert (
        CORES.seconds(cost_of("clustering", IMAGENET, restarts=1)) < CORES.seconds(cost_of("clustering", IMAGENET)) / 5
    )
    finetune = find("finetune")
    tuned = finetune.kind.work(finetune.settings(epochs=10, lr=(0.1,)), shapes_for("finetune"))
    assert tuned.trained == 10 * 4_000


def pair(rows=600, width=32):
    rng = np.random.default_rng(0)
    y = np.arange(rows) % 4
    x = rng.normal(size=(rows, width)).astype(np.float32)
    labels = Classes(tuple("abcd"), y.astype(np.int64))
    parts = [Features(x + i, labels, tuple(f"{i}{row:05d}" for row in range(rows))) for i in range(2)]
    return FeaturePair(*parts, "two files", "x.npy", "y.npy", "rows")


@pytest.fixture
def slow(monkeypatch):
    """A machine on which everything takes long."""
    monkeypatch.setattr(machine, "SLOW", Speed(1e6, 1e6, 1e6, 1e6))
    monkeypatch.setattr(machine, "speed", lambda: Speed(1e6, 1e6, 1e6, 1e6))


def test_a_long_run_says_so_in_one_line_before_it_starts(slow, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="sslbench"):
        estimate.announce_features(pair(), (evaluation.make_task("knn", {}),), evaluation.RunSettings(), tmp_path)
    lines = [record.message for record in caplog.records]
    assert len(lines) == 1 and lines[0].startswith("this run is estimated to take") and "most of it knn" in lines[0]


def test_short_work_is_neither_measured_nor_announced(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(machine, "measure_speed", lambda: pytest.fail("the machine was measured"))
    machine.speed.cache_clear()
    with caplog.at_level(logging.INFO, logger="sslbench"):
        estimate.announce_features(pair(40), (evaluation.make_task("knn", {}),), evaluation.RunSettings(), tmp_path)
    assert not caplog.records


def test_what_does_not_fit_into_memory_is_refused_with_what_helps(slow, monkeypatch, tmp_path):
    task = evaluation.make_task("knn", {})
    need = cost_of("knn", Shapes(600, 600, 32, 4)).memory
    monkeypatch.setattr(machine, "free_memory", lambda: need * 0.99)
    with pytest.raises(ResourceError) as error:
        estimate.announce_features(pair(), (task,), evaluation.RunSettings(), tmp_path)
    assert "knn needs about" in error.value.message and "of memory" in error.value.message
    assert "--limit" in error.value.remedy and "--no-estimate" in error.value.remedy
    assert "max_memory" not in error.value.remedy  # the search is small: another limit of it does not help
    monkeypatch.setattr(machine, "free_memory", lambda: need * 1.01)
    estimate.announce_features(pair(), (task,), evaluation.RunSettings(), tmp_path)
    monkeypatch.setattr(machine, "free_memory", lambda: 1.0)
    estimate.announce_features(pair(), (task,), evaluation.RunSettings(estimate=False), tmp_path)


def test_a_refusal_names_the_limit_of_the_search_that_fits():
    shapes = dataclasses.replace(IMAGENET, test=100, classes=10)
    task = evaluation.make_task("retrieval", {"database": "train"})
    need, smaller = (cost_of("retrieval", shapes, database="train", max_memory=most).memory for most in (1.0, 0.25))
    part = estimate.Part("retrieval", 1.0, need, task=task, shapes=shapes)
    with pytest.raises(ResourceError, match=r"max_memory=0\.25,"):
        estimate.Estimate((part,), smaller, 1e15, 1e15).check()


def test_a_refusal_names_a_protocol_that_fits():
    free = 8e9
    task = evaluation.make_task("svm", {})
    part = estimate.Part("svm", 1.0, cost_of("svm", IMAGENET).memory, task=task, shapes=IMAGENET)
    with pytest.raises(ResourceError) as error:
        estimate.Estimate((part,), free, 1e15, 1e15).check()
    fitting = [name for name in ("knn", "linear", "lsr", "clustering") if cost_of(name, IMAGENET).memory <= free]
    assert "knn" in fitting and f"({', '.join(fitting)})" in error.value.remedy
    assert "max_memory" not in error.value.remedy


def test_a_protocol_that_takes_days_is_told_with_what_is_quicker(monkeypatch):
    monkeypatch.setattr(machine, "speed", lambda: CORES)
    days = CORES.seconds(cost_of("svm", IMAGENET))
    part = estimate.Part("svm", days, task=evaluation.make_task("svm", {}), shapes=IMAGENET)
    line = estimate.Estimate((part,), None, 1e15, 1e15).line()
    quick = CORES.seconds(cost_of("svm", IMAGENET, costs=(0.01,)))
    assert f"one value of costs ({estimate.time_text(quick)})" in line and "knn (" in line and "--limit" in line
    twice = estimate.quicker(dataclasses.replace(part, seconds=2 * days))  # with a floor
    assert f"one value of costs ({estimate.time_text(2 * quick)})" in twice
    short = dataclasses.replace(part, shapes=shapes_for("svm"), seconds=3600.0)
    assert estimate.quicker(short) == ""


@pytest.mark.parametrize(("where", "remedy"), [("free_store", "--feature-dtype float16"), ("free_out", "--out")])
def test_what_does_not_fit_on_disk_is_refused(where, remedy):
    part = estimate.Part("extraction: 1,000 images", 1.0, stored=2e9, written=2e9)
    sizes = {"free_memory": None, "free_store": 3e9, "free_out": 3e9}
    estimate.Estimate((part,), **sizes).check()
    with pytest.raises(ResourceError) as error:
        estimate.Estimate((part,), **sizes | {where: 1e9}).check()
    assert "2.0 GB" in error.value.message and "1.0 GB are free" in error.value.message
    assert remedy in error.value.remedy and "--no-estimate" in error.value.remedy


def test_features_that_do_not_fit_are_refused_before_an_image_is_decoded(monkeypatch, tmp_path):
    """All the way from the request, with the images of a real source, of which only the measured ones are read."""
    from sslbench.features import job

    monkeypatch.setattr(job.ExtractionJob, "run", lambda *given: pytest.fail("images were decoded"))
    monkeypatch.setattr(machine, "free_disk", lambda folder: 1000.0)
    run = evaluation.RunSettings(device="cpu", workers=0)
    request = evaluation.Request("pixels:8", "sklearn:digits", (evaluation.make_task("knn", {"k": (5,)}),))
    prepared = evaluation.prepare(request, run)
    with pytest.raises(ResourceError, match="feature store"):
        evaluation.evaluate(prepared, store=tmp_path / "store", out=tmp_path / "out", command="test")
    found = estimate.estimate(prepared, tmp_path / "store", tmp_path / "out")
    extraction = found.parts[0]
    assert extraction.name == "extraction: 1,797 images" and extraction.seconds > 0
    assert extraction.stored == 1797 * 192 * 4  # 8 x 8 pixels of three channels
    assert [part.name for part in found.parts[1:]] == ["knn", "search for copies of test images in train"]


@pytest.fixture
def quarter(tmp_path, monkeypatch):
    """An evaluation whose extraction ended after 448 of 1,797 images, or after some more."""
    from sslbench.features import extract, job

    run = evaluation.RunSettings(device="cpu", workers=0, floors=False)
    request = evaluation.Request("pixels:8", "sklearn:digits", (evaluation.make_task("knn", {"k": (5,)}),))
    prepared = evaluation.prepare(request, run)

    def stop(done, total):
        if done >= 448:
            raise KeyboardInterrupt

    source = prepared.data.whole
    with monkeypatch.context() as patch:
        patch.setattr(job, "FLUSH_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            extract.extract(
                prepared.backbone, source, prepared.layers, run.extract_settings(), root=tmp_path, split="all",
                progress=stop,
            )  # fmt: skip
    return prepared


def extraction_of(prepared, store, monkeypatch, world=1):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(world))
    monkeypatch.setattr(estimate, "measure_rate", lambda *given: estimate.Rate(1.0, {"pixels": 192, "8": 192}))
    return estimate.estimate(prepared, store, store).parts[0]


def test_of_an_unfinished_extraction_only_the_rest_is_estimated(quarter, tmp_path, monkeypatch):
    whole = extraction_of(quarter, tmp_path / "empty", monkeypatch)
    rest = extraction_of(quarter, tmp_path, monkeypatch)
    assert (whole.seconds, whole.stored) == (1797, 1797 * 192 * 4)
    assert 0 < rest.seconds <= 1797 - 448 and rest.name == f"extraction: {rest.seconds:,.0f} images"
    assert rest.stored == 0  # its file has its full size already


def test_images_are_divided_among_processes(quarter, tmp_path, monkeypatch):
    one, four = (extraction_of(quarter, tmp_path / "empty", monkeypatch, world) for world in (1, 4))
    assert four.seconds == 450 == -(-one.seconds // 4) and four.stored == one.stored
    assert four.name == "extraction: 1,797 images by 4 processes"
    rest = extraction_of(quarter, tmp_path, monkeypatch, 4)
    assert rest.seconds == 450, (
        "of neighbouring rows, those stored are one process's share; the others have all of theirs"
    )
