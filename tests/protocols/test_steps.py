"""Steps that protocols on features count for the progress line."""

from contextlib import contextmanager

import pytest

from sslbench import protocols
from sslbench.steps import shown_by


class Recorder:
    """Listener that keeps the title, number of steps and steps done of every computation shown."""

    def __init__(self):
        self.shown = []

    @contextmanager
    def __call__(self, title, unit, total):
        row = [title, unit, total, 0]
        self.shown.append(row)

        def advance(steps):
            row[3] += steps

        yield advance


@pytest.mark.parametrize(
    ("name", "multi", "shown"),
    [
        ("knn", False, [["nearest neighbours", "rows", 12, 12], ["nearest neighbours", "rows", 80, 80]]),
        # the last fit ends the computation, so nothing is counted after it
        ("linear", False, [["linear", "fits", 18, 17]]),
        (
            "svm",
            False,
            [["svm: choice of the cost", "cross-validations", 44, 44], ["svm: final models", "classes", 4, 0]],
        ),
        ("svm", True, [["svm: choice of costs", "cross-validations", 44, 44], ["svm: final models", "classes", 4, 0]]),
        ("low-shot", False, [["low-shot", "draws", 25, 25]]),
        ("clustering", False, [["clustering", "runs of k-means", 10, 10]]),
    ],
)
def test_every_step_is_counted_and_inner_computations_are_not_shown(blobs, name, multi, shown):
    train, test = blobs(multi=multi)
    protocol, seen = protocols.find(name), Recorder()
    with shown_by(seen):
        protocol.kind.run(train, test, protocol.settings(), seed=0)
    assert seen.shown == shown
