"""What is said of two detectors: only an interval without zero says that one is better."""

import math
from types import SimpleNamespace

from helpers.drawn_rectangles import source

from sslbench.evaluation.detections import few_objects, not_above, verdict
from sslbench.metrics.differences import PairedDifference


def record(name, ap, seeds=1):
    return SimpleNamespace(weights=SimpleNamespace(name=name), metrics={"AP": SimpleNamespace(value=ap)}, seeds=seeds)


def between(difference, low, high):
    return PairedDifference(0.0, 0.0, difference / 100, low / 100, high / 100)


def test_an_interval_that_covers_zero_is_a_tie():
    for low, high, words in (
        (0.4, 8.2, "w.pth: AP 34.2, clearly above the 30.0 of resnet18 untrained, trained alike"),
        (-0.1, 8.2, "w.pth: AP 34.2, tied with the 30.0 of resnet18 untrained, trained alike"),
        (0.0, 0.0, "w.pth: AP 34.2, tied with the 30.0 of"),
        (-9.0, -0.2, "w.pth: AP 34.2, clearly below the 30.0 of"),
    ):
        said = verdict(record("w.pth", 34.2), record("resnet18 untrained", 30.0), between(4.2, low, high), 12)
        assert said.startswith(words)
        assert (
            f"(+4.2, 95 % interval {low:+.1f} .. {high:+.1f}: paired bootstrap over 12 test images; one training each"
            in said
        )
        assert said.endswith("the variance between trainings is unknown)")


def test_several_trainings_are_told():
    said = verdict(record("w.pth", 34.2, 3), record("resnet18 untrained", 30.0, 3), between(4.2, 0.1, 8.0), 12)
    assert "means of 3 and 3 trainings, whose variance the interval covers" in said and "unknown" not in said


def test_without_objects_nothing_is_compared():
    assert "cannot be compared" in verdict(record("a", None), record("b", 1.0), between(*3 * [math.nan]), 3)


def test_a_detector_that_is_not_clearly_above_the_constant_box_is_told():
    for low, said in ((0.1, False), (0.0, True), (-3.0, True), (math.nan, False)):
        notes = not_above(record("w.pth", 13.7), "the constant box", "AP", 16.6, between(-2.9, low, 4.0))
        assert bool(notes) == said
        if said:
            assert notes[0].startswith("w.pth is not clearly above the constant box") and "AP 16.6 (-2.9" in notes[0]


def test_intervals_of_few_objects_are_said_to_be_too_narrow():
    for images, said in ((1, "class tall has 1 test object."), (19, "has 19 test objects."), (20, "")):
        notes = few_objects(source(images, height=64, width=64))
        assert bool(notes) == bool(said) and all(said in note for note in notes)
        assert few_objects(source(1, empty=(0,))) == ()
