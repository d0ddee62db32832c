"""A manifest of a million images: how long it takes to open, and the memory of each process with four workers."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest

from sslbench.data.containers.listed import MOST_CHECKED

N = 1_000_000
CLASSES = 1000

MEASURE = """
import json, sys, time
from pathlib import Path
before = time.perf_counter(), time.process_time()
from sslbench.data.open import open_data
source = open_data(sys.argv[1])["all"]
took = time.perf_counter() - before[0], time.process_time() - before[1]
from torch.utils.data import DataLoader, Dataset
def peak():  # getrusage would know that of the process that started this one
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
class Paths(Dataset):
    def __init__(self, images): self.images = images
    def __len__(self): return len(self.images)
    def __getitem__(self, i):
        self.images.path(i)
        return peak()
loader = DataLoader(Paths(source.images), batch_size=4096, num_workers=4, shuffle=True)
workers = max(float(batch.max()) for batch in loader)
own = peak()
print(json.dumps([len(source), *took, own, workers]))
"""


def write_manifest(path, kind):
    with path.open("w") as file:
        if kind == "csv":
            file.write("path,label\n")
            file.writelines(f"images/{i:07d}.jpg,class {i % CLASSES}\n" for i in range(N))
            return
        rows = (f'{{"id": {i}, "file_name": "images/{i:07d}.jpg", "width": 500, "height": 375}}' for i in range(N))
        file.write('{"images": [\n' + ",\n".join(rows))
        box = '"bbox": [10.5, 20.25, 100.0, 50.5], "area": 5050.0, "iscrowd": 0'
        rows = (f'{{"id": {i}, "image_id": {i}, "category_id": {i % CLASSES}, {box}}}' for i in range(N))
        file.write('\n], "annotations": [\n' + ",\n".join(rows))
        rows = (f'{{"id": {i}, "name": "class {i}"}}' for i in range(CLASSES))
        file.write('\n], "categories": [' + ", ".join(rows) + "]}")


@pytest.mark.speed
@pytest.mark.parametrize("kind", ["json", "csv"])
def test_a_million_images(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    path = tmp_path / f"m.{kind}"
    write_manifest(path, kind)
    (tmp_path / "images").mkdir()
    for i in np.linspace(0, N - 1, MOST_CHECKED).astype(np.int64).tolist():
        (tmp_path / f"images/{i:07d}.jpg").touch()
    script = tmp_path / "measure.py"
    script.write_text(MEASURE)
    time.sleep(4)  # a file that was just written is not kept
    for when, seconds in (("first", 30), ("later", 3)):
        done = subprocess.run([sys.executable, str(script), str(path)], capture_output=True, text=True, check=True)
        n, wall, cpu, own, workers = json.loads(done.stdout)
        print(f"{kind}, {when}: {wall:.1f} s ({cpu:.1f} s of CPU); {own:.0f} MB, each of 4 workers {workers:.0f} MB")
        assert n == N and cpu < seconds and max(own, workers) < 1000
