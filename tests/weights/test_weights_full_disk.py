"""A disk that is full while weights are written: one message with the file and the bytes, and nothing half-written."""

import contextlib
import resource

import pytest
import torch

from sslbench.backbones.build import build
from sslbench.cli.main import main

LIMIT = 1_000_000


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("in") / "r18.pth"
    torch.save(build("resnet18w0.5").module.state_dict(), path)  # 11 MB
    return path


@contextlib.contextmanager
def short_of_space():
    """Let no file of this process grow beyond a megabyte: a full disk for whoever writes one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("out.pth", "torchvision"),
        ("out.safetensors", "torchvision"),
        ("out.pkl", "detectron2"),
        ("o.torch", "sslbench"),
    ],
)
def test_convert_on_a_full_disk_is_one_message(tmp_path, capsys, weights, name, to):
    out = tmp_path / name
    out.write_bytes(b"as it was")
    with short_of_space(), pytest.raises(SystemExit) as ended:
        main(["convert", str(weights), str(out), "--to", to, "--force"])
    said = capsys.readouterr().err
    assert ended.value.code == 1 and "Traceback" not in said, said
    assert f"cannot write {out}: File too large; " in said and "the 1,000,000 bytes that were written" in said
    assert f"bytes are free in {tmp_path}" in said
    assert out.read_bytes() == b"as it was" and list(tmp_path.iterdir()) == [out]
