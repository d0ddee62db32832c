"""Robustness: class subsets, mCE, stability, ReaL, ObjectNet, unknown classes, corruptions."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from golden_arrays import by_kind, numbered, options
from golden_cases import Case, roots

from sslbench.arrays import BoolArray, IntArray
from sslbench.data.corruptions import EXTRA, FROST_FOLDER, MAIN, corrupt
from sslbench.features.array import Features
from sslbench.library.presets import load_preset
from sslbench.metrics import robustness, selective
from sslbench.paths import builtin_dir
from sslbench.protocols.robustness.further_sets import classes_of, competing_classes
from sslbench.protocols.robustness.scores import _several_right_metrics
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel


def in_label_sets(predictions: IntArray, labels: Sequence[IntArray]) -> BoolArray:
    """Return whether each prediction is one of the sample's labels, of the samples that have labels (ReaL).

    Beyer et al., "Are we done with ImageNet?", 2020, section 3.2.

    Args:
        predictions: (N,) or (N, k): right if any of the k is a label.
        labels: N arrays of the classes that are right; samples without one are left out.

    >>> in_label_sets(np.array([1, 2, 3]), [np.array([1, 4]), np.array([]), np.array([4])]).tolist()
    [True, False]
    """
    rows = predictions.reshape(len(predictions), -1)
    return np.array([bool(np.isin(row, own).any()) for row, own in zip(rows, labels, strict=True) if len(own)])


def fit_line(standard: Sequence[float], shifted: Sequence[float]) -> tuple[float, float]:
    """Return slope and intercept of logit(shifted accuracy) on logit(standard accuracy), by least squares."""
    x, y = (np.log(np.asarray(v) / (1 - np.asarray(v))) for v in (standard, shifted))
    slope, intercept = np.polyfit(x, y, 1)
    return float(slope), float(intercept)


def challenge_predictions(logits: npt.NDArray[np.floating], mapping: Mapping[int, int], k: int) -> IntArray:
    """Return ObjectNet classes of the k highest ImageNet logits, (N, k); -1 for classes that ObjectNet lacks.

    The protocol of ObjectNet's challenge (Barbu et al., NeurIPS 2019).

    Args:
        logits: (N, 1000) of the ImageNet classes in the order of their synsets.
        mapping: ImageNet class -> ObjectNet class.
        k: number of classes.
    """
    table = np.full(logits.shape[1], -1)
    table[list(mapping)] = list(mapping.values())
    return np.asarray(table[np.argsort(-logits, axis=1, kind="stable")[:, :k]])


def overlap_predictions(logits: npt.NDArray[np.floating], mapping: Mapping[int, int], k: int) -> IntArray:
    """Return ObjectNet classes of the k highest logits among the ImageNet classes that occur in ObjectNet, (N, k).

    The protocol of most papers: only the 113 shared classes compete, and only their images are scored.

    Args:
        logits: (N, 1000) of the ImageNet classes in the order of their synsets.
        mapping: ImageNet class -> ObjectNet class.
        k: number of classes.
    """
    own = sorted(mapping)
    best = np.argsort(-logits[:, own], axis=1, kind="stable")[:, :k]
    return np.array([mapping[each] for each in own])[best]


@dataclasses.dataclass(frozen=True)
class ConfidenceBins:
    """Samples by rising confidence, in bins of equal numbers.

    Attributes:
        share: (B,) of all samples in the bin.
        gap: (B,) distance of mean confidence and accuracy of the bin.
    """

    share: npt.NDArray[np.float64]
    gap: npt.NDArray[np.float64]

    @property
    def rms(self) -> float:
        """RMS calibration error (Hendrycks et al., ICLR 2019, "Deep anomaly detection with outlier exposure")."""
        return float(np.sqrt((self.share * self.gap**2).sum()))

    @property
    def mad(self) -> float:
        """Mean absolute calibration error."""
        return float((self.share * self.gap).sum())

    @property
    def largest(self) -> float:
        """Largest gap of a bin."""
        return float(self.gap.max())


def confidence_bins(confidence: npt.NDArray[np.float64], correct: BoolArray, size: int = 100) -> ConfidenceBins:
    """Return bins of `size` samples by rising confidence; the remainder joins the last bin.

    Equally confident samples count with their mean, so that their order does not matter. The code published with
    ImageNet-A and -R leaves the last bin, the most confident one, out of the sums; here all count.
    """
    order = np.argsort(confidence, kind="stable")
    starts = np.arange(0, max(len(order) // size, 1)) * size
    counts = np.diff(np.r_[starts, len(order)])
    ordered = confidence[order]
    right = selective.means_of_equals(ordered, correct[order].astype(np.float64)[None], np.ones((1, len(order))))[0]
    means = [np.add.reduceat(each, starts) / counts for each in (ordered, right)]
    return ConfidenceBins(counts / len(order), np.abs(means[0] - means[1]))


def _constants(case: Case, name: str) -> dict[str, Any]:
    """Return the constants recorded as another case of the topic, beside this case or in another folder of cases."""
    for folder in (case.topic, *(root / case.topic.name for root in roots())):
        with contextlib.suppress(KeyError, FileNotFoundError):
            return Case(folder, name).expected_json()
    raise AssertionError(f"{case.id} needs the case {name}, which lies beside it as a rule")


def _logits(given: dict[str, np.ndarray]) -> np.ndarray:
    return given["logits"] if "logits" in given else given["left"] @ given["right"]


def _near(ours: float, value: np.ndarray, rel: float = 1e-6, slack: float = 0.0) -> None:
    assert ours == pytest.approx(float(value), rel=rel, abs=1e-12 + slack, nan_ok=True)


def _unsure(logits: np.ndarray, k: int) -> np.ndarray:
    """Return True for the rows whose order of the first k logits, or the end of these, rounding decides."""
    first = -np.sort(-logits, axis=-1)[..., : k + 1]
    return (np.abs(np.diff(first, axis=-1)) < 1e-6 * np.abs(first).max(axis=-1, keepdims=True)).any(axis=-1)


def class_lists(case: Case) -> None:
    recorded = case.expected_json()
    for letter in "aor":
        own = classes_of(builtin_dir("benchmarks") / "classes" / f"_imagenet_{letter}.yaml")
        assert list(own) == recorded.get(f"wnids_{letter}", list(own))
        assert len(recorded.get(f"imagenet_{letter}", own)) == len(own)


def _reference() -> dict[str, list[float]]:
    """Return the errors of AlexNet under corruptions that the product ships."""
    errors = dict(load_preset("robustness/imagenet_c").settings["reference"])
    errors.pop("clean")
    return errors


def alexnet_errors(case: Case) -> None:
    recorded, reference = case.expected_json(), _reference()
    assert list(MAIN) == recorded["main15"] and list(EXTRA) == recorded["extra4"]
    assert set(reference) == set(recorded["errors"])
    for name, errors in recorded["errors"].items():
        assert reference[name] == pytest.approx(errors, abs=1e-9)


def output_mask(case: Case) -> None:
    """Compare VISSL's masked top-1, which is that of a set on which only the classes with an image compete."""
    given, expected = case.inputs(), case.expected()
    heads, masked, top1 = numbered(given, "logits"), numbered(expected, "masked"), numbered(expected, "top1")
    label = given["label"].reshape(-1)
    for i, logits in enumerate(heads):
        labels = Classes(tuple(f"{c:05d}" for c in range(logits.shape[1])), label)
        competing = [int(name) for name in competing_classes("a set", labels)]
        own = np.full_like(logits, -np.inf)
        own[:, competing] = logits[:, competing]
        if masked:
            np.testing.assert_array_equal(own, masked[i])
        if i < len(top1):
            found = np.array(competing)[logits[:, competing].argmax(axis=1)]
            _near((found == label).mean(), top1[i], 1e-9)


