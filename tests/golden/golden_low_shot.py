"""Few-shot least squares of big_vision, and the low-shot draws of VISSL."""

import random
import re
from collections.abc import Mapping
from typing import Any
from unittest import mock

import numpy as np
import pytest
from golden_cases import Case, option

from sslbench.features.array import Features
from sslbench.protocols import lsr
from sslbench.protocols._parts import few_shot
from sslbench.solvers.ridge import LeastSquaresClassifier, fit_classifier
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.target import Target


def least_squares(case: Case) -> None:
    """Compare draws, models and accuracies; those of a sample on the boundary depend on rounding."""
    given, wanted, args = case.inputs(), case.expected(), case.args
    n_classes = int(max(given["train_y"].max(), given["test_y"].max())) + 1
    train, test = (_features(given[f"{part}_x"], given[f"{part}_y"], n_classes) for part in ("train", "test"))
    keys = [re.fullmatch(r"seed(\d+)_shot(\d+)_l2_([\d.e+-]+)/f64/acc", key) for key in wanted]
    runs = [(int(key[1]), int(key[2]), key[3]) for key in keys if key]
    assert runs, "nothing was compared"
    for seed, shot in sorted({run[:2] for run in runs}):
        draw = few_shot.k_per_class(train.target, shot, np.random.default_rng(seed))
        if f"seed{seed}_shot{shot}/idx" in wanted:
            np.testing.assert_array_equal(draw.rows, np.sort(wanted[f"seed{seed}_shot{shot}/idx"]))
        model = fit_classifier(train.x[draw.rows], draw.labels.values, len(train.target.classes))
        if shot == min(option(args, "shots", default=[run[1] for run in runs])):
            weights = re.compile(rf"seed{seed}_W_l2_([\d.e+-]+)_first_shot")
            for name, l2 in [(name, m[1]) for name in wanted if (m := weights.fullmatch(name))]:
                atol = 1e-9 * np.abs(wanted[name]).max()
                np.testing.assert_allclose(model.weights(_value(l2, args)), wanted[name], rtol=1e-7, atol=atol)
        for l2 in [run[2] for run in runs if run[:2] == (seed, shot)]:
            _scores(model, _value(l2, args), test, wanted, f"seed{seed}_shot{shot}_l2_{l2}/f64")
    _protocol(train, test, args, wanted, runs)


def _value(text: str, args: Mapping[str, Any]) -> float:
    """Return the regularisation of a key, which has six digits of it."""
    exact = np.atleast_1d(option(args, "l2_reg", default=[])).tolist()
    return next((value for value in exact if f"{value:g}" == text), float(text))


def _scores(model: LeastSquaresClassifier, l2: float, test: Features, wanted: dict[str, np.ndarray], key: str) -> None:
    scores = model.decide(test.x, l2)
    if f"{key}/logits" in wanted:
        np.testing.assert_allclose(scores, wanted[f"{key}/logits"], rtol=1e-7, atol=1e-9)
    if _decided(wanted, key):
        assert np.mean(scores.argmax(axis=1) == test.target.values) == pytest.approx(float(wanted[f"{key}/acc"]))


def _decided(wanted: Mapping[str, np.ndarray], key: str) -> bool:
    """Tell whether no sample lies on the boundary between two classes."""
    return float(wanted.get(f"{key}/min_margin", 1.0)) > 1e-9


def _protocol(
    train: Features, test: Features, args: Mapping[str, Any], wanted: dict[str, np.ndarray], runs: list[tuple]
) -> None:
    """The protocol as a user runs it, but for the draws, which are the reference's; its seeds are those from 0."""
    l2 = f"{float(option(args, 'default_l2_in_configs', default=1024)):g}"
    seeds = range(len({run[0] for run in runs}))
    most = few_shot.largest_k(train.target)[0]
    shots = [k for k in sorted({run[1] for run in runs}) if k <= most and all((s, k, l2) in runs for s in seeds)]
    if not shots:
        return
    settings = lsr.Settings(k=tuple(shots), draws=len(seeds), l2=(_value(l2, args),))
    with mock.patch.object(few_shot, "ByName", lambda ids, seed: np.random.default_rng(seed)):
        outcome = lsr.run(train, test, settings, seed=0)
    for shot in shots:
        names = [f"seed{seed}_shot{shot}_l2_{l2}/f64" for seed in seeds]
        if all(_decided(wanted, name) for name in names):
            recorded = [float(wanted[f"{name}/acc"]) for name in names]
            variant = outcome.variants[f"k={shot}"]
            assert variant["top1"] == pytest.approx(np.mean(recorded))
            assert (variant["top1_min"], variant["top1_max"]) == pytest.approx((min(recorded), max(recorded)))


class PythonsChance:
    """The reference draws with `random.sample`; drawing with it too leaves everything but the chance to compare."""

    def __init__(self, state: random.Random, sizes: list[int]) -> None:
        self._state, self._sizes = state, iter(sizes)

    def permutation(self, rows: np.ndarray) -> np.ndarray:
        return np.array(self._state.sample(rows.tolist(), next(self._sizes)), dtype=np.int64)


