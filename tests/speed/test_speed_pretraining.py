"""What the training loop costs beside a bare PyTorch step, and pretraining from JPEGs beside lightly: `make bench`."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import simclr_updates
from helpers.timing import write_photographs

from sslbench.config import build as build_settings
from sslbench.pretraining import PretrainRequest, PretrainSettings, pretrain
from sslbench.train.observers import Observer

pytestmark = pytest.mark.speed

SIZE, BATCH, UPDATES, ROUNDS = 96, 32, 8, 5
LIGHTLY = (
    *("lightly", "lightly_utils", "pytorch_lightning", "lightning_utilities", "torchmetrics", "aenum", "pydantic"),
    *("pydantic_core", "annotated_types", "typing_inspection", "python-dateutil", "six", "requests", "certifi"),
    *("urllib3", "idna", "charset_normalizer", "tqdm"),
)


def seconds_of(action):
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def test_the_loop_against_a_bare_step():
    """SimCLR with a ResNet-18 on views that are in memory already: normalisation, forward, backward, update."""
    case = simclr_updates.Case("resnet18", 512, 512, SIZE, BATCH)
    batches = case.batches(UPDATES)
    by_hand, ours = simclr_updates.by_hand(case, batches), simclr_updates.by_the_loop(case, batches)
    by_hand(), ours()
    seconds = {"bare": [], "ours": []}
    for _ in range(ROUNDS):
        seconds["bare"].append(seconds_of(by_hand))
        seconds["ours"].append(seconds_of(ours))
    best = {name: min(values) / UPDATES for name, values in seconds.items()}
    overhead = best["ours"] / best["bare"] - 1
    print(
        f"\nSimCLR step, ResNet-18, 2 x {BATCH} x {SIZE} px, {torch.get_num_threads()} threads: bare "
        f"{1000 * best['bare']:.0f} ms, loop {1000 * best['ours']:.0f} ms: overhead {100 * overhead:+.1f} % (at most 5)"
    )
    assert overhead < 0.15, "the loop costs more than timing noise explains"


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """1,024 photograph-like JPEGs, 256 pixels on the shorter side."""
    folder = tmp_path_factory.mktemp("photos") / "images"
    write_photographs(folder / "all", 1024, 320, 256)
    return folder


class Rates(Observer):
    """Collects images per second and the share of waiting."""

    def __init__(self):
        self.lines = []

    def started(self, about):
        pass

    def line(self, line):
        self.lines.append(line)

    def evaluated(self, record):
        pass

    def finished(self):
        pass


def our_rate(photos, out, workers):
    values = {
        "method": {"name": "simclr", "projector": [512, 128]},
        "augment": {
            "views": [
                {
                    "count": 2,
                    "size": SIZE,
                    "scale": [0.08, 1.0],
                    "flip": 0.5,
                    "jitter": {"p": 0.8, "brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2},
                    "grayscale": 0.2,
                    "blur": {"p": 0.5, "sigma": [0.1, 2.0]},
                }
            ]
        },
        "optimizer": {"name": "sgd", "lr": 0.01},
        "schedule": {"lr": 1.0},
        "backbone": "resnet18",
        "batch_size": 64,
        "epochs": 1,
        "workers": workers,
        "log_every": 1,
        "save_every": "10 epochs",
    }
    rates = Rates()
    settings = build_settings(PretrainSettings, values, "speed")
    began = time.perf_counter()
    pretrain(PretrainRequest(settings, str(photos), out), command="speed", observers=[rates])
    whole = 1024 / (time.perf_counter() - began)
    lines = rates.lines[2:]
    seconds = sum(64 / line.images_per_second for line in lines)
    return 64 * len(lines) / seconds, sum(line.waiting * 64 / line.images_per_second for line in lines) / seconds, whole


def lightly_rate(photos, packages, workers):
    script = Path(__file__).with_name("lightly_simclr.py")
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    words = [sys.executable, str(script), str(photos), str(SIZE), str(workers), "64", "cpu"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["images_per_second"]


def test_simclr_from_jpegs_against_lightly(photos, tmp_path):
    """The same method, network, views, batch, workers and threads; lightly comes from the index into a folder here."""
    packages = tmp_path / "lightly"
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages), *LIGHTLY]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("lightly cannot be installed from here")
    workers = 1
    ours, theirs, waiting = [], [], []
    for i in range(3):
        rate, share, whole = our_rate(photos, tmp_path / f"run{i}", workers)
        ours.append(rate), waiting.append(share)
        theirs.append(lightly_rate(photos, packages, workers))
        print(f"\nround {i + 1}: ours {rate:.1f} images/s ({whole:.1f} with start and end), lightly {theirs[-1]:.1f}")
    ratio = max(ours) / max(theirs)
    print(
        f"SimCLR, ResNet-18, {SIZE} px from JPEG, batch 64, {workers} worker, {torch.get_num_threads()} threads: ours "
        f"{max(ours):.1f} images/s, lightly {max(theirs):.1f}: x{ratio:.2f} (aim 1.0); waiting for data "
        f"{100 * min(waiting):.0f} % of the time"
    )
    assert ratio > 0.9
