"""Extraction: every row is right, written once, found again, and continued after a kill."""

import csv
import dataclasses
import json
import multiprocessing
import os
import re
import signal

import numpy as np
import pytest
import torch
from helpers.waiting import SECONDS
from PIL import Image

from sslbench.backbones.build import build
from sslbench.backbones.layers import resolve_layers
from sslbench.data.images import Files
from sslbench.data.loading import loader
from sslbench.data.source import Source
from sslbench.data.splits import TrainTest
from sslbench.errors import DataError, StoreError
from sslbench.features.array import ExtractSettings
from sslbench.features.extract import extract
from sslbench.features.store import StoreEntry, find_stored
from sslbench.identity import FeatureKey
from sslbench.preprocessing import Preprocessing
from sslbench.targets.classes import Classes

FORK = multiprocessing.get_context("fork")
CPU = ExtractSettings(torch.device("cpu"), batch_size=4, workers=0)


@pytest.fixture(scope="module")
def backbone():
    torch.set_num_threads(1)
    return dataclasses.replace(build("resnet_basic_1-1-1-1w0.25"), preprocessing=Preprocessing(32, (32, 32)))


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(11):
        Image.fromarray(rng.integers(0, 255, (40, 36, 3), dtype=np.uint8)).save(folder / f"{i:02d}.png")
    return folder


def source_of(folder):
    files = sorted(folder.glob("*.png"))
    # One name begins like a formula of a spreadsheet.
    labels = Classes(("even", "-odd"), np.array([int(f.stem) % 2 for f in files]))
    return Source("pictures", tuple(f.name for f in files), labels, Files(tuple(files)))


def run(backbone, source, root, *layers, settings=CPU, progress=None):
    chosen = resolve_layers(backbone, layers or ("res5avg",))
    return extract(backbone, source, chosen, settings, root=root, split="all", progress=progress)


def test_pixels_are_those_of_torchvision_but_for_one_level(backbone, pictures):
    """Torchvision resizes with Pillow, sslbench with torch: each rounds to a level, by its own kernels."""
    from torchvision.transforms import v2

    transform = v2.Compose([v2.Resize(32), v2.CenterCrop(32), v2.PILToTensor()])
    source = source_of(pictures)
    wanted = [transform(Image.open(source.images.path(i)).convert("RGB")) for i in range(len(source))]
    difference = pixels(backbone, source).int() - torch.stack(wanted).int()
    assert difference.abs().max() <= 1


def pixels(backbone, source):
    """The images as the loader gives them, uint8 (N, 3, H, W)."""
    return torch.cat(
        [batch.images for batch in loader.batches(source, ALL, backbone.preprocessing, batch_size=4, workers=0)]
    )


ALL = np.arange(11)


def plain_features(backbone, source):
    """The oracle: one image at a time through the unchanged module."""
    p = backbone.preprocessing
    rows = []
    for image in pixels(backbone, source).float() / 255:
        image = (image - torch.tensor(p.mean)[:, None, None]) / torch.tensor(p.std)[:, None, None]
        with torch.no_grad():
            rows.append(backbone.module(image[None]).flatten().numpy())
    return np.stack(rows)


def test_features_are_those_of_the_plain_module(backbone, pictures, tmp_path):
    source = source_of(pictures)
    found = run(backbone, source, tmp_path / "store")
    features = found.features["res5avg"]
    wanted = plain_features(backbone, source)
    assert np.abs(features.x - wanted).max() < 1e-4 * np.abs(wanted).max()  # `speed.TOLERANCE` of folded BatchNorm
    assert features.ids == source.ids
    assert features.target.values.tolist() == source.target.values.tolist()
    assert found.decoded == 11


def test_the_store_has_named_rows_and_nothing_unfinished(backbone, pictures, tmp_path):
    source = source_of(pictures)
    entry = run(backbone, source, tmp_path / "store", "res4", "res5avg").entry
    assert {f.name for f in entry.folder.iterdir()} == {"index.csv", "meta.json", "lock", "res4.npy", "res5avg.npy"}
    rows = list(csv.DictReader((entry.folder / "index.csv").open()))
    assert [row["id"] for row in rows] == list(source.ids)
    assert rows[3] == {
        "row": "3",
        "id": "03.png",
        "path": str(pictures / "03.png"),
        "label": "-odd",
        "split": "all",
        "digest": source.images.digests()[3].tobytes().hex(),
    }
    array = np.load(entry.folder / "res5avg.npy", mmap_mode="r")
    assert array.dtype == np.float32
    assert array.nbytes * 1.1 + 4096 > sum(f.stat().st_size for f in entry.folder.glob("res5avg*"))
    assert json.loads((entry.folder / "meta.json").read_text())["rows"] == 11


