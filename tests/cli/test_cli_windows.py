"""Commands on a system like Windows: no locks, no fork, no renaming of open files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

NETWORK = "--backbone resnet_basic_1-1-1-1w0.125_cifar"
COMMANDS = [
    f"pretrain simclr {NETWORK} epochs=1 schedule.warmup_epochs=0 augment=small --limit 32 batch_size=16 --out p",
    "pretrain p/config.yaml --out q --workers 1",
    "eval knn linear --weights p/weights.torch --data kwcoco:shapes16 --no-floors --out r",
    "eval knn linear --weights p/weights.torch --data kwcoco:shapes16 --no-floors --out r",
    "eval finetune --weights p/weights.torch --limit 40 epochs=1 --workers 0 --no-floors --out r",
    "leaderboard r --csv board.csv --html board.html",
    "data to-kwcoco kwcoco:shapes8 shapes.kwcoco.json",
    "convert p/weights.torch y.pth --to torchvision",
    "inspect y.pth",
    "check-data kwcoco:shapes8 --workers 0",
]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="open files are found in /proc")
def test_commands_work_without_what_windows_lacks(tmp_path):
    environment = os.environ | {"SSLBENCH_CACHE": str(tmp_path / "cache"), "SSLBENCH_TRACEBACK": "1"}
    program = [sys.executable, str(Path(__file__).parents[1] / "helpers" / "windows.py"), *COMMANDS]
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "start no second run that writes there" in done.stderr
    for written in ("p/weights.torch", "board.csv", "board.html", "y.pth", "shapes.kwcoco.json"):
        assert (tmp_path / written).is_file()
    assert len((tmp_path / "board.csv").read_text().splitlines()) > 1
    assert not list(tmp_path.rglob("*.part*"))
