"""Estimates before long work: counts of protocols, refusals with their remedies, and the line of a long run."""

import dataclasses
import logging

import numpy as np
import pytest
from helpers.offenders import offenders

from sslbench import evaluation
from sslbench.errors import ResourceError
from sslbench.evaluation import estimate
from sslbench.evaluation.preparation import extract_settings
from sslbench.evaluation.request import Task
from sslbench.evaluation.settings import RunSettings
from sslbench.features.array import Features
from sslbench.features.external import FeaturePair
from sslbench.names import list_names
from sslbench.protocols import Cost, OnFeatures, OnImages, OnSets, Shapes, find
from sslbench.targets.classes import Classes
from sslbench.targets.label_maps import LabelMaps
from sslbench.targets.numbers import Numbers
from sslbench.targets.triplets import Triplets
from sslbench_visbench.targets import CameraPairs

IMAGENET = Shapes(1_281_167, 50_000, 2_048, 1_000)
CORES = 3e11, 1.2e10
"""Rates of two cores, as they were measured."""
HOURS = {"knn": (0.1, 12), "linear": (10, 300), "svm": (24, 700), "low-shot": (0.1, 20), "clustering": (0.1, 6)}
GIGABYTES = {
    **{"knn": (1, 4), "linear": (0.5, 4), "low-shot": (1, 4), "lsr": (1, 4), "clustering": (0.5, 4)},
    **{"svm": (31, 50), "retrieval": (0.5, 4), "geometry": (1, 4)},
}


def test_rates_of_a_machine_are_measured():
    products, passes = estimate.machine_rates("cpu")
    assert products > 1e8 and passes > 1e7


@pytest.fixture
def cores(monkeypatch):
    monkeypatch.setattr(estimate, "machine_rates", lambda device: CORES)


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


def seconds_of(name, shapes, **settings):
    return estimate.seconds_of(cost_of(name, shapes, **settings))


def states_its_work_or_a_reason(name):
    kind, settings = find(name).kind, find(name).settings()
    if kind.on_objects:
        return  # without an estimate
    stated = kind.cost(settings, shapes_for(name))
    if isinstance(stated, str):
        assert len(stated) > 20 and "does not state" not in stated
    elif isinstance(kind, OnImages):
        assert stated.images > 0
    else:
        assert estimate.seconds_of(stated) > 0


def costs_more_for_more_rows_and_wider_ones(name):
    small, large = cost_of(name, shapes_for(name)), cost_of(name, shapes_for(name, factor=4))
    assert estimate.seconds_of(large) > 1.5 * estimate.seconds_of(small) and large.memory >= small.memory
    wide = cost_of(name, shapes_for(name, width=4 * shapes_for(name).width))
    assert estimate.seconds_of(wide) > estimate.seconds_of(small) and wide.memory >= small.memory


def is_never_less_work_for_more_images(name):
    small, large = (cost_of(name, shapes_for(name, factor=factor)) for factor in (1, 3))
    if isinstance(small, Cost):
        assert large.images > small.images and large.trained >= small.trained


@pytest.mark.usefixtures("cores")
def test_every_protocol_states_its_work_or_a_reason_of_its_own():
    assert offenders(list_names("protocol"), states_its_work_or_a_reason) == []


@pytest.mark.usefixtures("cores")
def test_more_rows_and_wider_ones_cost_more():
    assert offenders(of_kind(OnFeatures | OnSets), costs_more_for_more_rows_and_wider_ones) == []


def test_more_images_are_never_less_work():
    assert offenders(of_kind(OnImages), is_never_less_work_for_more_images) == []


def test_every_frame_of_a_video_is_a_pass(tmp_path):
    tasks = (evaluation.make_task("tracking", {}),)
    request = evaluation.Request("random", "textures:videos", tasks, backbone="resnet18w0.125")
    prepared = evaluation.prepare(request, RunSettings(floors=False))
    (stage,) = estimate.estimate(prepared, tmp_path, tmp_path).stages
    assert stage.name == "tracking: 96 passes of images"  # 8 videos of 12 frames


