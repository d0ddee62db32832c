"""What is said of two detectors: only an interval without zero says that one is better."""

from types import SimpleNamespace

import pytest

from sslbench.evaluation.detection.compare import verdict


def record(name, ap):
    return SimpleNamespace(weights=SimpleNamespace(name=name), metrics={"AP": SimpleNamespace(value=ap)})


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.4, 8.2, "w.pth: AP 34.2, clearly above the 30.0 of resnet18 untrained, trained alike"),
        (-0.1, 8.2, "w.pth: AP 34.2, tied with the 30.0 of resnet18 untrained, trained alike"),
        (0.0, 0.0, "w.pth: AP 34.2, tied with the 30.0 of"),
        (-9.0, -0.2, "w.pth: AP 34.2, clearly below the 30.0 of"),
    ],
)
def test_an_interval_that_covers_zero_is_a_tie(low, high, words):
    said = verdict(record("w.pth", 34.2), record("resnet18 untrained", 30.0), 4.2, low, high, 12)
    assert said.startswith(words)
    assert f"(+4.2, 95 % interval {low:+.1f} .. {high:+.1f}: paired bootstrap over 12 test images)" in said


def test_without_objects_nothing_is_compared():
    assert "cannot be compared" in verdict(record("a", None), record("b", 1.0), None, None, None, 3)