def test_a_second_run_decodes_nothing_whatever_the_batch_size(backbone, pictures, tmp_path):
    source = source_of(pictures)
    first = run(backbone, source, tmp_path / "store")
    other = dataclasses.replace(CPU, batch_size=3, workers=1)
    second = run(backbone, source_of(pictures), tmp_path / "store", settings=other)
    assert second.decoded == 0
    assert np.array_equal(first.features["res5avg"].x, second.features["res5avg"].x)


def test_another_layer_is_added_without_touching_the_first(backbone, pictures, tmp_path):
    source = source_of(pictures)
    first = run(backbone, source, tmp_path / "store")
    before = (first.entry.folder / "res5avg.npy").stat().st_mtime_ns
    second = run(backbone, source, tmp_path / "store", "res5avg", "res3")
    assert second.entry == first.entry
    assert second.decoded == 11
    assert (first.entry.folder / "res5avg.npy").stat().st_mtime_ns == before


def test_of_several_stored_features_the_newest_are_found(backbone, pictures, tmp_path):
    source, store = source_of(pictures), tmp_path / "store"
    others = dataclasses.replace(backbone, preprocessing=Preprocessing(32, (24, 24)))
    entries = [run(each, source, store) for each in (backbone, others)]
    for newest in (0, 1):
        for number, found in enumerate(entries):
            os.utime(found.entry.folder / "meta.json", (1e9 + (number == newest),) * 2)
        stored = find_stored(store, TrainTest(source, source, "the same"))
        for part in (stored.train, stored.test):
            np.testing.assert_array_equal(part, entries[newest].features["res5avg"].x)


@pytest.mark.parametrize("what", ["image", "added", "removed", "others", "weight", "crop", "precision", "dtype"])
def test_any_change_is_a_miss_that_names_what_changed(backbone, pictures, tmp_path, caplog, what):
    caplog.set_level("DEBUG", "sslbench")
    first = run(backbone, source_of(pictures), tmp_path / "store")
    settings, changed = CPU, backbone
    if what == "image":
        content = bytearray((pictures / "05.png").read_bytes())
        content[-1] ^= 1
        (pictures / "05.png").write_bytes(bytes(content))
        expected = "1 of 11 images changed: 05.png"
    elif what == "added":
        Image.new("RGB", (40, 40)).save(pictures / "99.png")
        expected = "1 of 12 images added: 99.png"
    elif what == "removed":
        (pictures / "00.png").unlink()
        expected = "1 of 11 images removed: 00.png"
    elif what == "others":
        for picture in sorted(pictures.iterdir()):
            picture.rename(picture.with_name(f"1{picture.name}"))
        expected = "no stored features fit: other images"
    elif what == "weight":
        changed = build("resnet_basic_1-1-1-1w0.25")
        changed.module.bn1.bias.data[0] += 1e-3
        changed = dataclasses.replace(changed, preprocessing=backbone.preprocessing)
        expected = "other weights"
    elif what == "crop":
        changed = dataclasses.replace(backbone, preprocessing=Preprocessing(32, (24, 24)))
        expected = "the preprocessing changed (crop: [32, 32] -> [24, 24])"
    elif what == "precision":
        settings = dataclasses.replace(CPU, precision="bf16")
        expected = "the precision changed (fp32 -> bf16)"
    else:
        settings = dataclasses.replace(CPU, dtype="float16")
        expected = "the dtype changed (float32 -> float16)"
    caplog.clear()
    second = run(changed, source_of(pictures), tmp_path / "store", settings=settings)
    assert second.entry != first.entry
    assert second.decoded == len(source_of(pictures))
    (told,) = [record for record in caplog.records if expected in record.getMessage()]
    assert (told.levelname == "DEBUG") == (what == "weight")  # networks compared on the same images are no surprise


