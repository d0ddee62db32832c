"""Images that cannot be read are all named before the run stops, or left out by id; odd ones are read and counted."""

import csv
import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sslbench.results import records

EVAL = ("eval", "knn", "k=3", "--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--data", "photos")
BROKEN = {
    "cut.jpg": "truncated JPEG",
    "empty.jpg": "empty file",
    "huge.png": "200,000,000 pixels, more than the limit",
    "text.jpg": "not an image (text)",
}


@pytest.fixture(scope="module")
def huge(tmp_path_factory):
    """A picture of 200 megapixels in a few bytes."""
    file = tmp_path_factory.mktemp("huge") / "huge.png"
    Image.new("1", (20_000, 10_000), 1).save(file)
    return file


@pytest.fixture
def odd(world, huge):
    """photos with nine odd files among the 36 of train."""
    folder = world / "photos" / "train" / "red"
    photo = Image.open(folder / "0.png").convert("RGB").resize((40, 30))
    file = io.BytesIO()
    photo.save(file, "JPEG")
    (folder / "cut.jpg").write_bytes(file.getvalue()[:-60])
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "text.jpg").write_text("no picture")
    shutil.copy(huge, folder)
    photo.convert("CMYK").save(folder / "cmyk.jpg")
    photo.convert("RGBA").quantize(8).save(folder / "palette.png", transparency=0)
    Image.fromarray(np.asarray(photo.convert("L")).astype(np.uint16) * 257).save(folder / "sixteen.png")
    exif = Image.Exif()
    exif[0x112] = 6
    photo.save(folder / "turned.jpg", exif=exif)
    photo.resize((1, 1)).save(folder / "one.png")
    return folder


@pytest.fixture
def evaluate(odd, sslbench):
    return lambda *words: sslbench(*EVAL, "--workers", "0", "--no-floors", "--no-overlaps", *words)


def test_a_run_stops_after_a_list_of_all_that_cannot_be_read(evaluate, odd):
    code, out, err = evaluate()
    assert (code, out) == (1, "") and "4 of 45 images" in err and "--on-error skip" in err
    for name, reason in BROKEN.items():
        assert f"photos/train/red/{name}: {reason}" in err
    assert not list(Path().rglob("results/**/*.json"))


def test_left_out_by_id_listed_and_counted_in_the_record(evaluate, odd):
    code, out, err = evaluate("--on-error", "skip")
    assert code == 0 and "41 of 45" in out, err
    for line in ("16 bit to 8 bit", "CMYK to RGB", "palette to RGB", "turned upright (EXIF)"):
        assert f"1 images: {line}" in err
    [record] = records.read_tree(Path("results"))
    assert (record.data.train.n, record.data.train.n_used) == (45, 41)
    [listed] = Path("results").rglob("skipped.csv")
    rows = list(csv.DictReader(listed.read_text().splitlines()))
    assert {Path(row["path"]).name for row in rows} == set(BROKEN)


def test_200_megapixels_are_read_where_the_limit_is_raised(evaluate, odd):
    code, out, err = evaluate("--on-error", "skip", "--max-pixels", "200000000")
    assert code == 0 and "42 of 45" in out, err