def subset(case: Case) -> None:
    """Compare predictions of the subset, and measures of the recorded ones; of equal confidences any may be first."""
    given, expected, args = case.inputs(), case.expected(), options(case, subset="imagenet_a", bin=100)
    kept = _logits(given)[:, _constants(case, "class_subsets")[args["subset"]]].astype(np.float64)
    shifted = np.exp(kept - kept.max(1, keepdims=True))
    confidence = (shifted / shifted.sum(1, keepdims=True)).max(1)
    correct, clear = kept.argmax(1) == given["label"], ~_unsure(kept, 1)
    if "confidence" in expected:
        np.testing.assert_allclose(confidence, expected["confidence"], rtol=1e-5)
        confidence = expected["confidence"].astype(np.float64)
    if "correct" in expected:
        np.testing.assert_array_equal(correct[clear], expected["correct"][clear].astype(bool))
        correct = expected["correct"].astype(bool)
    found = _calibration(confidence, correct, args["bin"])
    orders = [_calibration(confidence + sign * 1e-12 * correct, correct, args["bin"]) for sign in (1, -1)]
    for name, ours in found.items():
        if name in expected:
            apart = max(abs(each[name] - ours) for each in orders)
            _near(ours, expected[name], 1e-9 if "confidence" in expected else 1e-4, 2 * apart)


