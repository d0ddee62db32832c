"""Features are plain arrays with an index of their images, in the order of the ids, and readable by numpy and csv."""

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

EXTRACT = ("extract", "--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--data", "photos")


def test_an_array_and_an_index_whose_rows_are_the_files(world, sslbench):
    code, _, err = sslbench(*EXTRACT, "--workers", "0", "--store", "feats")
    assert code == 0, err
    for path in Path("feats").rglob("index.csv"):
        rows = list(csv.DictReader(path.read_text().splitlines()))
        features = np.load(path.with_name("output.npy"), mmap_mode="r")
        assert isinstance(features, np.memmap) and features.shape == (len(rows), 12)
        assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
        assert [int(row["row"]) for row in rows] == list(range(len(rows)))
        assert all(Path(row["path"]).is_file() and row["label"] in row["path"] and row["digest"] for row in rows)
    code, _, err = sslbench(*EXTRACT, "--workers", "0", "--store", "feats")
    assert code == 0 and "features found in the store" in err and " images in " not in err, err


@pytest.mark.parametrize("suffix", ["parquet", "npz", "h5"])
def test_one_file_has_features_names_labels_and_sizes_and_is_scored_alike(world, sslbench, suffix):
    code, _, err = sslbench(*EXTRACT, "--workers", "0", "-o", f"f.{suffix}")
    assert code == 0, err
    if suffix == "parquet":
        table = pd.read_parquet("f.parquet")
        assert {"id", "path", "split", "width", "height", "label", "features"} <= set(table)
    if suffix == "npz":
        arrays = np.load("f.npz")
        assert {"features", "id", "label", "width", "height"} <= set(arrays)
    words = ("--no-floors", "--no-overlaps", "k=3")
    code, out, err = sslbench("eval", "knn", "--features", f"f.{suffix}", "--labels", f"f.{suffix}", *words)
    assert code == 0, err
    code, expected, err = sslbench("eval", "knn", *EXTRACT[1:], "--workers", "0", *words)
    rows = [next(line for line in text.splitlines() if line.startswith("knn ")) for text in (out, expected)]
    assert code == 0 and rows[0].split()[:3] == rows[1].split()[:3], err
