"""Protocols at ImageNet's size under a limit of 4 GB: `make bench-scale`, an hour or two on two cores.

Features of 1.28 M x 256 and 200,000 x 2,048 with 1,000 classes are made on disk and memory-mapped. Every case runs in a
process that may not have more than 4 GB of data (RLIMIT_DATA: heap and anonymous maps, without mapped files), so it
ends with an error where anything grows with all of train. It prints the most memory in use, and the time beside that
of the bare products.

SSLBENCH_SCALE=0.1 takes a tenth of the rows. SSLBENCH_SCALE_FOLDER keeps the features for the next run.
"""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scale_case import CASES

pytestmark = pytest.mark.scale

LIMIT_GB = 4.0
CLASSES = 1000
ROWS = float(os.environ.get("SSLBENCH_SCALE", "1"))
BLOCK = 16384
HERE = Path(__file__).resolve().parent
RECORDS = 10_000
SHAPES = {"1.28 M x 256": (1_281_167, 50_000, 256), "200,000 x 2,048": (200_000, 20_000, 2048)}


def write_part(folder, part, n, width, seed):
    """Write features of noisy classes, block by block; not negative, like those after a ReLU."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, width)).astype(np.float32)
    generator = np.random.default_rng(seed)
    labels = np.r_[np.arange(min(n, CLASSES)), generator.integers(0, CLASSES, max(0, n - CLASSES))]
    x = np.lib.format.open_memmap(folder / f"{part}.npy", "w+", np.float32, (n, width))
    for start in range(0, n, BLOCK):
        own = labels[start : start + BLOCK]
        noise = generator.standard_normal((len(own), width), dtype=np.float32)
        x[start : start + BLOCK] = np.maximum(0.35 * centres[own] * np.sqrt(256 / width) + noise, 0)
    x.flush()
    np.save(folder / f"{part}.labels.npy", labels)


@pytest.fixture(scope="module", params=list(SHAPES))
def data(request, tmp_path_factory):
    """The folder of features of one shape."""
    train, test, width = SHAPES[request.param]
    train, test = max(2 * CLASSES, int(train * ROWS)), max(CLASSES, int(test * ROWS))
    kept = os.environ.get("SSLBENCH_SCALE_FOLDER")
    name = f"{train}x{width}"
    folder = Path(kept) / name if kept else tmp_path_factory.mktemp("scale") / name
    if not (folder / "classes.npy").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        needed = 4 * (train + test) * width
        if shutil.disk_usage(folder).free < 1.5 * needed:
            pytest.skip(f"{folder} has not the {1.5 * needed / 1e9:.1f} GB of room for the features")
        write_part(folder, "train", train, width, 1)
        write_part(folder, "test", test, width, 2)
        np.save(folder / "classes.npy", CLASSES)
    yield folder
    if not kept:
        shutil.rmtree(folder)


def run_case(case, folder):
    """Run a case in its own process, print its line and return what it found."""
    command = [sys.executable, str(HERE / "scale_case.py"), case, str(folder), str(LIMIT_GB)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{case} within {LIMIT_GB} GB: {done.stderr[-3000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    beside = f", bare products {found['bare']:.0f} s" if found["bare"] else ""
    sys.stdout.write(f"\n{case}, {folder.name}: {found['peak'] / 1e9:.2f} GB, {found['seconds']:.0f} s{beside}\n")
    return found


@pytest.mark.parametrize("case", list(CASES))
def test_a_protocol_keeps_within_the_limit(case, data):
    found = run_case(case, data)
    assert found["peak"] <= LIMIT_GB * 1e9
    assert found["headline"] is not None


def test_a_leaderboard_of_many_records_keeps_within_the_limit(tmp_path):
    from helpers.record_trees import make

    from sslbench.results import records

    number = max(100, int(RECORDS * ROWS))
    for i in range(number):
        result = make(f"net{i // 5:05d}.torch", 50 + i % 400 / 10, ("knn", "linear", "svm", "lsr", "low-shot")[i % 5])
        records.write_without_scores(dataclasses.replace(result), tmp_path)
    assert run_case("leaderboard", tmp_path)["peak"] <= LIMIT_GB * 1e9
