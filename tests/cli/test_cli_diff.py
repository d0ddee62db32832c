"""`sslbench diff`, as a user runs it."""

import json

import pytest
import torch


@pytest.fixture
def folder(tmp_path, monkeypatch, shared):
    """a.pth and b.pth: the same small ResNet-18 but for two tensors; moco.pth: a.pth under other names."""
    monkeypatch.chdir(tmp_path)
    tensors = torch.load(shared("weights") / "resnet18w0.125.pth", weights_only=True)
    torch.save(tensors, "a.pth")
    torch.save({"state_dict": {f"module.encoder_q.{name}": t for name, t in tensors.items()}}, "moco.pth")
    changed = {"bn1.bias": tensors["bn1.bias"] + 0.5, "layer1.0.bn1.weight": tensors["layer1.0.bn1.weight"] * 2}
    torch.save({**tensors, **changed}, "b.pth")
    return tmp_path


def test_equal_files_of_different_formats(folder, sslbench):
    code, out, _ = sslbench("diff", "a.pth", "moco.pth")
    assert code == 0 and "A: a.pth (torchvision)" in out and "B: moco.pth (moco)" in out
    assert "equal: 100 tensors" in out and out.endswith("the backbones are equal\n")


def test_what_differs_is_named_and_measured(folder, sslbench):
    code, out, _ = sslbench("diff", "moco.pth", "b.pth")
    assert code == 1 and "different: 2 tensors" in out and "equal: 98 tensors" in out
    assert "layer1.0.bn1.weight  1  1" in out and "bn1.bias  0.5  inf" in out
    assert out.endswith("the backbones differ\n")


def test_another_architecture(folder, sslbench, shared):
    code, out, _ = sslbench("diff", "a.pth", shared("weights") / "resnet18w0.25.pth")
    assert code == 1 and "of another shape: 100 tensors" in out and "conv1.weight  8x3x7x7 / 16x3x7x7" in out
    assert len(out.splitlines()) < 20 and "--json lists all" in out


def test_json_has_everything(folder, sslbench):
    code, out, _ = sslbench("diff", "a.pth", "b.pth", "--json")
    found = json.loads(out)
    assert code == 1 and found["same"] is False and len(found["equal"]) == 98
    assert [change["name"] for change in found["changed"]] == ["bn1.bias", "layer1.0.bn1.weight"]


def test_files_of_no_known_format_are_compared_as_they_are_on_request(folder, sslbench):
    for name, value in (("x", 1.0), ("y", 1.5)):
        torch.save({"net": {"odd.w": torch.tensor([value])}, "odd": torch.ones(2)}, f"{name}.pth")
    code, out, err = sslbench("diff", "x.pth", "y.pth")
    assert code == 1 and out == "" and "no known format" in err and "--raw compares" in err
    code, out, _ = sslbench("diff", "x.pth", "y.pth", "--raw")
    assert code == 1 and "net.odd.w  0.5  0.5" in out and "equal: 1 tensors" in out
    assert sslbench("diff", "x.pth", "x.pth", "--raw")[0] == 0


def test_raw_excludes_formats(folder, sslbench):
    code, _, err = sslbench("diff", "a.pth", "b.pth", "--raw", "--format-a", "moco")
    assert code == 2 and "--raw does not go with --format-a" in err
