"""A disk that is full while weights are written: one message with the file and the bytes, and nothing half-written."""

import resource
import signal
import subprocess
import sys

import pytest
import torch

from sslbench.backbones.build import build

LIMIT = 1_000_000


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("in") / "r18.pth"
    torch.save(build("resnet18w0.5").module.state_dict(), path)  # 11 MB
    return path


def short_of_space():
    """Let no file of this process grow beyond a megabyte: a full disk for whoever writes one."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("out.pth", "torchvision"),
        ("out.safetensors", "torchvision"),
        ("out.pkl", "detectron2"),
        ("o.torch", "sslbench"),
    ],
)
def test_convert_on_a_full_disk_is_one_message(tmp_path, weights, name, to):
    out = tmp_path / name
    out.write_bytes(b"as it was")
    ran = subprocess.run(
        [sys.executable, "-m", "sslbench", "convert", str(weights), str(out), "--to", to, "--force"],
        capture_output=True,
        text=True,
        preexec_fn=short_of_space,
        check=False,
    )
    assert ran.returncode == 1 and "Traceback" not in ran.stderr, ran.stderr
    assert f"cannot write {out}: File too large, after 1,000,000 bytes" in ran.stderr
    assert f"bytes are free in {tmp_path}" in ran.stderr
    assert out.read_bytes() == b"as it was" and list(tmp_path.iterdir()) == [out]