def _calibration(confidence: np.ndarray, correct: np.ndarray, size: int) -> dict[str, float]:
    """Return the measures by their recorded names; the published code forgets the last bin."""
    bins = confidence_bins(confidence, correct, size)
    published = ConfidenceBins(bins.share[:-1], bins.gap[:-1])
    return {
        "accuracy": correct.mean(),
        "aurra": robustness.response_rate_statistic(confidence, correct)(np.ones((1, len(correct))))[0, 0],
        "rms_calibration_error": published.rms,
        "mad_calibration_error": published.mad,
        "max_calibration_error": published.largest if len(published.gap) else 0.0,
    }


def unknown(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    known, new = given["in_score"], given["out_score"]
    found = robustness.detection_statistic(known, new)(np.ones((1, len(known) + len(new))))[0]
    for ours, name in zip(found, ("auroc", "aupr", "fpr95"), strict=True):
        if name in expected:
            _near(ours, expected[name], 1e-9)


def mean_corruption_error(case: Case) -> None:
    """Compare CE and its means; a severity without an accuracy is left out, and DINOv3 averages the extra ones too."""
    accuracy, expected = case.inputs()["accuracy"], case.expected()
    args = options(case, corruptions=[*MAIN, *EXTRA][: len(accuracy)], severities=range(1, accuracy.shape[1] + 1))
    errors, reference = 1 - accuracy, _reference()
    places, known = [s - 1 for s in args["severities"]], ~np.isnan(errors)
    ce = [
        _corruption_error(errors[i][known[i]], np.array(reference[name])[places][known[i]])
        for i, name in enumerate(args["corruptions"])
    ]
    main = np.array([name in MAIN for name in args["corruptions"]])
    means = {"mce_15": np.mean(np.array(ce)[main]), "mce_dinov3": np.mean(ce), "ce": np.array(ce)}
    means["mean_error"] = np.mean([row[some].mean() for row, some in zip(errors[main], known[main], strict=True)])
    for name, value in expected.items():
        np.testing.assert_allclose(means[name], value, rtol=1e-9, err_msg=name)


def _corruption_error(errors: np.ndarray, reference: np.ndarray) -> float:
    """Return the CE of a single corruption, whose mean is itself; an image of these errors stands for all."""
    severities = range(1, len(errors) + 1)
    found = robustness.corruption_means(errors[None, None], np.zeros(1), ["fog"], severities, reference[None])
    return float(found.values("mce")[0])


def stability(case: Case) -> None:
    """Compare flips and distances of rankings, but for classes whose order rounding decides."""
    given, expected, args = case.inputs(), case.expected(), options(case, perturbation="", difficulty=1)
    logits = _logits(given)
    how = {"noise": args.get("noise", "noise" in args["perturbation"]), "step": args["difficulty"]}
    each = [logits]
    if "left" in given:
        each.append(given["left"].astype(np.float64) @ given["right"].astype(np.float64))
    flips = [robustness.flip_probability(x.argmax(2), **how) for x in each]
    top5, zipf = zip(*(robustness.ranking_distances(x, **how) for x in each), strict=True)
    for name, values in (("flip_probability", flips), ("top5_distance", top5), ("zipf_distance", zipf)):
        if name in expected:
            _near(values[0], expected[name], 1e-9, 2 * abs(values[0] - values[-1]))


def real_labels(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    sets = np.split(given["real_labels"], np.cumsum(given["real_counts"].astype(int))[:-1])
    predictions = given["top5"] if "top5" in given else given["top1"][:, None]
    found = functools.cache(lambda k: in_label_sets(predictions[:, :k], sets))
    for name, value in expected.items():
        k = 5 if "top5" in name else 1
        if name == "images_with_labels":
            assert len(found(k)) == int(value)
        elif name.startswith("real"):
            _near(found(k).mean(), value)
        else:
            _near((predictions[:, :k] == given["label"][:, None]).any(axis=1).mean(), value, 1e-9)


def recorded_predictions(case: Case) -> None:
    given = case.inputs()
    for key, value in case.expected().items():
        metric, _, model = key.partition("/")
        places = f"top5/{model}" if f"top5/{model}" in given else f"top1/{model}"
        right = given[places].reshape(len(given["label"]), -1) == given["label"][:, None]
        _near(right[:, : int(metric[3:])].any(1).mean(), value, 1e-9)


def testbed(case: Case) -> None:
    recorded = case.expected_json()
    models = recorded["accuracy"].values()
    line = fit_line([m["val"][0] for m in models], [m["v2_matched_frequency"][0] for m in models])
    assert line == pytest.approx(tuple(recorded["line"]), rel=1e-6)


def objectnet(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    table = {int(k): v for k, v in _constants(case, "class_subsets")["objectnet"].items()}
    logits, label = _logits(given), given["label"]
    shared, own = np.isin(label, list(table.values())), sorted(table)
    found = [challenge_predictions(logits, table, 5) == label[:, None]]
    found.append(overlap_predictions(logits[shared], table, 5) == label[shared, None])
    slack = [100 * _unsure(logits, 5).mean(), 100 * _unsure(logits[shared][:, own], 5).mean() if shared.any() else 0.0]
    names = [("accuracy", "top5_accuracy"), ("overlap_top1", "overlap_top5")]
    by_labels = _objectnet_by_labels(table, logits, label)
    if "overlap_images" in expected:
        assert shared.sum() == int(expected["overlap_images"])
    for right, (first, five), apart in zip(found, names, slack, strict=True):
        for name, place in ((first, right[:, 0]), (five, right.any(1))):
            if name in expected and len(right):
                _near(100 * place.mean(), expected[name], 1e-9, apart)
                _near(by_labels[name], expected[name], 1e-9, apart)


def _objectnet_by_labels(table: dict[int, int], logits: np.ndarray, label: np.ndarray) -> dict[str, float]:
    """Return the protocol's scores: labels of all right classes, -1 for classes that stand for none of ObjectNet's."""
    of_class = np.full((313, 1000), -1, dtype=np.int8)
    of_class[:, list(table)] = 0
    of_class[list(table.values()), list(table)] = 1
    classes = tuple(f"{i:04d}" for i in range(1000))
    part = Features(logits, MultiLabel(classes, of_class[label]), tuple(f"{i:04d}" for i in range(len(label))))
    given = SimpleNamespace(logits=lambda x: x.astype(np.float64))
    found = {name: 100 * value for name, (value, _, _) in _several_right_metrics("objectnet", given, part)[0].items()}
    names = {"top1(objectnet,challenge)": "accuracy", "top5(objectnet,challenge)": "top5_accuracy"}
    names |= {"top1(objectnet)": "overlap_top1", "top5(objectnet)": "overlap_top5"}
    return {names[name]: value for name, value in found.items()}


class _LegacyGenerator:
    """numpy's RandomState, which the recordings were seeded with, under the names of a Generator."""

    def __init__(self, seed: int) -> None:
        self._state = np.random.RandomState(seed)

    def __getattr__(self, name: str) -> Any:
        return self._state.randint if name == "integers" else getattr(self._state, name)


def corruptions(case: Case) -> None:
    image, args = case.inputs()["image"], options(case, seed=0)
    try:
        reproduced = case.expected_json()["reproduced_by_np_random_seed"]
    except (KeyError, FileNotFoundError):
        reproduced = {}
    for key, recorded in case.expected().items():
        name, _, severity = key.partition("/")
        if name == "frost" and not os.environ.get(FROST_FOLDER):
            continue  # its pictures carry no licence: see CONTRIBUTING
        wanted = recorded.astype(float)
        ours = corrupt(image, name, int(severity), _LegacyGenerator(args["seed"] + int(severity))).astype(float)
        if reproduced.get(key, name not in ("impulse_noise", "glass_blur")):  # these draw from elsewhere
            assert np.abs(ours - wanted).mean() <= 1, key
        else:
            spread = [(x - image).std() for x in (ours, wanted)]
            assert spread[0] == pytest.approx(spread[1], rel=0.1), key
            assert (ours - image).mean() == pytest.approx((wanted - image).mean(), abs=0.15 * spread[1])


PATTERNS = {
    "17_robustness/*": by_kind(
        {
            "constants of eval|^class_subsets": class_lists,
            "ALEXNET_INVERSE|^alexnet_errors": alexnet_errors,
            "OutputMask|^vissl_output_mask": output_mask,
            "calib_err|^imagenet_._subset": subset,
            "get_measures|^imagenet_o": unknown,
            "compute_relative|^mce": mean_corruption_error,
            "flip_prob|ranking_dist|^imagenet_p": stability,
            "reassessed|ReaL|^imagenet_real": real_labels,
            "accuracies of all|^imagenet_v2_models": testbed,
            "compute_dataset_accuracies|^imagenet_v2": recorded_predictions,
            "ToObjectNet|validate_and_score|^objectnet": objectnet,
            "imagecorruptions|^corruptions": corruptions,
        }
    )
}