@pytest.mark.usefixtures("cores")
def test_hours_and_gigabytes_of_imagenet():
    hours = {name: seconds_of(name, IMAGENET) / 3600 for name in HOURS}
    gigabytes = {name: cost_of(name, IMAGENET).memory / 1e9 for name in GIGABYTES}
    for found, wanted in ((hours, HOURS), (gigabytes, GIGABYTES)):
        assert {name: value for name, value in found.items() if not wanted[name][0] < value < wanted[name][1]} == {}


@pytest.mark.usefixtures("cores")
def test_the_settings_that_save_work_are_counted():
    assert seconds_of("linear", IMAGENET, c=(1.0,)) < seconds_of("linear", IMAGENET) / 5
    one, several = (cost_of("linear", shapes_for("linear"), c=c) for c in ((1.0,), (0.1, 1.0)))
    assert one.memory < several.memory  # a search holds the rows that it fits beside all of them
    plain, whitened = (seconds_of("retrieval", shapes_for("retrieval"), whiten=whiten) for whiten in (False, True))
    assert plain < whitened
    assert seconds_of("knn", IMAGENET, k=(20,)) < seconds_of("knn", IMAGENET)
    assert seconds_of("clustering", IMAGENET, restarts=1) < seconds_of("clustering", IMAGENET) / 5
    wide = Shapes(4_000, 1_000, 20_000, 10)
    # Candidates are compared in float64.
    assert seconds_of("knn", wide, k=(200,)) > 5 * seconds_of("knn", wide, k=(10,))
    maps = shapes_for("segmentation-knn", width=49 * 4)
    assert seconds_of("segmentation-knn", dataclasses.replace(maps, pixels=4 * maps.pixels)) > 3 * seconds_of(
        "segmentation-knn", maps
    )
    narrow = dataclasses.replace(IMAGENET, classes=10)
    assert cost_of("knn", narrow, max_memory=0.2).memory < cost_of("knn", narrow).memory
    assert cost_of("finetune", shapes_for("finetune"), epochs=10, lr=(0.1,)).trained == 10 * 4_000


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
    monkeypatch.setattr(estimate, "_SHORT", 0.0)
    monkeypatch.setattr(estimate, "machine_rates", lambda device: (1e5, 1e5))


def test_a_long_run_says_so_in_one_line_before_it_starts(slow, tmp_path, caplog):
    run = evaluation.RunSettings(overlaps=False)
    with caplog.at_level(logging.INFO, logger="sslbench"):
        estimate.announce_features(pair(), (evaluation.make_task("knn", {}),), run, tmp_path)
    lines = [record.message for record in caplog.records]
    assert len(lines) == 1 and lines[0].startswith("this run is estimated to take") and "most of it knn" in lines[0]


