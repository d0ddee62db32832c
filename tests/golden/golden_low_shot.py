"""Few-shot least squares of big_vision, and the low-shot draws of VISSL."""

import random
import re

import numpy as np
import pytest
from golden_cases import Case

from sslbench.data.source import Labels
from sslbench.features.array import Features
from sslbench.protocols import lsr
from sslbench.protocols._parts import few_shot
from sslbench.solvers.ridge import LeastSquaresClassifier, fit_classifier


def least_squares(case: Case) -> None:
    given, wanted, args = case.inputs(), case.expected(), case.meta["args"]
    n_classes = int(max(given["train_y"].max(), given["test_y"].max())) + 1
    train, test = (_features(given[f"{part}_x"], given[f"{part}_y"], n_classes) for part in ("train", "test"))
    found = 0
    for seed in args["seeds"]:
        for shot in args["shots"]:
            if f"seed{seed}_shot{shot}/idx" not in wanted:
                continue
            draw = few_shot.k_per_class(train.labels, shot, seed, np.random.default_rng(seed))
            np.testing.assert_array_equal(draw.rows, np.sort(wanted[f"seed{seed}_shot{shot}/idx"]))
            model = fit_classifier(train.x[draw.rows], draw.labels.values, len(train.labels.classes))
            weights = re.compile(rf"seed{seed}_W_l2_([\d.e+]+)_first_shot")
            for name, l2 in [(name, m[1]) for name in wanted if (m := weights.fullmatch(name))]:
                if shot == args["shots"][0]:
                    np.testing.assert_allclose(model.weights(float(l2)), wanted[name], rtol=1e-7)
            for l2 in args["l2_reg"]:
                key = f"seed{seed}_shot{shot}_l2_{l2:g}/f64"
                if f"{key}/acc" in wanted:
                    _scores(model, l2, test, wanted, key)
                    found += 1
    assert found, "nothing was compared"
    if args["seeds"] == list(range(len(args["seeds"]))):
        _protocol(train, test, args, wanted)


def _scores(model: LeastSquaresClassifier, l2: float, test: Features, wanted: dict[str, np.ndarray], key: str) -> None:
    scores = model.decide(test.x, l2)
    if f"{key}/logits" in wanted:
        np.testing.assert_allclose(scores, wanted[f"{key}/logits"], rtol=1e-7, atol=1e-9)
    assert np.mean(scores.argmax(axis=1) == test.labels.values) == pytest.approx(float(wanted[f"{key}/acc"]))


def _protocol(train: Features, test: Features, args: dict, wanted: dict[str, np.ndarray]) -> None:
    """The protocol as a user runs it: its draws at seed 0 are the reference's seeds."""
    l2 = float(args.get("default_l2_in_configs", 1024))
    settings = lsr.Settings(k=tuple(args["shots"]), draws=len(args["seeds"]), l2=(l2,))
    outcome = lsr.run(train, test, settings, seed=0)
    for shot in args["shots"]:
        names = [f"seed{seed}_shot{shot}_l2_{l2:g}/f64/acc" for seed in args["seeds"]]
        if not all(name in wanted for name in names):  # the reference leaves out a shot that a class is too small for
            continue
        recorded = [float(wanted[name]) for name in names]
        variant = outcome.variants[f"k={shot}"]
        assert variant["top1"] == pytest.approx(np.mean(recorded))
        assert (variant["top1_min"], variant["top1_max"]) == pytest.approx((min(recorded), max(recorded)))


class PythonsChance:
    """The reference draws with `random.sample`; drawing with it too leaves everything but the chance to compare."""

    def __init__(self, state: random.Random, sizes: list[int]) -> None:
        self._state, self._sizes = state, iter(sizes)

    def permutation(self, rows: np.ndarray) -> np.ndarray:
        return np.array(self._state.sample(rows.tolist(), next(self._sizes)))


