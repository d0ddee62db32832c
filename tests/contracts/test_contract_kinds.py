"""A kind of target that extends classes or numbers works in every protocol on these, and leads with its own metric."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent


PROTOCOLS = {
    "grade": ("knn", "linear", "svm", "low-shot", "finetune", "linear-online"),
    "angle": ("linear", "finetune"),
}


@pytest.fixture(scope="module")
def records():
    """What the records of protocols say; from a process of its own, since kinds stay defined."""
    code = f"from helpers.further_kinds import main; [main(kind, *names) for kind, names in {PROTOCOLS}.items()]"
    paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return [json.loads(line) for line in found.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize(
    ("kind", "metric", "further"), [("grade", "grade_error", "top1"), ("angle", "angle_error", "r2")]
)
def test_kinds_that_extend_others_lead_with_their_metric_and_choose_by_it(kind, metric, further, records):
    found = {record["protocol"]: record for record in records if record["labels"] == kind}
    assert tuple(found) == PROTOCOLS[kind]
    for record in found.values():
        assert record["headline"] == metric
        assert math.isfinite(record["metrics"][metric]) and further in record["metrics"]
        assert len(record["per_class"]) == (4 if kind == "grade" else 1)
    tried = found["finetune"]["selected"]
    assert tried["score"] == min(tried["tried"].values())  # less is better
