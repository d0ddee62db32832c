"""How detection reads its images: the user's decoder, the limit, and all that cannot be read listed before training."""

import contextlib
import dataclasses
import json

import numpy as np
import pytest
from helpers.drawn_rectangles import recipe, source, task
from PIL import Image

from sslbench.data.decode.handlers import Reading
from sslbench.detection import batches as b
from sslbench.detection import checks
from sslbench.detection.checks import check_readable
from sslbench.errors import DataError, UsageError
from sslbench.evaluation import Request, RunSettings, prepare
from sslbench.evaluation.on_objects import _ObjectEvaluation
from sslbench.library.benchmarks import load_benchmark

NET = "resnet_basic_1-1-1-1w0.125"
RUN = RunSettings(device="cpu", workers=0)
DECODER = """
import numpy as np

def dark(path, file):
    return np.zeros((48, 48, 3), np.uint8) if path.endswith("3.png") else None

def no_picture(path, file):
    return "a text"
"""


@pytest.fixture
def manifest(tmp_path, monkeypatch):
    """A COCO manifest of ten pictures with one object each."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "decoders_of_detection_tests.py").write_text(DECODER)
    images, annotations = [], []
    for i in range(10):
        pixels = np.zeros((48, 48, 3), np.uint8)
        pixels[10:30, 5 + i : 25 + i] = 255
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
        images.append({"id": i + 1, "file_name": f"{i}.png", "width": 48, "height": 48})
        box = {"bbox": [5 + i, 10, 20, 20], "area": 400, "iscrowd": 0}
        annotations.append({"id": i + 1, "image_id": i + 1, "category_id": 1, **box})
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "box"}]}
    (tmp_path / "m.json").write_text(json.dumps(content))
    return tmp_path / "m.json"


def prepared(manifest, backbone=NET, **run):
    request = Request("random", str(manifest), (task(iterations=2, steps=()),), backbone=backbone)
    found = prepare(request, dataclasses.replace(RUN, **run))
    return _ObjectEvaluation(found, *found.object_tasks, manifest.parent / "out", "test", None)


def preprocessing(evaluation):
    return evaluation._blank(evaluation.prepared.backbone, "random", evaluation.run).preprocessing


def test_another_number_of_images_than_the_benchmark_has_marks_the_result(manifest):
    for samples, modified in (({"train": 8, "test": 2}, False), ({"train": 9}, True), ({"test": 3}, True)):
        benchmark = dataclasses.replace(load_benchmark("detection/toy"), samples=samples, classes=1, modified=False)
        on_benchmark = dataclasses.replace(task(iterations=2, steps=()), benchmark=benchmark)
        request = Request("random", str(manifest), (on_benchmark,), backbone=NET)
        assert prepare(request, RUN).request.tasks[0].benchmark.modified == modified


@pytest.mark.parametrize("workers", [0, 1])
def test_all_that_cannot_be_read_is_listed_before_training(workers, manifest):
    (manifest.parent / "2.png").write_bytes((manifest.parent / "2.png").read_bytes()[:60])
    (manifest.parent / "4.png").write_bytes(b"")
    Image.new("RGB", (20, 20)).save(manifest.parent / "7.png")
    found = prepared(manifest, workers=workers)
    with pytest.raises(DataError) as caught:
        found.results()
    text = str(caught.value)
    assert "2.png: truncated PNG" in text and "4.png: empty file" in text
    assert "7.png is 20 x 20 pixels, but the annotations are for 48 x 48" in text
    listed = [line for line in text.splitlines() if "images cannot be used" in line]
    assert sum(int(line.split(": ")[1].split()[0]) for line in listed) == 3
    assert not list((manifest.parent / "out").rglob("*.ckpt"))


def test_larger_pictures_than_the_limit_are_not_read(manifest):
    with pytest.raises(DataError, match="48 x 48 pixels, more than the limit of 2,000"):
        prepared(manifest, max_pixels=2000).results()
    found = prepared(manifest, max_pixels=3000)
    check_readable((found.train, found.test))
    with pytest.raises(UsageError, match="max_pixels"):
        prepared(manifest, max_pixels=0)


def test_the_users_decoder_reads_what_it_knows(manifest):
    (manifest.parent / "3.png").write_bytes(b"of a camera that nobody knows")
    found = prepared(manifest, decoder=("decoders_of_detection_tests.dark",))
    check_readable((found.train, found.test))
    part = next(p for p in (found.train, found.test) if any("3.png" in i for i in p.ids))
    index = next(i for i, name in enumerate(part.ids) if "3.png" in name)
    assert b.read(part, index).max() == 0
    seen = preprocessing(found)["decoder"]
    assert seen[0].startswith("decoders_of_detection_tests.dark@")


def test_the_usual_way_of_reading_leaves_records_as_they_were(manifest):
    assert set(preprocessing(prepared(manifest))) == {"mean", "std", "origin"}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_decoder_that_gives_no_picture_is_named(workers, manifest):
    found = prepared(manifest, decoder=("decoders_of_detection_tests.no_picture",))
    with pytest.raises(UsageError, match="no_picture returned a str") as caught:
        check_readable((found.train,), workers=workers)
    assert "Traceback" not in str(caught.value)


def test_what_detection_cannot_do_is_refused_at_once(manifest):
    with pytest.raises(UsageError, match="fast decodes at a reduced size"):
        prepared(manifest, decoder=("fast",))
    for channels in (1, 4):
        with pytest.raises(UsageError, match=f"take RGB images, and resnet.*takes {channels} channels"):
            prepared(manifest, f"resnet_basic_1-1-1-1w0.125,in_chans={channels}")
    with pytest.raises(UsageError, match="has no 'missing'"):
        prepared(manifest, decoder=("decoders_of_detection_tests.missing",))


def test_training_and_detecting_read_in_the_same_way():
    data = dataclasses.replace(source(), reading=Reading(max_pixels=100))
    for stream in (b.training_batches(data, recipe(), start=0, stop=1, seed=0), b.test_images(data, recipe(), [0])):
        with pytest.raises(DataError, match="more than the limit of 100"):
            next(iter(stream))


def test_every_process_reads_its_share_and_all_are_told_of_everything(manifest, monkeypatch):
    (manifest.parent / "0.png").write_bytes(b"")
    (manifest.parent / "1.png").write_bytes(b"")
    part = prepared(manifest).train
    own = {}
    for rank in (0, 1):
        monkeypatch.setattr(checks, "rank", lambda rank=rank: rank)
        monkeypatch.setattr(checks, "world_size", lambda: 2)
        monkeypatch.setattr(checks, "gather_objects", lambda found, rank=rank: [own.setdefault(rank, found)])
        with contextlib.suppress(DataError):
            check_readable((part,))
    bad = sum(i in part.ids for i in ("0.png", "1.png"))
    assert len(own[0]) + len(own[1]) == bad and not set(own[0]) & set(own[1])