def test_short_work_is_neither_measured_nor_announced(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(estimate, "machine_rates", lambda device: pytest.fail("the machine was measured"))
    with caplog.at_level(logging.INFO, logger="sslbench"):
        estimate.announce_features(pair(40), (evaluation.make_task("knn", {}),), evaluation.RunSettings(), tmp_path)
    assert not caplog.records


def test_what_does_not_fit_into_memory_is_refused_with_what_helps(slow, monkeypatch, tmp_path):
    task, run = evaluation.make_task("knn", {}), evaluation.RunSettings(overlaps=False)
    need = cost_of("knn", Shapes(600, 600, 32, 4)).memory
    monkeypatch.setattr(estimate, "free_memory", lambda: need * 0.99)
    with pytest.raises(ResourceError) as error:
        estimate.announce_features(pair(), (task,), run, tmp_path)
    assert "knn needs about" in error.value.message and "of memory" in error.value.message
    assert "--limit" in error.value.remedy and "--no-estimate" in error.value.remedy
    assert "max_memory" not in error.value.remedy  # the search is small: another limit of it does not help
    monkeypatch.setattr(estimate, "free_memory", lambda: need * 1.01)
    estimate.announce_features(pair(), (task,), run, tmp_path)
    monkeypatch.setattr(estimate, "free_memory", lambda: 1.0)
    estimate.announce_features(pair(), (task,), evaluation.RunSettings(estimate=False), tmp_path)


def test_a_refusal_names_the_limit_of_the_search_that_fits():
    shapes = dataclasses.replace(IMAGENET, test=100, classes=10)
    task = evaluation.make_task("retrieval", {"database": "train"})
    need, smaller = (cost_of("retrieval", shapes, database="train", max_memory=most).memory for most in (1.0, 0.25))
    part = estimate.Stage("retrieval", 1.0, need, task=task, shapes=shapes)
    with pytest.raises(ResourceError, match=r"max_memory=0\.25,"):
        estimate.Estimate((part,), smaller, 1e15, 1e15).check()


def test_a_refusal_names_a_protocol_that_fits():
    free = 8e9
    task = evaluation.make_task("svm", {})
    part = estimate.Stage("svm", 1.0, cost_of("svm", IMAGENET).memory, task=task, shapes=IMAGENET)
    with pytest.raises(ResourceError) as error:
        estimate.Estimate((part,), free, 1e15, 1e15).check()
    fitting = [name for name in ("knn", "linear", "lsr", "clustering") if cost_of(name, IMAGENET).memory <= free]
    assert "knn" in fitting and f"({', '.join(fitting)})" in error.value.remedy
    assert "max_memory" not in error.value.remedy


def test_the_file_of_too_many_scores_is_that_of_the_best_ones():
    shapes = dataclasses.replace(IMAGENET, test=50_000, classes=21_841)
    task, run = evaluation.make_task("knn", {}), evaluation.RunSettings(device="cpu")
    assert estimate._stage(task, [shapes], "knn", run).written == 50_000 * 256 * 8
    assert estimate._stage(task, [IMAGENET], "knn", run).written == 4 * IMAGENET.test * IMAGENET.classes


@pytest.mark.parametrize(("where", "remedy"), [("free_store", "--feature-dtype float16"), ("free_out", "--out")])
def test_what_does_not_fit_on_disk_is_refused(where, remedy):
    part = estimate.Stage("extraction: 1,000 images", 1.0, stored=2e9, written=2e9)
    sizes = {"free_memory": None, "free_store": 3e9, "free_out": 3e9}
    estimate.Estimate((part,), **sizes).check()
    with pytest.raises(ResourceError) as error:
        estimate.Estimate((part,), **sizes | {where: 1e9}).check()
    assert "2.0 GB" in error.value.message and "1.0 GB are free" in error.value.message
    assert remedy in error.value.remedy and "--no-estimate" in error.value.remedy


def test_features_that_do_not_fit_are_refused_before_an_image_is_decoded(monkeypatch, tmp_path):
    """All the way from the request, with the images of a real source, of which only the measured ones are read."""
    from sslbench.features import job

    monkeypatch.setattr(job.ExtractionJob, "open", lambda *given: pytest.fail("images were decoded"))
    monkeypatch.setattr(estimate, "free_disk", lambda folder: 1000.0)
    run = evaluation.RunSettings(device="cpu", workers=0)
    request = evaluation.Request("pixels:8", "sklearn:digits", (evaluation.make_task("knn", {"k": (5,)}),))
    prepared = evaluation.prepare(request, run)
    with pytest.raises(ResourceError, match="feature store"):
        evaluation.evaluate(prepared, store=tmp_path / "store", out=tmp_path / "out", command="test")
    found = estimate.estimate(prepared, tmp_path / "store", tmp_path / "out")
    extraction = found.stages[0]
    assert extraction.name == "extraction: 1,797 images" and extraction.seconds > 0
    assert extraction.stored == 1797 * 192 * 4  # 8 x 8 pixels of three channels
    assert [part.name for part in found.stages[1:]] == ["knn", "search for copies of test images in train"]


def test_few_images_of_a_large_network_are_measured_and_told(monkeypatch, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="sslbench")
    monkeypatch.setattr(estimate, "measure_rate", lambda *given: estimate.Rate(1.0, {"res5avg": 2048, "pixels": 192}))
    run = evaluation.RunSettings(device="cpu", workers=0)
    task = evaluation.make_task("knn", {"k": (5,)})
    for backbone in ("resnet18w0.125", "resnet50"):
        request = evaluation.Request("random", "sklearn:digits", (task,), backbone=backbone, limit=50)
        estimate.announce(evaluation.prepare(request, run), tmp_path, tmp_path)
    lines = [record.getMessage() for record in caplog.records if "estimated" in record.getMessage()]
    assert len(lines) == 1 and "extraction: 100 images" in lines[0], "the small one is quick anyway"


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
                prepared.backbone, source, prepared.layers, extract_settings(run), root=tmp_path, split="all",
                progress=stop,
            )  # fmt: skip
    return prepared


