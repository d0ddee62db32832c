"""Photographs and stopwatches of the tests of speed."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
from PIL import Image


def write_photographs(folder: Path, number: int, width: int, height: int) -> list[Path]:
    """Write JPEGs that are smooth with some texture, as photographs are, quality 90."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, files = np.random.default_rng(0), [folder / f"{i:04d}.jpg" for i in range(number)]
    for file in files:
        smooth = Image.fromarray(rng.integers(0, 255, (16, 20, 3), dtype=np.uint8)).resize((width, height), 3)
        pixels = np.asarray(smooth) + rng.normal(0, 8, (height, width, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, quality=90)
    return files


def timed(function: Callable[[], object], every: float) -> tuple[object, float, float, float]:
    """Return the result, wall seconds, seconds of all cores, and the MiB of memory added at the peak.

    `every`: seconds between two looks at the memory.
    """
    process, done, peak = psutil.Process(), threading.Event(), [0]
    before = process.memory_info().rss

    def watch() -> None:
        while not done.wait(every):
            peak[0] = max(peak[0], process.memory_info().rss - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    wall, cpu = time.perf_counter(), time.process_time()
    result = function()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    done.set()
    watcher.join()
    return result, wall, cpu, peak[0] / 2**20
