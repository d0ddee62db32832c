"""Broken images in every kind of data location: all listed, or left out by id; never replaced, never another's row."""

import csv
import dataclasses
import io
import struct
import zlib

import numpy as np
import pytest
import torch
from helpers import containers
from PIL import Image
from sample_data import FORMATS, sample_module

from sslbench.backbones.build import build
from sslbench.backbones.layers import resolve_layers
from sslbench.data.open import open_data
from sslbench.data.source import Source
from sslbench.errors import DataError
from sslbench.features import store
from sslbench.features.array import ExtractSettings
from sslbench.features.extract import extract
from sslbench.features.store import left_out_warning, note_skipped, unreadable_error
from sslbench.preprocessing import Preprocessing
from sslbench.targets.none import Unlabelled

BROKEN = {"bee/07.png": b"no picture at all, but text", "cat/02.png": containers.png(2)[:60]}


WRITE = {kind: write for name in FORMATS for kind, write in sample_module(name).WRITE.items()}
CPU = ExtractSettings(torch.device("cpu"), batch_size=5, workers=0)


@pytest.fixture(scope="module")
def backbone():
    torch.set_num_threads(1)
    return dataclasses.replace(build("resnet_basic_1-1-1-1w0.25"), preprocessing=Preprocessing(32, (32, 32)))


def open_one(kind, root, samples):
    root.mkdir()
    (source,) = open_data(WRITE[kind](root, samples)).values()
    assert len(source) == len(samples)
    return source


def encode(backbone, source, root, settings=CPU):
    layers = resolve_layers(backbone, ("res5avg",))
    return extract(backbone, source, layers, settings, root=root, split="all")


@pytest.mark.parametrize("kind", WRITE)
def test_broken_images_stop_the_run_or_are_left_out_by_id(kind, backbone, tmp_path):
    samples = containers.pictures()
    assert set(BROKEN) <= set(samples)
    whole = encode(backbone, open_one(kind, tmp_path / "whole", samples), tmp_path / "a").features["res5avg"]
    broken = {name: (BROKEN.get(name, content), label) for name, (content, label) in samples.items()}
    source = open_one(kind, tmp_path / "broken", broken)
    with pytest.raises(DataError, match="2 of 12 images") as caught:
        encode(backbone, source, tmp_path / "b")
    assert "text" in str(caught.value) and "truncated" in str(caught.value)

    found = encode(backbone, source, tmp_path / "b", dataclasses.replace(CPU, on_error="skip"))
    features = found.features["res5avg"]
    left_out = {row["id"] for row in found.unreadable}
    assert len(left_out) == 2
    kept = [i for i, sample_id in enumerate(source.ids) if sample_id not in left_out]
    assert features.ids == tuple(source.ids[i] for i in kept) == tuple(whole.ids[i] for i in kept)
    np.testing.assert_allclose(features.x, whole.x[kept], atol=1e-5)
    listed = list(csv.DictReader((found.entry.folder / "skipped.csv").open()))
    assert [set(row) for row in listed] == [{"id", "path", "reason"}] * 2
    assert {row["id"] for row in listed} == left_out
    assert {row["reason"] for row in listed} == {"not an image (text)", "truncated PNG"}


def test_a_list_from_before_is_still_understood(tmp_path):
    entry = store.StoreEntry(tmp_path)
    (tmp_path / "unreadable.csv").write_text("id,path,reason\na,b/a.png,empty file\n")
    assert entry.unreadable() == [{"id": "a", "path": "b/a.png", "reason": "empty file"}]


class Named:
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def path(self, index):
        return self.paths[index]


def photos(*paths):
    labels = Unlabelled(len(paths))
    return Source("photos", tuple(sorted(paths)), labels, Named(sorted(paths)))


def rows(*paths):
    return [{"id": path, "path": path, "reason": "empty file"} for path in paths]


def test_the_list_beside_results_holds_what_every_evaluation_there_left_out_last(tmp_path):
    out = tmp_path / "results"

    def listed():
        return [row["path"] for row in csv.DictReader((out / "skipped.csv").open())]

    note_skipped(out, {"train": photos("a", "b")}, [])
    assert not (out / "skipped.csv").exists()
    note_skipped(out, {"train": photos("a", "b"), "test": photos("c")}, rows("a", "c"))
    assert listed() == ["a", "c"]
    note_skipped(out, {"train": photos("x", "y")}, rows("y"))
    assert listed() == ["a", "c", "y"]
    note_skipped(out, {"train": photos("a", "b"), "test": photos("c")}, rows("b"))
    assert listed() == ["y", "b"], "a and c were mended"
    note_skipped(out, {"train": photos("b", "y")}, [])
    assert not (out / "skipped.csv").exists()


