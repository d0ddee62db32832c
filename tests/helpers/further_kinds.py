"""Kinds of target that extend classes and numbers, led by metrics of which less is better, in a process of their own.

Once defined, they are among the kinds of the whole process.
"""

import dataclasses
import json
import sys

import numpy as np

from helpers.targets import class_pictures
from sslbench import evaluate
from sslbench.metrics import catalog
from sslbench.metrics.answers import predicted_classes
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import LOSS, Metric
from sslbench.targets.classes import Classes
from sslbench.targets.numbers import Numbers

GRADE_ERROR = Metric("grade_error", "Mean error in grades", "grades", -1, LOSS, needs="scores", labels=("grade",))
ANGLE_ERROR = Metric("angle_error", "Mean error of angles", "degrees", -1, LOSS, needs="scores", labels=("angle",))
catalog.METRICS |= {metric.name: metric for metric in (GRADE_ERROR, ANGLE_ERROR)}
"""As if the records stood in a family of metrics."""

QUICK = {
    "linear": {"c": (1e-4, 1.0), "alpha": (0.1, 1e6)},
    "finetune": {"epochs": 2, "lr": (0.001, 0.1), "batch_size": 12, "augment": "none"},
    "linear-online": {"updates": 20, "lr": (0.001, 1.0), "batch_size": 12, "augment": "none"},
    "low-shot": {"k": (2, 4), "draws": 2},
}


def _mean(metric, errors):
    errors = np.asarray(errors, dtype=np.float64)[:, None]
    return Measure((metric,), lambda weights: weights @ errors / weights.sum(axis=1, keepdims=True), per_sample=errors)


class Grades(Classes):
    """Classes in an order."""

    name, title, metric = "grade", "a grade each", "grade_error"

    def numbered_by_samples(self):
        return self

    @classmethod
    def measures(cls, values, scores, units, how=None):
        error = np.abs(predicted_classes(scores) - values)
        return [_mean(GRADE_ERROR, error), *super().measures(values, scores, units, how)]


class Angles(Numbers):
    """Angles in degrees, equal after a whole turn."""

    name, title, metric = "angle", "an angle each", "angle_error"

    @classmethod
    def measures(cls, values, scores, units, how=None):
        error = np.abs((scores - values + 180) % 360 - 180).mean(axis=1)
        return [_mean(ANGLE_ERROR, error), *super().measures(values, scores, units, how)]


def open(kind, *, image_column, label_column):
    """Open small pictures in four colours, of the grades 0 to 3 or of four angles."""
    sources = {}
    for split, n, seed in (("train", 48, 0), ("test", 24, 1)):
        source = class_pictures(n, seed)
        classes, values = source.target.classes, source.target.values
        target = Grades(classes, values) if kind == "grade" else Angles(("angle",), 80.0 * values[:, None])
        sources[split] = dataclasses.replace(source, target=target)
    return sources


def main(kind, *protocols):
    """Print what the records of protocols say, a line of JSON each."""
    quick = {"device": "cpu", "workers": 0, "overlaps": False, "out": None, "backbone": "resnet_basic_1-1-1-1w0.125"}
    for name in protocols:
        settings = {name: QUICK[name]} if name in QUICK else {}
        data = f"helpers.further_kinds:{kind}"
        small = {"resize": (16, 16), "crop": None, "floors": name in ("knn", "linear")}  # of each kind
        (result,) = evaluate("random", data, protocols=name, settings=settings, **small, **quick)
        selected, metrics = result.selected, {metric: value.value for metric, value in result.metrics.items()}
        facts = {"protocol": name, "labels": result.data.labels, "headline": result.headline, "selected": selected}
        sys.stdout.write(json.dumps({**facts, "metrics": metrics, "per_class": result.per_class}) + "\n")
