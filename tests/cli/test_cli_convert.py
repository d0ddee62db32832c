"""`sslbench convert`, as a user runs it."""

import json

import pytest
import torch

from sslbench.backbones.build import build
from sslbench.preprocessing import Preprocessing
from sslbench.weights import save

NAME = "resnet18w0.125"


@pytest.fixture
def state(shared):
    """State dict of a small ResNet-18 in torchvision's names."""
    return torch.load(shared("weights") / f"{NAME}.pth", weights_only=True)


@pytest.fixture
def folder(tmp_path, monkeypatch, state):
    """The current folder, with that network and a classifier."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    torch.save({**state, "fc.weight": torch.rand(3, 64), "fc.bias": torch.rand(3)}, "r18.pth")
    return tmp_path


def test_the_report_says_what_was_done_in_a_few_lines(folder, sslbench):
    code, out, err = sslbench("convert", "r18.pth", "d2.pth", "--to", "detectron2")
    assert (code, err) == (0, "") and len(out.splitlines()) <= 15
    assert "format torchvision" in out and "format detectron2, 100 tensors, 100 of them renamed" in out
    assert "left out fc.* (2 tensors" in out and "20 num_batches_tracked counters: detectron2 has none" in out
    code, out, _ = sslbench("convert", "d2.pth", "back.safetensors", "--to", "torchvision")
    assert code == 0 and "20 num_batches_tracked counters, as 0" in out and "at 'model'" in out
    code, out, _ = sslbench("diff", "r18.pth", "back.safetensors")
    assert code == 0 and "the backbones are equal" in out


def test_operations_and_heads_are_reported(folder, sslbench):
    _, out, _ = sslbench("convert", "r18.pth", "m.pth", "--to", "moco", "--keep-heads")
    assert "kept     heads: fc.weight, fc.bias" in out and "left out" not in out
    _, out, _ = sslbench("convert", "m.pth", "own.pth", "--to", "sslbench")
    assert "keys start with 'module.encoder_q.'" in out
    assert torch.load("own.pth", weights_only=True)["backbone"] == NAME, "recognised from the shapes"


def test_a_vision_transformer_changes_its_names_and_joins_its_queries_keys_and_values(folder, sslbench):
    vit = build("timm:vit_tiny_patch16_224,depth=2").module.state_dict()
    torch.save(vit, "vit.pth")
    code, out, err = sslbench("convert", "vit.pth", "hf.safetensors", "--to", "huggingface_vit")
    assert code == 0, err
    assert "concat" in out
    code, out, _ = sslbench("convert", "hf.safetensors", "back.pth", "--to", "timm")
    assert code == 0
    back = torch.load("back.pth", weights_only=True)
    assert back.keys() == vit.keys() and all(torch.equal(back[name], vit[name]) for name in vit)


def test_the_transform_of_own_weights_is_named_where_the_target_cannot_store_it(folder, sslbench, state):
    own = Preprocessing(resize=32, crop=(28, 32), interpolation="bicubic", mean=(0.5,) * 3, std=(0.25,) * 3)
    save.save("own.torch", state, backbone=NAME, metadata={"preprocessing": json.dumps(own.record())})
    _, out, _ = sslbench("convert", "own.torch", "r.pth", "--to", "torchvision")
    flags = "--resize 32 --crop 28x32 --interpolation bicubic --mean 0.5,0.5,0.5 --std 0.25,0.25,0.25"
    assert f"do not store this: evaluate it with {flags}\n" in out
    _, out, _ = sslbench("convert", "own.torch", "copy.torch", "--to", "sslbench")
    assert "note" not in out
    save.save("usual.torch", state, backbone=NAME, metadata={})
    assert "note" not in sslbench("convert", "usual.torch", "u.pth", "--to", "torchvision")[1]


def test_a_file_that_is_there_is_replaced_only_with_force(folder, sslbench):
    (folder / "out.pth").write_text("mine")
    code, _, err = sslbench("convert", "r18.pth", "out.pth", "--to", "moco")
    assert code == 2 and "exists already" in err and "--force" in err
    assert (folder / "out.pth").read_text() == "mine"
    assert sslbench("convert", "r18.pth", "out.pth", "--to", "moco", "--force")[0] == 0


def test_a_users_own_network_needs_the_backbone(world, sslbench):
    own = ("--backbone", "tiny_net_of_the_tests:net")
    code, out, err = sslbench("convert", "w.pth", "w.safetensors", "--to", "plain", *own)
    assert code == 0, err
    assert "8 tensors" in out
    code, _, err = sslbench("convert", "w.pth", "x.pth", "--to", "moco", *own)
    assert code == 1 and "moco has no name for" in err


MISTAKES = [
    (["r18.pth", "x.pth"], "Missing option '--to'"),
    (["r18.pth", "x.pth", "--to", "detectron"], "Did you mean 'detectron2'"),
    (["r18.pth", "x.pth", "--to", "moco", "--format", "vissl"], "is not of format vissl"),
    (["r18.pht", "x.pth", "--to", "moco"], "Did you mean 'r18.pth'"),
    (["r18.pth", "no/x.pth", "--to", "moco"], "the folder no does not exist"),
    (["r18.pth", "x.npz", "--to", "timm"], ".npz files can be read but not written"),
    (["r18.pth", "x.pth", "--to", "mae"], "mae has no name for 100 of the file's 120 tensors: 'conv1.weight'"),
]


def test_a_mistake_is_one_message_and_writes_nothing(folder, sslbench):
    for arguments, message in MISTAKES:
        code, out, err = sslbench("convert", *arguments)
        assert code in (1, 2) and out == "" and message in err and "Traceback" not in err
        assert [p.name for p in folder.iterdir()] == ["r18.pth"]
