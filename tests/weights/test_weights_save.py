"""sslbench's own file: whole or not at all, and readable by torch's safe reader."""

import pytest
import torch

from sslbench.errors import SslbenchError, UsageError, WeightsError
from sslbench.weights import save as module
from sslbench.weights.save import save

TENSORS = {"conv1.weight": torch.randn(2, 3, 3, 3), "bn1.num_batches_tracked": torch.tensor(4)}


def test_the_file_holds_what_was_given(tmp_path):
    path = save(tmp_path / "w.torch", TENSORS, backbone="resnet18", metadata={"lr": 0.1, "steps": (1, 2), "n": None})
    content = torch.load(path, weights_only=True)
    assert {key: content[key] for key in ("format", "version", "backbone")} == {
        "format": "sslbench",
        "version": 1,
        "backbone": "resnet18",
    }
    assert content["metadata"] == {"lr": 0.1, "steps": [1, 2], "n": None}
    assert all(torch.equal(content["state_dict"][key], TENSORS[key]) for key in TENSORS)
    assert [p.name for p in tmp_path.iterdir()] == ["w.torch"]


def test_a_view_is_written_without_the_rest_of_its_storage(tmp_path):
    path = save(tmp_path / "w.torch", {"a": torch.zeros(1000, 1000)[0]}, backbone="b", metadata={})
    assert path.stat().st_size < 20_000


def test_a_file_that_is_there_is_not_replaced_unless_asked(tmp_path):
    path = save(tmp_path / "w.torch", TENSORS, backbone="a", metadata={})
    before = path.read_bytes()
    with pytest.raises(UsageError, match="exists already"):
        save(path, TENSORS, backbone="b", metadata={})
    assert path.read_bytes() == before
    save(path, TENSORS, backbone="b", metadata={}, overwrite=True)
    assert torch.load(path, weights_only=True)["backbone"] == "b"


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = save(tmp_path / "w.torch", TENSORS, backbone="a", metadata={})
    before = path.read_bytes()

    def full(content, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.torch, "save", full)
    with pytest.raises(SslbenchError, match=r"cannot write .*No space left"):
        save(path, TENSORS, backbone="b", metadata={}, overwrite=True)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["w.torch"]


def test_what_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(WeightsError, match=r"metadata\.args\.f should hold numbers and text, not"):
        save(tmp_path / "w.torch", TENSORS, backbone="b", metadata={"args": {"f": print}})
    with pytest.raises(WeightsError, match="no tensors"):
        save(tmp_path / "w.torch", {}, backbone="b", metadata={})
    with pytest.raises(UsageError, match="does not exist"):
        save(tmp_path / "x" / "w.torch", TENSORS, backbone="b", metadata={})
    assert list(tmp_path.iterdir()) == []
