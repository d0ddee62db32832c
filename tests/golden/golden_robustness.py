"""Robustness: class subsets, mCE, stability, ReaL, ObjectNet, unknown classes, corruptions."""

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from golden_cases import Case

from sslbench.data.corruptions import EXTRA, MAIN, corrupt
from sslbench.data.corruptions.weather import FROST_FOLDER
from sslbench.data.source import Labels
from sslbench.features.array import Features
from sslbench.library.presets import load_preset
from sslbench.metrics import robustness
from sslbench.paths import builtin_dir
from sslbench.protocols.robustness.further_sets import classes_of, competing_classes
from sslbench.protocols.robustness.scores import _several_right_metrics


def _logits(given: dict[str, np.ndarray]) -> np.ndarray:
    return given["left"] @ given["right"]


def _near(ours: float, value: np.ndarray, rel: float = 1e-6) -> None:
    assert ours == pytest.approx(float(value), rel=rel, abs=1e-12)


def class_lists(case: Case) -> None:
    recorded = case.expected_json()
    for letter in "aor":
        own = classes_of(builtin_dir("benchmarks") / "classes" / f"_imagenet_{letter}.yaml")
        assert list(own) == recorded[f"wnids_{letter}"]
        assert len(recorded[f"imagenet_{letter}"]) == len(own)


def alexnet_errors(case: Case) -> None:
    recorded = case.expected_json()
    reference = dict(load_preset("robustness/imagenet_c").settings["reference"])
    reference.pop("clean")
    assert list(MAIN) == recorded["main15"] and list(EXTRA) == recorded["extra4"]
    assert set(reference) == set(recorded["errors"])
    for name, errors in recorded["errors"].items():
        assert reference[name] == pytest.approx(errors, abs=1e-9)


def output_mask(case: Case) -> None:
    """VISSL's masked top-1 is that of a set on which only the classes with an image compete."""
    given, expected = case.inputs(), case.expected()
    labels = Labels("single", tuple(f"{i:02d}" for i in range(given["logits"].shape[1])), given["label"])
    competing = [int(name) for name in competing_classes("a set", labels)]
    masked = np.full_like(given["logits"], -np.inf)
    masked[:, competing] = given["logits"][:, competing]
    np.testing.assert_array_equal(masked, expected["masked"])
    found = np.array(competing)[given["logits"][:, competing].argmax(axis=1)]
    _near((found == given["label"]).mean(), expected["top1"], 1e-9)


