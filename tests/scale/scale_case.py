"""One protocol on memory-mapped features, in a process of its own: `python scale_case.py CASE FOLDER LIMIT_GB`.

Prints one JSON object: seconds, the most anonymous memory in use at any time (pages of mapped files can be dropped by
the system and do not count), and the seconds of the bare matrix products that the case cannot do without.
"""

import dataclasses
import json
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sslbench.targets.classes import Classes

PRODUCT = 2048  # side of the square product that the rate of this machine is measured by


class PeakMemory:
    """Most anonymous memory of this process, in bytes, read from the kernel every 20 ms while it works."""

    def __enter__(self) -> "PeakMemory":
        self.most, self._done = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.most = max(self.most, anonymous())


def anonymous() -> int:
    """Return the anonymous resident memory of this process in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    raise OSError("the kernel does not tell RssAnon")


def rate() -> float:
    """Return operations per second of a single precision product on this machine, the best of three."""
    a, b = np.ones((PRODUCT, PRODUCT), np.float32), np.ones((PRODUCT, PRODUCT), np.float32)
    best = np.inf
    for _ in range(4):
        started = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - started)
    return 2 * PRODUCT**3 / best


def features(folder: Path, part: str) -> Any:
    """Return memory-mapped features with labels."""
    from sslbench.features.array import Features

    x, values = np.load(folder / f"{part}.npy", mmap_mode="r"), np.load(folder / f"{part}.labels.npy")
    classes = tuple(f"n{c:04d}" for c in range(int(np.load(folder / "classes.npy"))))
    return Features(x, Classes(classes, values), tuple(f"{i:07d}" for i in range(len(x))))


def knn(train: Any, test: Any) -> tuple[Any, float]:
    """k is chosen as by default."""
    from sslbench.protocols import knn as protocol

    outcome = protocol.run(train, test, protocol.Settings(), seed=0)
    return outcome, 2.0 * len(test) * train.x.size


def linear(train: Any, test: Any) -> tuple[Any, float]:
    """Two values of C and few steps: what is measured is memory, and time per step."""
    from sslbench.protocols import linear as protocol

    settings = protocol.Settings(c=(1e-6, 1e-5), max_iter=8)
    outcome = protocol.run(train, test, settings, seed=0)
    # The axes, and two products per step: 8 of two fits to 80 % of train, and of the last one.
    width, classes = train.x.shape[1], len(train.target.classes)
    return outcome, 2.0 * train.x.size * width + (2 * 0.8 + 1) * 8 * 4.0 * train.x.size * classes


def low_shot(train: Any, test: Any, classifier: str) -> tuple[Any, float]:
    """1 % of train, two draws, two strengths to choose from."""
    from sslbench.protocols import low_shot as protocol

    settings = protocol.Settings(
        k=(), fractions=(0.01,), draws=2, classifier=classifier, costs=(0.1, 1.0), c=(1e-3, 1e-2), folds=2
    )
    outcome = protocol.run(train, test, settings, seed=0)
    return outcome, 2 * 2.0 * test.x.size * len(test.target.classes)


def lsr(train: Any, test: Any) -> tuple[Any, float]:
    """Default settings, four numbers of samples per class and three draws of each."""
    from sslbench.protocols import lsr as protocol

    outcome = protocol.run(train, test, protocol.Settings(), seed=0)
    return outcome, 4 * 3 * 2.0 * test.x.size * len(test.target.classes)


def clustering(train: Any, test: Any) -> tuple[Any, float]:
    """One start, five iterations."""
    from sslbench.protocols import clustering as protocol

    settings = protocol.Settings(restarts=1, iterations=5)
    outcome = protocol.run(train, test, settings, seed=0)
    rows = 5 * min(settings.samples, len(train)) + len(train) + len(test)
    return outcome, 2.0 * rows * train.x.shape[1] * len(train.target.classes)


def geometry(train: Any, test: Any) -> tuple[Any, float]:
    """Of train, default settings."""
    from sslbench.protocols import geometry as protocol

    settings = protocol.Settings(part="train")
    outcome = protocol.run(train, test, settings, seed=0)
    n, width = min(settings.samples, len(train)), train.x.shape[1]
    return outcome, 2.0 * n * width * (4 * width + n)


CASES: dict[str, Callable[[Any, Any], tuple[Any, float]]] = {
    "knn": knn,
    "linear": linear,
    "low-shot logistic": lambda train, test: low_shot(train, test, "logistic"),
    "low-shot svm": lambda train, test: low_shot(train, test, "svm"),
    "lsr": lsr,
    "clustering": clustering,
    "geometry": geometry,
}


def leaderboard(folder: Path) -> None:
    """Make the table of all records below a folder."""
    from sslbench.leaderboard import table, to_csv
    from sslbench.results import records

    to_csv(table(records.read_tree(folder)), folder / "board.csv")


def main() -> None:
    """Run one case under a limit of memory."""
    case, folder, limit = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_DATA, (int(limit * 1e9), int(limit * 1e9)))
    speed = rate()
    started, operations, headline = time.perf_counter(), 0.0, None
    with PeakMemory() as memory:
        if case == "leaderboard":
            leaderboard(folder)
        else:
            outcome, operations = CASES[case](features(folder, "train"), features(folder, "test"))
            headline = dataclasses.asdict(outcome)["metrics"][outcome.headline][0]
    seconds = time.perf_counter() - started
    found = {"seconds": seconds, "peak": memory.most, "bare": operations / speed, "headline": headline}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
