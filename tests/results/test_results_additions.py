"""Fields that came later: records from before are read, and what they hold survives writing and reading."""

import dataclasses
import json
import math

import numpy as np
from helpers.sample_record import IDS, LABELS, SCORES, identified

from sslbench.identity import comparability_key
from sslbench.results import Costs, GroupValue, MetricValue, Outcome, Stage, percent_metrics, records

LATER = ("per_class_metrics", "groups", "probabilities", "costs", "preset")


def test_a_record_without_the_later_fields_is_read(result, tmp_path):
    path = records.write(result, SCORES, IDS, LABELS, tmp_path).file
    content = json.loads(path.read_text(encoding="utf-8"))
    for name in LATER:
        del content[name]
    path.write_text(json.dumps(content), encoding="utf-8")
    found = records.read(path)
    assert found.groups == found.per_class_metrics == {} and found.costs is found.probabilities is None
    assert found.metrics == result.metrics and content["schema"] == 1


def test_groups_costs_and_classes_survive_writing_and_reading(result, tmp_path):
    full = dataclasses.replace(
        result,
        groups={"site": (GroupValue(name="south", metric=MetricValue(value=1.5, low=None, high=2.0, n=7)),)},
        costs=Costs(parameters=5, gflops=0.5, stages={"knn": Stage(seconds=0.1, ram_mib=30.0)}),
        per_class_metrics={"f1": {"cat": 50.0, "dog": None}},
        probabilities="softmax",
    )
    found = records.read(records.write(full, SCORES, IDS, LABELS, tmp_path).file)
    assert all(getattr(found, name) == getattr(full, name) for name in LATER)
    assert identified(full).id == result.id
    assert comparability_key(full) == comparability_key(result)


def test_losses_are_not_turned_into_percent():
    values = {"top1": (0.5, 0.4, 0.6), "nll": (1.5, 1.0, 2.0), "brier": (0.5, math.nan, 0.6), "rank": (9.0, 8.0, 10.0)}
    outcome = Outcome(values, "top1", np.zeros((2, 2), np.float32), {}, absolute=frozenset({"rank"}))
    found = percent_metrics(outcome, 10)
    assert found["top1"].value == 50 and found["nll"].value == 1.5 and found["rank"].value == 9
    assert found["brier"] == MetricValue(value=0.5, low=None, high=0.6, n=10)