def test_an_unreadable_image_stops_after_listing_all_of_them(backbone, pictures, tmp_path):
    (pictures / "02.png").write_bytes(b"")
    (pictures / "08.png").write_text("no image")
    with pytest.raises(DataError) as error:
        run(backbone, source_of(pictures), tmp_path / "store")
    assert "2 of 11 images of pictures cannot be read" in str(error.value)
    assert "02.png: " in str(error.value) and "08.png: " in str(error.value)
    assert not list((tmp_path / "store").glob("*/*.npy"))


def test_skipping_leaves_rows_out_by_id_and_a_later_strict_run_still_stops(backbone, pictures, tmp_path):
    whole = run(backbone, source_of(pictures), tmp_path / "other").features["res5avg"].x
    (pictures / "02.png").write_bytes(b"")
    skip = dataclasses.replace(CPU, on_error="skip")
    found = run(backbone, source_of(pictures), tmp_path / "store", settings=skip)
    kept = [i for i in range(11) if i != 2]
    assert found.features["res5avg"].ids == tuple(source_of(pictures).ids[i] for i in kept)
    assert np.allclose(found.features["res5avg"].x, whole[kept], atol=1e-5)
    assert [row["id"] for row in found.unreadable] == ["02.png"]
    assert [row["id"] for row in found.entry.index_rows()] == list(found.features["res5avg"].ids)
    with pytest.raises(DataError, match="1 of 11 images"):
        run(backbone, source_of(pictures), tmp_path / "store")


def _extract_and_stay(backbone, folder, root, reached):
    """Encode images one by one, and stop for ever at the fourth one."""
    from sslbench.features import job

    def progress(done, total):
        if done == 4:
            reached.set()
            signal.pause()

    job.FLUSH_SECONDS = 0.0
    run(backbone, source_of(folder), root, settings=dataclasses.replace(CPU, batch_size=1), progress=progress)


def test_a_killed_extraction_is_never_taken_for_complete_and_is_continued(backbone, pictures, tmp_path):
    root, reached = tmp_path / "store", FORK.Event()
    process = FORK.Process(target=_extract_and_stay, args=(backbone, pictures, root, reached))
    process.start()
    assert reached.wait(SECONDS)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not list(root.glob("*/*.npy"))
    source = source_of(pictures)
    found = run(backbone, source, root)
    assert found.decoded == 8, "three are done"
    oracle = run(backbone, source, tmp_path / "other").features["res5avg"].x
    assert np.allclose(found.features["res5avg"].x, oracle, atol=1e-5)


def test_features_of_another_shape_than_described_are_refused(tmp_path):
    entry = StoreEntry(tmp_path)
    (tmp_path / "meta.json").write_text('{"rows": 3}')
    for shape in ((3,), (2, 4), (3, 4, 1)):
        np.save(entry.layer_file("res5avg"), np.zeros(shape, np.float32))
        with pytest.raises(StoreError, match=re.escape(f"shape {shape}, its index.csv should have 3 rows")):
            entry.read("res5avg")


def test_damaged_features_are_refused(backbone, pictures, tmp_path):
    entry = run(backbone, source_of(pictures), tmp_path / "store").entry
    path = entry.layer_file("res5avg")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(StoreError, match="Delete the folder"):
        run(backbone, source_of(pictures), tmp_path / "store")


def test_the_key_is_not_about_how_it_was_computed(backbone, pictures):
    from sslbench.features.extract import store_key

    source = source_of(pictures)
    fields = {f.name for f in dataclasses.fields(FeatureKey)}
    assert fields == {"weights", "backbone", "images", "preprocessing", "precision", "dtype", "encoding"}
    key, other = store_key(backbone, source, CPU), dataclasses.replace(CPU, batch_size=99, workers=5, on_error="skip")
    assert key == store_key(backbone, source, other)
    changed = {name: {"a": "b"} if isinstance(getattr(key, name), dict) else 99 for name in fields}
    names = {dataclasses.replace(key, **{name: value}).digest() for name, value in changed.items()}
    assert len({key.digest(), *names}) == 1 + len(fields), "every field decides the name of the entry"