@pytest.mark.parametrize(("number", "more"), [(50, []), (52, ["  ... and 2 more"])])
def test_up_to_fifty_unreadable_images_are_listed(number, more):
    lines = str(unreadable_error(photos("a"), [(str(i), "empty file") for i in range(number)])).splitlines()
    assert [line for line in lines if line.startswith("  ")] == [f"  {i}: empty file" for i in range(50)] + more


def encoded(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def odd_files():
    """Name -> (content, what the list says; None: it is read)."""
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 50, 3), dtype=np.uint8))
    jpeg, png = encoded(photo, "jpeg"), encoded(photo, "png")
    bomb = bytearray(png)
    bomb[16:24] = struct.pack(">II", 20_000, 10_000)
    bomb[29:33] = struct.pack(">I", zlib.crc32(bytes(bomb[12:29])))
    exif = Image.Exif()
    exif[0x0112] = 6
    grey16 = Image.fromarray((np.arange(3000, dtype=np.uint16) * 21).reshape(60, 50))
    return {
        "animated.gif": (encoded(photo.quantize(8), "gif", save_all=True, append_images=[photo.quantize(4)]), None),
        "bomb.png": (bytes(bomb), "more than the limit of 178,956,970"),
        "cmyk.jpg": (encoded(photo.convert("CMYK"), "jpeg"), None),
        "cut.jpg": (jpeg[: len(jpeg) // 2], "truncated JPEG"),
        "cut.png": (png[: len(png) // 2], "truncated PNG"),
        "depth.tif": (encoded(Image.fromarray(np.zeros((9, 9), np.float32)), "tiff"), "32 bits per sample"),
        "empty.png": (b"", "empty file"),
        "exif.jpg": (encoded(photo, "jpeg", exif=exif), None),
        "html.jpg": (b"<!DOCTYPE html><html><body>404</body></html>", "HTML"),
        "jpeg_named.png": (jpeg, None),
        "palette.png": (encoded(photo.quantize(16), "png", transparency=0), None),
        "pixel.png": (encoded(photo.crop((0, 0, 1, 1)), "png"), None),
        "scan.png": (encoded(grey16, "png"), None),
        "text.jpg": (b"hello, this is no picture\n" * 5, "not an image (text)"),
        "thin.png": (encoded(Image.new("RGB", (40_000, 1)), "png"), "40000 x 1 pixels become"),
        "zeros.jpg": (bytes(5000), "zero bytes"),
    }


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_of_odd_files_is_read_or_listed_file_by_file(backbone, tmp_path, workers):
    (tmp_path / "odd").mkdir()
    for name, (content, _) in odd_files().items():
        (tmp_path / "odd" / name).write_bytes(content)
    (tmp_path / "odd" / "gone.jpg").symlink_to("nowhere.jpg")
    source = open_data(str(tmp_path / "odd"))["all"]
    large = dataclasses.replace(backbone, preprocessing=Preprocessing(256, (224, 224)))
    found = encode(large, source, tmp_path, dataclasses.replace(CPU, on_error="skip", workers=workers))
    reasons = {row["id"]: row["reason"] for row in found.unreadable}
    expected = {name: reason for name, (_, reason) in odd_files().items() if reason} | {"gone.jpg": "cannot be read"}
    assert set(reasons) == set(expected)
    for name, reason in expected.items():
        assert reason in reasons[name], name
    assert len(found.features["res5avg"].x) == len(source) - len(expected)
    assert found.conversions == {
        "16 bit to 8 bit": 1,
        "CMYK to RGB": 1,
        "alpha dropped": 1,
        "first of several frames": 1,
        "grey to RGB": 1,
        "palette to RGB": 2,
        "turned upright (EXIF)": 1,
    }
    with pytest.raises(DataError, match=f"{len(expected)} of {len(source)} images"):
        encode(large, source, tmp_path)


def test_the_list_beside_results_names_the_split(tmp_path):
    note_skipped(tmp_path, {"train": photos("a", "b"), "test": photos("c")}, rows("a", "c"))
    listed = list(csv.DictReader((tmp_path / "skipped.csv").open()))
    assert [(row["split"], row["path"], row["reason"]) for row in listed] == [
        ("train", "a", "empty file"),
        ("test", "c", "empty file"),
    ]


def test_the_warning_names_the_first_three(tmp_path):
    paths = [f"{i}.jpg" for i in range(5)]
    assert "5 of 9 images" in (text := left_out_warning(photos(*paths, *"abcd"), paths))
    assert "0.jpg, 1.jpg, 2.jpg and 2 more" in text