def extraction_of(prepared, store, monkeypatch, world=1):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(world))
    monkeypatch.setattr(estimate, "measure_rate", lambda *given: estimate.Rate(1.0, {"pixels": 192, "8": 192}))
    return estimate.estimate(prepared, store, store).stages[0]


def test_libraries_that_the_first_image_loads_are_no_part_of_the_rate(quarter, monkeypatch):
    clock, batches = [0.0], estimate.loader.batches

    def slow_at_first(*given, **more):
        clock[0] += 5.0 if not clock[0] else 0.01
        yield from batches(*given, **more)

    monkeypatch.setattr(estimate.loader, "batches", slow_at_first)
    monkeypatch.setattr(estimate.time, "perf_counter", lambda: clock[0])
    rate = estimate.measure_rate(quarter.backbone, quarter.data.test, quarter.layers, quarter.run)
    assert rate is not None and rate.seconds < 0.01


def test_of_an_unfinished_extraction_only_the_rest_is_estimated(quarter, tmp_path, monkeypatch):
    whole = extraction_of(quarter, tmp_path / "empty", monkeypatch)
    rest = extraction_of(quarter, tmp_path, monkeypatch)
    assert (whole.seconds, whole.stored) == (1797, 1797 * 192 * 4)
    assert 0 < rest.seconds <= 1797 - 448 and rest.name == f"extraction: {rest.seconds:,.0f} images"
    assert rest.stored == 0  # its file has its full size already


def test_of_features_that_another_run_publishes_meanwhile_nothing_is_left(quarter, tmp_path, monkeypatch):
    from sslbench.features import extract

    opened, run = estimate.partial.opened, extract_settings(quarter.run)

    def published(*given):
        file = opened(*given)
        extract.extract(quarter.backbone, quarter.data.whole, quarter.layers, run, root=tmp_path, split="all")
        return file

    monkeypatch.setattr(estimate.partial, "opened", published)
    assert extraction_of(quarter, tmp_path, monkeypatch).name == "knn"


def test_images_are_divided_among_processes(quarter, tmp_path, monkeypatch):
    one, four = (extraction_of(quarter, tmp_path / "empty", monkeypatch, world) for world in (1, 4))
    assert four.seconds == 450 == -(-one.seconds // 4) and four.stored == one.stored
    assert four.name == "extraction: 1,797 images by 4 processes"


def test_products_of_a_device_are_counted_at_its_rates(monkeypatch):
    """A protocol that computes there is quicker, but for the half-samples of its scores; others stay as they are."""
    monkeypatch.setattr(estimate, "machine_rates", lambda device: (1e10, 1e10) if device == "cpu" else (1e13, 1e12))
    on_device = {"knn": True, "retrieval": True, "linear": True, "segmentation-knn": True, "svm": False, "lsr": False}
    for name, there in on_device.items():
        cost = cost_of(name, IMAGENET)
        slow, fast = (estimate.seconds_of(cost, device) for device in ("cpu", "cuda"))
        assert (fast < slow / 2) == there and (fast == slow) != there, name
    knn = cost_of("knn", IMAGENET)
    assert estimate.seconds_of(knn, "cuda") > 2000 * knn.scores / 1e10
    few = dataclasses.replace(IMAGENET, train=1000, classes=10)
    assert not cost_of("linear", few).products_on_device  # as `linear` chooses


def test_rates_of_a_device_are_measured(monkeypatch):
    monkeypatch.setattr(estimate, "_SIDE", 64)
    monkeypatch.setattr(estimate, "_BYTES", 2**16)
    products, passes = estimate._device_rates("cpu")
    assert products > 1e7 and passes > 1e6


@pytest.mark.usefixtures("cores")
def test_a_plan_for_a_gpu_is_made_on_a_machine_without_one(tmp_path):
    task, run = Task("knn", find("knn").settings(), {}), RunSettings(device="cuda:63")
    assert estimate.estimate_features(pair(), [task], run, tmp_path).stages[0].seconds > 0
