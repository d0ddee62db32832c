"""Nearly equal images are found as a plain search would, and features that cannot tell images apart accuse none."""

import csv
import io
import tracemalloc

import numpy as np
import pytest

from sslbench.data.checks import duplicates
from sslbench.data.checks.duplicates import as_csv, near_pairs, suspects
from sslbench.data.images import Arrays
from sslbench.data.source import Source
from sslbench.targets.none import Unlabelled


def rows_of(pairs):
    return [pair[:2] for pair in pairs]


def plain_search(a, b, threshold):
    """The rule, row by row, on vectors whitened by the eigenvectors of their covariance."""
    both = np.concatenate([a, b])
    centre = both.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(both.T, bias=True))
    x, y = ((part - centre) @ vectors / np.sqrt(values) for part in (a, b))
    x, y = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (x, y))
    found = []
    for i, row in enumerate(x):
        order = np.argsort(-(y @ row))[:8]
        others = [j for j in order if y[j] @ y[order[0]] < threshold]
        distance = [np.linalg.norm(row - y[j]) for j in order]
        alike = y[order[0]] @ row >= threshold
        if alike and others and distance[0] <= 0.5 * np.linalg.norm(row - y[others[0]]):
            found.append((i, int(order[0])))
    return found


@pytest.mark.parametrize("block", [(3, 11), (7, 1000), (512, 32768)])
def test_pairs_are_those_of_a_plain_search(block, monkeypatch):
    monkeypatch.setattr(duplicates, "_BLOCK", block)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(60, 12)) + 50, rng.normal(size=(90, 12)) + 50
    a[[4, 20, 33]] = b[[2, 70, 11]] + 0.01 * rng.normal(size=(3, 12))
    a[50] = b[60] + 0.6 * rng.normal(size=12)
    b[71] = b[70] + 0.01  # two copies of one image are found, not held against each other
    expected = plain_search(a, b, 0.8)
    assert {i for i, _ in expected} >= {4, 20, 33} and len(expected) < 6
    assert rows_of(near_pairs(a, b, threshold=0.8).pairs) == expected


@pytest.mark.parametrize("block", [(2, 5), (512, 32768)])
def test_with_itself_a_pair_counts_once_and_no_image_is_its_own_copy(block, monkeypatch):
    monkeypatch.setattr(duplicates, "_BLOCK", block)
    vectors = np.random.default_rng(1).normal(size=(80, 40))
    vectors[9] = vectors[31] * 1.001
    assert rows_of(near_pairs(vectors, None).pairs) == [(9, 31)]


def test_what_most_images_share_makes_no_pair():
    """A bright sky, or the offset of features behind a ReLU, is what plain cosines see."""
    rng = np.random.default_rng(2)
    sky = rng.normal(size=30)
    a, b = (100 + 20 * rng.normal(size=(n, 1)) * sky + rng.normal(size=(n, 30)) for n in (100, 200))
    plain = (a - 100) @ (b - 100).T / np.outer(*(np.linalg.norm(x - 100, axis=1) for x in (a, b)))
    assert (plain.max(axis=1) > 0.99).mean() > 0.6
    assert near_pairs(a, b).pairs == ()


def test_a_few_images_that_have_nothing_in_common_make_no_pair():
    for n in (6, 12, 24, 48):
        for seed in range(20):
            rng = np.random.default_rng(seed)
            assert near_pairs(rng.normal(size=(n, 200)), rng.normal(size=(2 * n, 200))).pairs == ()
            assert near_pairs(rng.normal(size=(n, 200)), None).pairs == ()


def collapsed(kind, rng):
    if kind == "all equal":
        return np.ones((40, 8), dtype=np.float32), np.ones((60, 8), dtype=np.float32)
    if kind == "rounding only":
        return 1000 + 1e-7 * rng.normal(size=(40, 8)), 1000 + 1e-7 * rng.normal(size=(60, 8))
    centres = rng.normal(size=(3, 8))
    return centres[np.arange(40) % 3], centres[np.arange(60) % 3]


def test_features_that_cannot_tell_images_apart_accuse_none():
    for kind in ("all equal", "rounding only", "one vector per class"):
        found = near_pairs(*collapsed(kind, np.random.default_rng(3)))
        assert found.pairs == () and found.problem


def test_images_that_could_not_be_read_are_like_no_other():
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=(30, 20)), rng.normal(size=(40, 20))
    a[3], b[7], b[8] = np.nan, np.nan, np.nan
    a[5] = b[9]
    assert rows_of(near_pairs(a, b).pairs) == [(5, 9)]
    assert near_pairs(np.full((3, 4), np.nan), np.full((5, 4), np.nan)).problem


def test_tiny_parts_are_no_error():
    for shape in ((0, 5), (1, 1), (2, 3), (5, 0)):
        rng = np.random.default_rng(5)
        assert near_pairs(rng.normal(size=(shape[0], 4)), rng.normal(size=(shape[1], 4))).pairs == ()


def test_many_long_vectors_are_not_held_in_double_precision():
    wide = np.random.default_rng(6).normal(size=(300, 5000)).astype(np.float16)
    other = np.random.default_rng(7).normal(size=(200, 5000)).astype(np.float16)
    other[5] = wide[17]
    assert rows_of(near_pairs(other, wide).pairs) == [(5, 17)]


def test_memory_does_not_grow_with_the_length_of_the_vectors(monkeypatch):
    monkeypatch.setattr(duplicates, "WIDEST", 500)
    monkeypatch.setattr(duplicates, "_CHUNK_BYTES", 1 << 20)
    rng = np.random.default_rng(8)
    wide, other = (rng.standard_normal((rows, 100_000), dtype=np.float32).astype(np.float16) for rows in (48, 16))
    other[5], other[6] = wide[17], wide[30] + 0.1 * other[6]
    other[7, 3] = np.nan
    tracemalloc.start()
    try:
        found = near_pairs(other, wide)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000  # the vectors have 51 MB in double precision
    finally:
        tracemalloc.stop()
    assert rows_of(found.pairs) == [(5, 17), (6, 30)]


def source(array, prefix):
    ids = tuple(f"{prefix}{i}" for i in range(len(array)))
    return Source(prefix, ids, Unlabelled(len(array)), Arrays(array, prefix))


def test_the_same_content_is_called_so_and_every_image_of_test_is_listed_once():
    images = np.random.default_rng(8).integers(0, 256, (9, 4, 4, 3), dtype=np.uint8)
    train, test = source(images[:6], "t"), source(np.concatenate([images[6:], images[2:3]]), "v")
    found = suspects(train, test, [("v1", "t5", 0.91234567), ("v3", "t2", 1.0)])
    assert [(one.test, one.train, one.how, one.cosine) for one in found] == [
        ("v1", "t5", "near", 0.9123),
        ("v3", "t2", "exact", 1.0),
    ]
    assert [one.how for one in suspects(train, test, [("v3", "t2", 1.0)], exact=False)] == ["near"]
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    assert rows[1] == {
        "test": "v3",
        "train": "t2",
        "how": "exact",
        "cosine": "1.0",
        "test_path": "v[3]",
        "train_path": "t[2]",
    }