def with_and_without(case: Case) -> None:
    """Compare the draws, sample after sample and k after k, as far as the reference came."""
    targets, wanted, args = case.inputs()["targets"], case.expected(), case.args
    n_classes = targets.shape[1]
    labels = MultiLabel(tuple(f"class{c}" for c in range(n_classes)), targets.astype(np.int8))
    names = {(int(m[1]), int(m[2])): key for key in wanted if (m := re.fullmatch(r".*_sample(\d+)_k(\d+)", key))}
    assert names and len(names) == len(wanted)
    seed, ks = args.get("python_random_seed"), _ks(args)
    state = random.Random(seed)
    for sample in sorted({sample for sample, _ in names}):
        for k in ks:
            if (sample, k) not in names:
                continue
            recorded = wanted[names[sample, k]]
            if seed is not None:
                sizes = [k] * n_classes + [(n_classes - 1) * k] * n_classes
                ours = few_shot.k_with_and_without(labels, k, PythonsChance(state, sizes))
                np.testing.assert_array_equal(_matrix(ours, targets), recorded)
            order = few_shot.ByName(list(map(str, range(len(labels)))), sample)
            ours = _matrix(few_shot.k_with_and_without(labels, k, order), targets)
            for value in (1, 0) if n_classes > 1 else (1,):  # of one class the reference draws no negatives
                np.testing.assert_array_equal((ours == value).sum(axis=0), (recorded == value).sum(axis=0))


def _ks(args: Mapping[str, Any]) -> list[int]:
    values = option(args, "k_values", default="1,2,4,8,16,32,64,96")
    return [int(k) for k in (values.split(",") if isinstance(values, str) else values)]


def _matrix(draw: few_shot.Draw, targets: np.ndarray) -> np.ndarray:
    """The reference's form of a draw: all of train, -1 for what was not drawn."""
    whole = np.full(targets.shape, -1)
    whole[draw.rows] = draw.labels.values
    return whole


def images_per_class(case: Case) -> None:
    """Compare the draws; the reference leaves out a k larger than the smallest class, also one without images."""
    given, wanted, args = case.inputs(), case.expected(), case.args
    labels = _labels(given["targets"])
    seed = args.get("python_random_seed")
    state = random.Random(seed)
    most = int(np.bincount(given["targets"]).min())
    ks = [k for k in _ks(args) if k <= most]
    samples = sorted({int(re.search(r"_sample(\d+)_k", key)[1]) for key in wanted})
    assert len(wanted) == 2 * len(samples) * len(ks) and bool(wanted) == bool(ks)
    if most:
        assert few_shot.largest_k(labels)[0] == most
    for sample in samples:
        for k in ks:
            recorded = wanted[f"train_labels_sample{sample}_k{k}"]
            if seed is None:
                draw = few_shot.k_per_class(labels, k, few_shot.ByName(list(map(str, range(len(labels)))), sample))
            else:
                draw = few_shot.k_per_class(labels, k, PythonsChance(state, [k] * len(labels.classes)))
                assert sorted(given["images"][draw.rows]) == sorted(wanted[f"train_images_sample{sample}_k{k}"])
            np.testing.assert_array_equal(np.sort(draw.labels.values), recorded)


def data_limit(case: Case) -> None:
    """Compare the draws of both kinds, as far as the reference has them; it needs a sample of each class."""
    given, wanted, args = case.inputs(), case.expected(), case.args
    labels, n = _labels(given["labels"]), args["num_samples"]
    skip, seed = option(args, "skip", "skip_samples", default=0), option(args, "seed", default=0)
    assert wanted or case.meta.get("reference_errors")
    if "balanced" in wanted:
        order = few_shot.orders(labels, np.random.RandomState(seed))
        # The reference shares n out among the classes, the first ones getting the remainder, after those it skips.
        begin, length = (
            [total // len(order) + (c < total % len(order)) for c in range(len(order))] for total in (skip, n)
        )
        ours = np.concatenate([rows[b : b + size] for rows, b, size in zip(order, begin, length, strict=True)])
        np.testing.assert_array_equal(ours, wanted["balanced"])
        if n % len(order) == 0 and skip == 0:
            draw = few_shot.k_per_class(labels, n // len(order), np.random.RandomState(seed))
            np.testing.assert_array_equal(draw.rows, np.sort(wanted["balanced"]))
    if "unbalanced" in wanted:
        shares = [
            few_shot.share(labels, m / len(labels), seed, np.random.RandomState(seed), stratified=False).rows
            for m in (n + skip, max(skip, 1))
        ]
        drawn = np.setdiff1d(shares[0], shares[1]) if skip else shares[0]
        np.testing.assert_array_equal(drawn, np.sort(wanted["unbalanced"]))


def _labels(values: np.ndarray, n_classes: int | None = None) -> Target:
    names = tuple(f"class{c}" for c in range(n_classes or values.max() + 1))
    return Classes(names, values.astype(np.int64))


def _features(x: np.ndarray, y: np.ndarray, n_classes: int) -> Features:
    return Features(x, _labels(y, n_classes), tuple(f"{i:05d}" for i in range(len(x))))


PATTERNS = {
    "07_fewshot_lsr/lsr_*": least_squares,
    "10_low_shot/voc_*": with_and_without,
    "10_low_shot/places_*": images_per_class,
    "10_low_shot/data_limit_*": data_limit,
}
