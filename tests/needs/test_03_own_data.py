"""Images and labels as they lie on somebody's disk are scored by one command, with no file edited and no registry."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sslbench.results.records import read_tree

OWN = ("--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--workers", "0", "--no-floors")


def pictures():
    """Path and class of each picture of photos/train."""
    return [(path, path.parent.name) for path in sorted(Path("photos/train").rglob("*.png"))]


def table():
    rows = [(str(path), name) for path, name in pictures()]
    return pd.DataFrame(rows, columns=["photo", "species"])


def csv():
    table().to_csv("photos.csv", index=False)
    return ("--data", "photos.csv", "--image-col", "photo", "--label-col", "species")


def parquet():
    table().to_parquet("photos.parquet")
    return ("--data", "photos.parquet", "--image-col", "photo", "--label-col", "species")


def class_folders():
    return ("--data", "photos/train")


def train_and_val():
    Path("photos/test").rename("photos/val")
    return ("--data", "photos")


def flat_folder_and_json():
    Path("flat").mkdir()
    labels = {}
    for path, name in pictures():
        labels[f"{name}-{path.name}"] = name
        path.rename(f"flat/{name}-{path.name}")
    Path("flat/labels.json").write_text(json.dumps(labels))
    return ("--data", "flat")


def url_of_a_folder():
    Path("photos/train").rename("my photos")
    return ("--data", Path("my photos").resolve().as_uri())


def pair_of_arrays():
    names = sorted({name for _, name in pictures()})
    np.save("x.npy", np.array([str(path) for path, _ in pictures()]))
    np.save("y.npy", np.array([names.index(name) for _, name in pictures()]))
    return ("--data", "vissl:x.npy,y.npy")


def shards():
    names = sorted({name for _, name in pictures()})
    for shard in range(2):
        with tarfile.open(f"photos-{shard:04d}.tar", "w") as tar:
            for i, (path, name) in enumerate(pictures()[shard::2]):
                members = {"png": path.read_bytes(), "cls": str(names.index(name)).encode()}
                for suffix, content in members.items():
                    info = tarfile.TarInfo(f"{shard}{i:04d}.{suffix}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    return ("--data", "photos-{0000..0001}.tar")


@pytest.mark.parametrize(
    "layout",
    [csv, parquet, class_folders, url_of_a_folder, train_and_val, flat_folder_and_json, pair_of_arrays, shards],
)
def test_one_command_splits_counts_and_scores(world, sslbench, layout):
    code, out, err = sslbench("eval", "knn", "linear", *OWN, *layout())
    assert code == 0, err
    assert {"knn", "linear"} <= set(out.split())
    records = read_tree(Path("results"))
    assert {record.protocol.name for record in records} == {"knn", "linear"}
    for record in records:
        assert record.metrics["top1"].value > 60, "classes are colours"
        assert record.data.train.n_used + record.data.test.n_used == (51 if layout is train_and_val else 36)
    assert "3 classes of " in err
    if layout is not train_and_val:
        assert "stratified" in records[0].data.how and "seed 0" in records[0].data.how
