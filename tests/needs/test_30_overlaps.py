"""Test images that train has too, also re-encoded and resized, are found and listed; the score without them is told."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

EVAL = ("eval", "knn", "k=1", "--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--workers", "0")


def pictures(copies):
    """d/train (150) and d/test (60) of smooth blobs; the first images of test lie in train too, every other one smaller
    or larger and as JPEG."""
    rng = np.random.default_rng(3)
    for part, n in (("train", 150), ("test", 60)):
        for i in range(n):
            blobs = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize((56, 48), 3)
            pixels = np.asarray(blobs) * 0.8 + rng.normal(20, 8, (48, 56, 3))
            folder = Path("d", part, "ab"[i % 2])
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i:03d}.png")
    for i in range(copies):
        file, copy = Path("d/test", "ab"[i % 2], f"{i:03d}.png"), Path("d/train", "ab"[i % 2], f"copy{i:03d}")
        if i < copies // 2:
            copy.with_suffix(".png").write_bytes(file.read_bytes())
        else:
            size = ((28, 24), (80, 70), (120, 100))[i % 3]
            Image.open(file).resize(size, 3).save(copy.with_suffix(".jpg"), quality=75)


@pytest.fixture
def overlapping(world):
    pictures(20)


def test_check_data_lists_the_pairs(overlapping, sslbench):
    code, out, _ = sslbench("check-data", "d", "--workers", "0", "--pairs", "pairs.csv")
    assert code == 1 and "10 of 60 images" in out
    rows = list(csv.DictReader(Path("pairs.csv").read_text().splitlines()))
    assert [row["how"] for row in rows].count("exact") == 10
    assert [row["how"] for row in rows].count("near") >= 9
    assert all(f"copy{row['test'][2:5]}" in row["train"] for row in rows)
    _, out, _ = sslbench("check-data", "d", "--workers", "0", "--json")
    assert [pair["test"] for pair in json.loads(out)["overlaps"]] == [row["test"] for row in rows]


def test_every_score_is_told_without_the_suspects_too(overlapping, sslbench):
    code, out, err = sslbench(*EVAL, "--data", "d", "--no-floors")
    assert code == 0, err
    text = " ".join(out.split())
    assert "20 suspected overlaps" in text or "19 suspected overlaps" in text
    assert "top1 without them" in text and " .. " in text.partition("top1 without them")[2]
    assert Path(text.partition("listed in ")[2].split()[0]).is_file()


def test_clean_data_have_no_pairs(world, sslbench):
    pictures(0)
    code, out, _ = sslbench("check-data", "d", "--workers", "0", "--pairs", "pairs.csv")
    assert code == 0 and len(list(csv.DictReader(Path("pairs.csv").read_text().splitlines()))) <= 0.001 * 60 * 150
    code, out, err = sslbench(*EVAL, "--data", "d", "--no-floors")
    assert code == 0 and "suspected overlap" not in out, err
