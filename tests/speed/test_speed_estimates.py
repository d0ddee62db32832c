"""Estimates of time and memory against measured runs of every protocol on features, at two sizes: `make bench`.

Each case runs in a process of its own with one thread. Its processor time is compared with the estimate from rates that
the same process has measured by its processor time, so other work on the machine counts little. Memory is the growth
of the resident set at its peak; below 64 MiB that is libraries and buffers, and is not compared.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.speed

WITHIN = 2.0
COMPARED_FROM = 64  # MiB
CASES = {
    "knn": ((10_000, 2_000, 256, 10), (40_000, 3_000, 512, 100)),
    "linear": ((2_000, 1_000, 128, 10), (8_000, 2_000, 256, 50)),
    "svm": ((2_000, 1_000, 128, 10), (4_000, 1_000, 256, 20)),
    "low-shot": ((2_000, 1_000, 128, 10), (4_000, 2_000, 256, 40)),
    "lsr": ((4_000, 4_000, 256, 50), (5_000, 5_000, 512, 100)),
    "clustering": ((5_000, 2_000, 128, 10), (10_000, 4_000, 256, 40)),
    "geometry": ((100, 4_000, 256, 10), (100, 8_000, 512, 20)),
    "retrieval": ((100, 4_000, 256, 50), (100, 8_000, 256, 200)),
    "geolocation": ((8_000, 2_000, 128, 2), (20_000, 4_000, 256, 2)),
    "segmentation-knn": ((64, 32, 64, 5), (160, 64, 128, 5)),
}
"""Protocol -> rows of train and of test, width, classes; of segmentation-knn images, and the width of a patch."""

CHILD = textwrap.dedent(
    """
    import json, re, sys, time
    from pathlib import Path

    import numpy as np
    import scipy.optimize, sklearn.svm, torch

    from sslbench import protocols
    from sslbench.features.array import Features
    from sslbench.protocols import Shapes
    from sslbench.runtime.machine import measure_speed

    name, sizes = sys.argv[1], [int(number) for number in sys.argv[2:6]]
    torch.set_num_threads(1)
    train, test, width, classes = sizes
    GRID = 14

    def features(rows, seed):
        rng = np.random.default_rng(seed)
        y = rng.permutation(np.arange(rows) % classes)
        centres = np.random.default_rng(9).normal(size=(max(classes, 40), width)).astype(np.float32)
        ids = tuple(f"{seed}-{i:07d}" for i in range(rows))
        if name == "geolocation":  # forty cities
            city = rng.permutation(np.arange(rows) % 40)
            places = np.random.default_rng(8).uniform([-60, -180], [60, 180], (40, 2))
            y, values = city, places[city] + rng.normal(size=(rows, 2)) * 0.1
            labels = Numbers(("lat", "lon"), values)
        else:
            labels = Classes(tuple(f"class {c}" for c in range(classes)), y.astype(np.int64))
        x = 5 * rng.standard_normal((rows, width), dtype=np.float32) + centres[y]
        return Features(np.maximum(x, 0), labels, ids)

    def patches(images, seed):
        from helpers.targets import ArrayMaps

        rng = np.random.default_rng(seed)
        maps = rng.integers(0, classes, (images, 7, 7)).repeat(32, axis=1).repeat(32, axis=2).astype(np.uint8)
        x = rng.standard_normal((images, GRID * GRID * width), dtype=np.float32)
        names = tuple(f"class {c}" for c in range(classes))
        labels = LabelMaps(names, ArrayMaps(maps))
        ids = tuple(f"{seed}-{i:07d}" for i in range(images))
        return Features(x, labels, ids, regions=GRID * GRID, grid=(GRID, GRID))

    make = patches if name == "segmentation-knn" else features
    parts = make(train, 1), make(test, 2)
    protocol = protocols.find(name)
    kind, settings = protocol.kind, protocol.settings()
    # Libraries and threads are loaded before.
    if name not in ("geolocation", "segmentation-knn", "low-shot", "lsr"):
        some = np.arange(max(60, 2 * classes))
        kind.run(*(part.select(some) for part in (parts[1], parts[1])), settings, seed=0)
    speed = measure_speed(time.process_time)
    labels = parts[0].target
    cells, pixels = (GRID * GRID, 224 * 224) if name == "segmentation-knn" else (1, 0)
    shapes = Shapes(train, test, parts[0].x.shape[1], classes, labels.kind, cells, pixels)
    cost = kind.cost(settings, shapes)
    status = Path("/proc/self/status")
    held = lambda key: int(re.search(key + r":\\s+(\\d+)", status.read_text())[1]) / 1024
    Path("/proc/self/clear_refs").write_text("5")
    before, began = held("VmRSS"), time.process_time()
    kind.run(*parts, settings, seed=0)
    seconds = time.process_time() - began
    print(json.dumps([speed.seconds(cost), seconds, cost.memory / 2**20, held("VmHWM") - before]))
    """
)


def test_every_protocol_on_features_has_two_cases():
    from sslbench.names import list_names
    from sslbench.protocols import OnFeatures, find

    assert set(CASES) == {name for name in list_names("protocol") if isinstance(find(name).kind, OnFeatures)}


@pytest.mark.parametrize("name", CASES)
def test_time_and_memory_are_within_a_factor_of_two(name):
    tests = Path(__file__).resolve().parent.parent
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{tests.parent}:{tests}"}
    wrong = []
    for sizes in CASES[name]:
        command = [sys.executable, "-c", CHILD, name, *map(str, sizes)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr[-2000:]
        expected, seconds, memory, peak = json.loads(done.stdout.splitlines()[-1])
        text = f"{name} {sizes}: time {expected:.2f} of {seconds:.2f} s ({expected / seconds:.2f}), "
        text += f"memory {memory:.0f} of {peak:.0f} MiB ({memory / max(peak, 1):.2f})"
        print(f"\n{text}", end="")
        compared = max(memory, peak) >= COMPARED_FROM
        right = 1 / WITHIN <= expected / seconds <= WITHIN
        right &= not compared or 1 / WITHIN <= memory / max(peak, 1) <= WITHIN
        wrong += [] if right else [text]
    assert not wrong, "\n".join(wrong)