def subset(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    constants = Case(case.topic, "class_subsets").expected_json()
    kept = _logits(given)[:, constants[case.meta["args"]["subset"]]].astype(np.float64)
    shifted = np.exp(kept - kept.max(1, keepdims=True))
    confidence = (shifted / shifted.sum(1, keepdims=True)).max(1)
    correct = kept.argmax(1) == given["label"]
    np.testing.assert_allclose(confidence, expected["confidence"], rtol=1e-5)
    np.testing.assert_array_equal(correct, expected["correct"].astype(bool))
    _near(correct.mean(), expected["accuracy"])
    _near(robustness.response_rate_accuracy(confidence, correct), expected["aurra"], 1e-4)
    bins = robustness.confidence_bins(confidence, correct, case.meta["args"]["bin"])
    published = robustness.ConfidenceBins(bins.share[:-1], bins.gap[:-1])  # the published code forgets the last bin
    _near(published.rms, expected["rms_calibration_error"], 1e-4)
    _near(published.mad, expected["mad_calibration_error"], 1e-4)
    _near(published.largest, expected["max_calibration_error"], 1e-4)


def unknown(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    auroc, aupr, fpr95 = robustness.unknown_detection(given["in_score"], given["out_score"])
    for ours, name in ((auroc, "auroc"), (aupr, "aupr"), (fpr95, "fpr95")):
        _near(ours, expected[name], 1e-9)


def mean_corruption_error(case: Case) -> None:
    args, expected, errors = case.meta["args"], case.expected(), 1 - case.inputs()["accuracy"]
    reference = Case(case.topic, "alexnet_errors_imagenet_c").expected_json()
    places = [s - 1 for s in args["severities"]]
    alexnet = [np.array(reference["errors"][name])[places] for name in args["corruptions"]]
    ce = [robustness.corruption_error(ours, theirs) for ours, theirs in zip(errors, alexnet, strict=True)]
    np.testing.assert_allclose(ce, expected["ce"], rtol=1e-9)
    main = [value for value, name in zip(ce, args["corruptions"], strict=True) if name in reference["main15"]]
    _near(np.mean(main), expected["mce_15"], 1e-9)
    _near(np.mean(ce), expected["mce_dinov3"], 1e-9)
    _near(errors.mean(), expected["mean_error"], 1e-9)


def stability(case: Case) -> None:
    given, expected, args = case.inputs(), case.expected(), case.meta["args"]
    logits = _logits(given)
    how = {"noise": args["noise"], "step": args["difficulty"]}
    _near(robustness.flip_probability(logits.argmax(2), **how), expected["flip_probability"], 1e-9)
    top5, zipf = robustness.ranking_distances(logits, **how)
    _near(top5, expected["top5_distance"], 1e-9)
    _near(zipf, expected["zipf_distance"], 1e-9)


def real_labels(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    sets = np.split(given["real_labels"], np.cumsum(given["real_counts"].astype(int))[:-1])
    first, five = (robustness.in_label_sets(given["top5"][:, :k], sets) for k in (1, 5))
    assert len(first) == int(expected["images_with_labels"])
    _near(first.mean(), expected["real_top1_readme"], 1e-9)
    _near(five.mean(), expected["real_top5_dinov2"])
    _near((given["top5"][:, 0] == given["label"]).mean(), expected["top1"], 1e-9)


def recorded_predictions(case: Case) -> None:
    given = case.inputs()
    for key, value in case.expected().items():
        metric, model = key.split("/")
        right = given[f"top5/{model}"] == given["label"][:, None]
        _near(right[:, : int(metric[3:])].any(1).mean(), value, 1e-9)


def testbed(case: Case) -> None:
    recorded = case.expected_json()
    models = recorded["accuracy"].values()
    line = robustness.fit_line([m["val"][0] for m in models], [m["v2_matched_frequency"][0] for m in models])
    assert line == pytest.approx(tuple(recorded["line"]), rel=1e-6)


def objectnet(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    table = {int(k): v for k, v in Case(case.topic, "class_subsets").expected_json()["objectnet"].items()}
    logits, label = _logits(given), given["label"]
    _objectnet_by_labels(case, table, logits, label)
    found = robustness.challenge_predictions(logits, table, 5) == label[:, None]
    _near(100 * found[:, 0].mean(), expected["accuracy"], 1e-9)
    _near(100 * found.any(1).mean(), expected["top5_accuracy"], 1e-9)
    shared = np.isin(label, list(table.values()))
    assert shared.sum() == int(expected["overlap_images"])
    found = robustness.overlap_predictions(logits[shared], table, 5) == label[shared, None]
    _near(100 * found[:, 0].mean(), expected["overlap_top1"], 1e-9)
    _near(100 * found.any(1).mean(), expected["overlap_top5"], 1e-9)


def _objectnet_by_labels(case: Case, table: dict[int, int], logits: np.ndarray, label: np.ndarray) -> None:
    """The protocol's way: labels of all right classes, -1 for classes that stand for none of ObjectNet's."""
    of_class = np.full((313, 1000), -1, dtype=np.int8)
    of_class[:, list(table)] = 0
    of_class[list(table.values()), list(table)] = 1
    classes = tuple(f"{i:04d}" for i in range(1000))
    part = Features(logits, Labels("multi", classes, of_class[label]), tuple(f"{i:04d}" for i in range(len(label))))
    given = SimpleNamespace(logits=lambda x: x.astype(np.float64))
    found = {name: 100 * value for name, (value, _, _) in _several_right_metrics("objectnet", given, part).items()}
    expected = case.expected()
    _near(found["top1(objectnet,challenge)"], expected["accuracy"], 1e-9)
    _near(found["top5(objectnet,challenge)"], expected["top5_accuracy"], 1e-9)
    _near(found["top1(objectnet)"], expected["overlap_top1"], 1e-9)
    _near(found["top5(objectnet)"], expected["overlap_top5"], 1e-9)


class _LegacyGenerator:
    """numpy's RandomState, which the recordings were seeded with, under the names of a Generator."""

    def __init__(self, seed: int) -> None:
        self._state = np.random.RandomState(seed)

    def __getattr__(self, name: str) -> Any:
        return self._state.randint if name == "integers" else getattr(self._state, name)


def corruptions(case: Case) -> None:
    image, expected, args = case.inputs()["image"], case.expected(), case.meta["args"]
    reproduced = case.expected_json()["reproduced_by_np_random_seed"]
    for name, severity in _each(args):
        wanted = expected[f"{name}/{severity}"].astype(float)
        if name == "frost" and not os.environ.get(FROST_FOLDER):
            continue  # its pictures carry no licence: see CONTRIBUTING
        ours = corrupt(image, name, severity, _LegacyGenerator(args["seed"] + severity)).astype(float)
        if reproduced[f"{name}/{severity}"]:
            assert np.abs(ours - wanted).mean() <= 1, (name, severity)
        else:
            spread = [(x - image).std() for x in (ours, wanted)]
            assert spread[0] == pytest.approx(spread[1], rel=0.1), (name, severity)
            assert (ours - image).mean() == pytest.approx((wanted - image).mean(), abs=0.15 * spread[1])


def _each(args: dict[str, Any]) -> Iterator[tuple[str, int]]:
    return ((name, severity) for name in args["corruptions"] for severity in args["severities"])


PATTERNS = {
    "17_robustness/class_subsets": class_lists,
    "17_robustness/alexnet_errors_*": alexnet_errors,
    "17_robustness/vissl_output_mask": output_mask,
    "17_robustness/imagenet_?_subset": subset,
    "17_robustness/imagenet_o_msp*": unknown,
    "17_robustness/mce_*": mean_corruption_error,
    "17_robustness/imagenet_p_*": stability,
    "17_robustness/imagenet_real_*": real_labels,
    "17_robustness/imagenet_v2_models": testbed,
    "17_robustness/imagenet_v2_[mt]*_*": recorded_predictions,
    "17_robustness/objectnet*": objectnet,
    "17_robustness/corruptions_*": corruptions,
}