def with_and_without(case: Case) -> None:
    targets, wanted, args = case.inputs()["targets"], case.expected(), case.meta["args"]
    n_classes = targets.shape[1]
    labels = Labels("multi", tuple(f"class{c}" for c in range(n_classes)), targets.astype(np.int8))
    state, ks = random.Random(args["python_random_seed"]), [int(k) for k in args["k_values"].split(",")]
    names = {(int(m[1]), int(m[2])): key for key in wanted if (m := re.fullmatch(r".*_sample(\d+)_k(\d+)", key))}
    samples = sorted({sample for sample, _ in names})
    assert sorted(names) == [(sample, k) for sample in samples for k in sorted(ks)] and len(names) == len(wanted)
    for sample in samples:
        for k in ks:
            recorded = wanted[names[sample, k]]
            sizes = [k] * n_classes + [(n_classes - 1) * k] * n_classes
            np.testing.assert_array_equal(
                _matrix(few_shot.k_with_and_without(labels, k, 0, PythonsChance(state, sizes)), targets), recorded
            )
            ours = _matrix(few_shot.k_with_and_without(labels, k, sample), targets)
            for value in (1, 0):
                np.testing.assert_array_equal((ours == value).sum(axis=0), (recorded == value).sum(axis=0))


def _matrix(draw: few_shot.Draw, targets: np.ndarray) -> np.ndarray:
    """The reference's form of a draw: all of train, -1 for what was not drawn."""
    whole = np.full(targets.shape, -1)
    whole[draw.rows] = draw.labels.values
    return whole


def images_per_class(case: Case) -> None:
    given, wanted, args = case.inputs(), case.expected(), case.meta["args"]
    labels = _labels(given["targets"])
    state = random.Random(args["python_random_seed"])
    most = few_shot.largest_k(labels)[0]
    ks = [k for k in map(int, args["k_values"].split(",")) if k <= most]
    samples = sorted({int(re.search(r"_sample(\d+)_k", key)[1]) for key in wanted})
    assert len(wanted) == 2 * len(samples) * len(ks), "the reference leaves out a k larger than the smallest class"
    for sample in samples:
        for k in ks:
            draw = few_shot.k_per_class(labels, k, 0, PythonsChance(state, [k] * len(labels.classes)))
            assert sorted(given["images"][draw.rows]) == sorted(wanted[f"train_images_sample{sample}_k{k}"])
            np.testing.assert_array_equal(np.sort(draw.labels.values), wanted[f"train_labels_sample{sample}_k{k}"])


def data_limit(case: Case) -> None:
    given, wanted, args = case.inputs(), case.expected(), case.meta["args"]
    labels, n, skip, seed = _labels(given["labels"]), args["num_samples"], args["skip"], args["seed"]
    order = few_shot.orders(labels, np.random.RandomState(seed))
    # The reference shares n out among the classes, the first ones getting the remainder, after those that it skips.
    begin, length = ([total // len(order) + (c < total % len(order)) for c in range(len(order))] for total in (skip, n))
    ours = np.concatenate([rows[b : b + size] for rows, b, size in zip(order, begin, length, strict=True)])
    np.testing.assert_array_equal(ours, wanted["balanced"])
    if n % len(order) == 0 and skip == 0:
        draw = few_shot.k_per_class(labels, n // len(order), seed)
        np.testing.assert_array_equal(draw.rows, np.sort(wanted["balanced"]))
    shares = [few_shot.share(labels, m / len(labels), seed, stratified=False).rows for m in (n + skip, max(skip, 1))]
    drawn = np.setdiff1d(shares[0], shares[1]) if skip else shares[0]
    np.testing.assert_array_equal(drawn, np.sort(wanted["unbalanced"]))


def _labels(values: np.ndarray, n_classes: int | None = None) -> Labels:
    names = tuple(f"class{c}" for c in range(n_classes or values.max() + 1))
    return Labels("single", names, values.astype(np.int64))


def _features(x: np.ndarray, y: np.ndarray, n_classes: int) -> Features:
    return Features(x, _labels(y, n_classes), tuple(f"{i:05d}" for i in range(len(x))))


PATTERNS = {
    "07_fewshot_lsr/lsr_*": least_squares,
    "10_low_shot/voc_*": with_and_without,
    "10_low_shot/places_*": images_per_class,
    "10_low_shot/data_limit_*": data_limit,
}
