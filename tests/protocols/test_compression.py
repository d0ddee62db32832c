"""Compressed features of knn and retrieval against codes written out by hand, and searches of their own."""

import dataclasses

import numpy as np
import pytest

from sslbench.errors import DataError, UsageError
from sslbench.metrics.intervals import paired_difference
from sslbench.protocols import knn, retrieval
from sslbench.protocols._parts.compression import compressions
from sslbench.protocols.retrieval.descriptors import unit_length


def coded(x, bits):
    if bits == 1:
        return np.where(x > x.mean(axis=0), 1.0, -1.0)
    low, high = x.min(axis=0), x.max(axis=0)
    step = (high - low) / 255
    return low + (np.floor((x - low) / step).clip(0, 255) + 0.5) * step


@pytest.mark.parametrize("bits", [1, 8])
def test_codes_are_signs_around_the_mean_and_256_steps_per_feature(blobs, bits):
    train, test = blobs(300, 40, width=16)
    ((name, code),) = compressions(knn.Settings(bits=(bits,)), train.order)
    own, queries = code(train.x, test.x)
    assert name == f"bits={bits}"
    steps = np.ptp(train.x, axis=0) / 255 if bits == 8 else 1e-9
    assert (np.abs(own - coded(train.x.astype(np.float64), bits)) <= 1.01 * steps).all()  # rounding at a step
    assert np.array_equal(queries, test.x) == (bits == 8), "queries are not coded, but for signs"


def test_product_quantisation_has_256_values_per_group_of_features(blobs):
    train, test = blobs(300, 40, width=16)
    ((_, code),) = compressions(knn.Settings(bits=(0.5,)), train.order)
    own, queries = code(train.x, test.x)
    assert len(np.unique(own, axis=0)) <= 256 and np.array_equal(queries, test.x)
    assert np.linalg.norm(own - train.x) < 0.8 * np.linalg.norm(train.x - train.x.mean(axis=0))


def test_codes_depend_neither_on_the_order_of_the_files_nor_on_other_samples(blobs, capfd):
    train, test = blobs(300, 300, width=16)
    rows = np.random.default_rng(3).permutation(300)
    moved = dataclasses.replace(train.select(rows), rank=rows)
    ((_, code),) = compressions(knn.Settings(bits=(0.5,)), train.order)
    ((_, other),) = compressions(knn.Settings(bits=(0.5,)), moved.order)
    assert np.array_equal(code(train.x, test.x)[0][rows], other(moved.x, test.x[:1])[0])
    # Of a mixed test part, the rows that are the database are learnt in the order of their ranks.
    settings = retrieval.Settings(bits=(0.5,))
    ranked = dataclasses.replace(test.select(rows), rank=rows)
    one, two = (retrieval.run(part, part, settings, seed=0).metrics for part in (test, ranked))
    assert {name: value[0] for name, value in one.items()} == pytest.approx({k: v[0] for k, v in two.items()})
    assert "WARNING" not in "".join(capfd.readouterr()), "faiss has nothing to say to the user"


@pytest.mark.parametrize("multi", [False, True])
def test_knn_reports_the_loss_of_each_compression_with_its_paired_interval(blobs, multi):
    train, test = blobs(300, 120, width=16, multi=multi)
    settings = knn.Settings(k=(5,), dims=(4, 16), bits=(8,))
    outcome = knn.run(train, test, settings, seed=0)
    alone = knn.run(
        *(dataclasses.replace(part, x=part.x[:, :4]) for part in (train, test)), knn.Settings(k=(5,)), seed=0
    )
    name = outcome.headline
    assert outcome.metrics[f"{name}(dims=4)"] == alone.metrics[name]
    loss = outcome.metrics["compression_loss(dims=4)"]
    assert loss[0] == pytest.approx(outcome.metrics[name][0] - alone.metrics[name][0]) and loss[1] < loss[0] < loss[2]
    if not multi:
        right = [(each.scores.argmax(axis=1) == test.target.values).astype(float) for each in (outcome, alone)]
        assert loss == pytest.approx(paired_difference(*right), abs=0.02)
    assert outcome.metrics["compression_loss(dims=16)"] == (0.0, 0.0, 0.0)
    assert abs(outcome.metrics["compression_loss(bits=8)"][0]) < 0.05
    plain = knn.run(train, test, knn.Settings(k=(5,)), seed=0)
    assert all(repr(outcome.metrics[name]) == repr(value) for name, value in plain.metrics.items())
    assert np.array_equal(plain.scores, outcome.scores)


def test_leave_one_out_searches_codes_by_codes(blobs):
    train, _ = blobs(300, 40, width=16)
    outcome = knn.run(train, train, knn.Settings(leave_one_out=True, bits=(1,), k=(5,)), seed=0)
    signs = dataclasses.replace(train, x=coded(train.x, 1).astype(np.float32))
    alone = knn.run(signs, signs, knn.Settings(leave_one_out=True, k=(5,)), seed=0)
    assert outcome.metrics["top1(bits=1)"] == alone.metrics["top1"]


def test_retrieval_ranks_compressed_descriptors(blobs):
    train, test = blobs(40, 120, width=16)
    outcome = retrieval.run(train, test, retrieval.Settings(dims=(4,), bits=(1,)), seed=0)
    short = [dataclasses.replace(part, x=unit_length(part.x)[:, :4]) for part in (train, test)]
    alone = retrieval.run(*short, retrieval.Settings(), seed=0)
    name = outcome.headline
    assert outcome.metrics[f"{name}(dims=4)"] == pytest.approx(alone.metrics[name])
    loss = outcome.metrics["compression_loss(dims=4)"]
    assert loss[0] == pytest.approx(outcome.metrics[name][0] - alone.metrics[name][0]) and loss[1] < loss[0] < loss[2]
    assert outcome.counts["compression_loss(bits=1)"] == outcome.counts[name]


def test_impossible_compressions_are_refused(blobs):
    train, test = blobs(80, 80, width=12)
    with pytest.raises(UsageError, match=r"knn: bits should be 8 \(int8\), 1 \(binary\) or 8 / n below 1, not 4"):
        knn.Settings(bits=(4,))
    with pytest.raises(UsageError, match="knn: there are 12 features, fewer than dims=13"):
        knn.run(train, test, knn.Settings(dims=(13,)), seed=0)
    with pytest.raises(UsageError, match=r"bits=0\.5 codes 16 features together, and 12 features are no multiple"):
        knn.run(train, test, knn.Settings(bits=(0.5,)), seed=0)
    with pytest.raises(DataError, match="retrieval: product quantisation learns 256 centres, and the database has 80"):
        retrieval.run(train, train, retrieval.Settings(bits=(4 / 6,)), seed=0)
