"""Extraction from a folder of JPEGs with nothing beside it, and with one busy process: `make bench`.

Cold runs of `sslbench extract` in turn: by default, with OpenMP threads that spin while they wait, with one thread.
On a machine where others work too, compare the processor seconds.
"""

import os
import resource
import subprocess
import sys
import time

import pytest
from helpers.timing import write_photographs

pytestmark = pytest.mark.speed

IMAGES = int(os.environ.get("SSLBENCH_BENCH_JPEGS", "400"))
OWN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS")
CASES = {
    "default": {},
    "OMP_WAIT_POLICY=active": {"OMP_WAIT_POLICY": "active"},
    "OMP_NUM_THREADS=1": {"OMP_NUM_THREADS": "1"},
}


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory):
    """Photograph-like JPEGs (smooth, with some texture) of 500 x 375 pixels, quality 90, in two classes."""
    folder = tmp_path_factory.mktemp("jpegs")
    for name, number in (("a", IMAGES - IMAGES // 2), ("b", IMAGES // 2)):
        write_photographs(folder / name, number, 500, 375)
    return folder


def extraction(data, store, environment):
    """Wall seconds, and processor seconds (user and system) of a cold run."""
    words = ["extract", "--weights", "random", "--backbone", "resnet18", "--data", str(data), "--store", str(store)]
    env = {key: value for key, value in os.environ.items() if key not in OWN} | environment
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "sslbench", *words, "-q"], env=env, check=True, capture_output=True)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("neighbours", [0, 1])
def test_extraction_beside_busy_processes(neighbours, jpegs, tmp_path):
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(neighbours)]
    found = {name: [] for name in CASES}
    try:
        for repeat in range(2):
            for number, (name, environment) in enumerate(CASES.items()):
                found[name].append(extraction(jpegs, tmp_path / f"{repeat}-{number}", environment))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    print(f"\n{IMAGES} JPEGs, ResNet-18, {os.cpu_count()} cores, {neighbours} busy neighbours; cold runs")
    best = {name: tuple(min(values) for values in zip(*runs, strict=True)) for name, runs in found.items()}
    for name, (wall, processor) in best.items():
        print(f"  {name:24} {wall:6.1f} s, {IMAGES / wall:5.1f} images/s, {processor:6.1f} processor s")
    assert best["default"][1] < best["OMP_WAIT_POLICY=active"][1] * 1.1, (
        "sleeping threads use no more than spinning ones"
    )
