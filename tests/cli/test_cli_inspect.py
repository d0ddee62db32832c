"""`sslbench inspect`, as a user runs it: what a file is, or what it looks like when nobody knows."""

import gzip
import json
import os
import pickle
import shlex
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from helpers import containers

from sslbench.backbones.build import build
from sslbench.features import external_files
from sslbench.weights import save
from sslbench.weights.formats.tables import load_table


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def resnet(shared):
    return torch.load(shared("weights") / "resnet18w0.125.pth", weights_only=True)


def row(out, label):
    [line] = [line for line in out.splitlines() if line.startswith(f"  {label} ")]
    return line.removeprefix(f"  {label}").strip()


def test_the_page_of_a_moco_checkpoint(folder, sslbench, resnet):
    both = {f"module.encoder_{letter}.{name}": t for letter in "qk" for name, t in resnet.items()}
    torch.save({"epoch": 199, "arch": "resnet18", "state_dict": both | {"module.queue": torch.ones(2, 3)}}, "m.pth.tar")
    code, out, err = sslbench("inspect", "m.pth.tar")
    assert (code, err) == (0, "")
    assert row(out, "file").startswith("torch zip, ") and "sha256" in row(out, "file")
    assert row(out, "beside") == "epoch: 199, arch: resnet18"
    assert row(out, "format").startswith("moco: ") and "module.encoder_q" in row(out, "because")
    assert row(out, "tensors") == "241 at 'state_dict'" and "'module.encoder_q.'" in row(out, "sub-network")
    assert row(out, "backbone") == "resnet18w0.125"
    assert "ResNet of basic blocks, 18 layers deep (2-2-2-2), width 8, 3 input channels" in out
    assert row(out, "loads").startswith("loaded 120 of 120 backbone tensors (100.0 % of parameters)")
    assert "module.queue" in row(out, "ignored")
    assert row(out, "input").startswith("RGB, 0 to 1, then mean (0.485, 0.456, 0.406)")


def test_a_vision_transformer_shows_its_numbers(folder, sslbench):
    torch.save(build("timm:vit_small_patch14_reg4_dinov2,depth=2").module.state_dict(), "vit.pth")
    _, out, _ = sslbench("inspect", "vit.pth", "--json")
    numbers = json.loads(out)["architecture"]
    assert (numbers["depth"], numbers["width"], numbers["patch"], numbers["image"]) == (2, 384, 14, 518)
    assert numbers["registers"] == 4 and numbers["layer_scale"] is True and numbers["channels"] == 3
    code, out, _ = sslbench("inspect", "vit.pth")
    assert code == 1 and "number of heads is not visible" in row(out, "problem")
    assert "ViT of 2 blocks, width 384" in out and "patch 14" in out and "3 input channels" in out


def test_a_bgr_file_says_so(folder, sslbench, shared):
    sslbench("convert", shared("weights") / "resnet50w0.125.pth", "c2.pkl", "--to", "caffe2_resnet")
    code, out, _ = sslbench("inspect", "c2.pkl")
    assert code == 0 and row(out, "input").startswith("BGR in the file, turned to RGB on loading")


def test_json_holds_heads_hashes_and_every_shape(folder, sslbench, resnet):
    torch.save({**resnet, "fc.bias": torch.ones(3)}, "r.pth")
    code, out, _ = sslbench("inspect", "r.pth", "--json")
    known = json.loads(out)
    assert code == 0 and known["format"] == "torchvision" and known["problem"] == ""
    assert known["heads"] == {"fc.bias": [3]} and known["ignored"] == ["fc.*"] and len(known["tensors"]) == 121
    assert known["backbone"] == "resnet18w0.125" and len(known["sha256"]) == len(known["tensors_sha256"]) == 64
    assert known["parameters"] == sum(
        tensor.numel() for name, tensor in resnet.items() if "running" not in name and "batches" not in name
    )


def test_a_file_of_no_known_format_shows_its_first_names_and_shapes(folder, sslbench):
    torch.save({"net": {f"xx{i}.yy": torch.ones(2, i + 1) for i in range(30)}, "epoch": 3}, "odd.ckpt")
    code, out, _ = sslbench("inspect", "odd.ckpt")
    assert code == 1 and row(out, "format") == "not recognised" and row(out, "tensors") == "30 at 'net'"
    assert "no known format" in row(out, "problem") and "--format" in out
    assert "    xx0.yy   2x1\n" in out and "... and 18 more" in out and "xx12" not in out


def test_a_known_format_of_an_unknown_architecture_shows_what_is_known(folder, sslbench):
    torch.save(build("timm:mobilenetv3_small_050").module.state_dict(), "net.pth")
    code, out, _ = sslbench("inspect", "net.pth")
    assert code == 1 and row(out, "format").startswith("timm: ") and "--backbone" in out
    assert "architecture cannot be recognised" in row(out, "problem")
    assert sslbench("inspect", "net.pth", "--backbone", "timm:mobilenetv3_small_050")[0] == 0


def test_weights_that_do_not_load_are_described_as_far_as_they_go(folder, sslbench, resnet):
    torch.save(resnet | {"bn1.bias": torch.full((8,), float("nan"))}, "nan.pth")
    code, out, _ = sslbench("inspect", "nan.pth")
    assert code == 1 and row(out, "format").startswith("torchvision") and "NaN" in row(out, "problem")


class Payload:
    def __reduce__(self):
        return os.system, ("touch ran",)


def test_names_in_a_pickle_that_weights_do_not_need_are_shown(folder, sslbench, resnet):
    pickled = pickle.dumps({"a": 1}, 2).removesuffix(b".") + b"X\x01\x00\x00\x00bcos\nsystem\ns."
    (folder / "odd.pkl").write_bytes(pickled)
    code, out, _ = sslbench("inspect", "odd.pkl")
    assert code == 1 and "os.system" in row(out, "suspicious")


@pytest.mark.parametrize("command", [["inspect", "evil.pth"], ["convert", "evil.pth", "x.pth", "--to", "moco"]])
def test_only_trust_pickle_runs_code_and_it_is_said_in_red(folder, sslbench, resnet, command):
    torch.save({"state_dict": resnet, "hook": Payload()}, "evil.pth")
    code, _, err = sslbench(*command)
    assert code == 1 and "nothing was run" in err and not (folder / "ran").exists()
    _, _, err = sslbench(*command, "--trust-pickle")
    assert (folder / "ran").exists() and "may run any program" in err
    assert "running the code that evil.pth refers to" in err


def test_eval_and_extract_have_the_flag_too(world, sslbench):
    torch.save({"state_dict": torch.load("w.pth", weights_only=True)["state_dict"], "hook": Payload()}, "evil.pth")
    own = ("--weights", "evil.pth", "--backbone", "tiny_net_of_the_tests:net", "--data", "photos")
    for command in (("eval", "knn", "k=3", "--no-floors"), ("extract",)):
        code, _, err = sslbench(*command, *own)
        assert code == 1 and "nothing was run" in err and not (world / "ran").exists()
        code, _, err = sslbench(*command, *own, "--trust-pickle")
        assert code == 0 and (world / "ran").exists() and "may run any program" in err
        (world / "ran").unlink()


def test_data_and_feature_stores_are_inspected_as_before(world, sslbench):
    code, out, _ = sslbench("inspect", "photos")
    assert code == 0 and "train: 36 images" in out
    code, out, _ = sslbench("inspect", "photos", "--json")
    assert code == 2
    own = ("--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--data", "photos", "--store", "store")
    _, out, _ = sslbench("extract", *own)
    folder = out.splitlines()[0].split("\t")[-1].rpartition("/")[0]
    code, out, _ = sslbench("inspect", folder)
    assert code == 0 and "features of" in out


def test_a_tar_of_images_is_data_and_a_tar_of_tensors_weights(folder, sslbench, resnet):
    containers.write_shards(folder, containers.pictures(), 2)
    packed = gzip.compress((folder / "s-0000.tar").read_bytes())
    (folder / "s.tar.gz").write_bytes(packed)
    (folder / "renamed.tar").write_bytes(packed)
    for what in ("s-0000.tar", "s-{0000..0001}.tar", "s.tar.gz", "renamed.tar"):
        code, out, _ = sslbench("inspect", what)
        assert code == 0 and "images, single label, 3 classes" in out
        assert out.splitlines()[-1] == f"data: sslbench check-data {shlex.quote(what)} checks it"
    torch.save({"state_dict": resnet}, "model.tar")
    assert row(sslbench("inspect", "model.tar")[1], "file").startswith("torch zip, ")
    with tarfile.open("old.pth.tar", "w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            containers.add_to_tar(archive, name, b"")
    code, out, err = sslbench("inspect", "old.pth.tar")
    assert code == 1 and "check-data" not in out + err


def test_layers_of_heads_and_a_classifier_are_listed(folder, sslbench, resnet):
    torch.save({**resnet, "fc.weight": torch.ones(3, resnet["layer4.1.conv2.weight"].shape[0])}, "c.pth")
    _, out, _ = sslbench("inspect", "c.pth")
    assert "head layers  head.0 linear" in out and "classifier   3 classes: 0, 1, 2" in out


def test_the_folder_of_a_run_shows_its_weights_or_its_newest_checkpoint(folder, sslbench, resnet):
    run = folder / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").write_text("method: simclr\n")
    code, _, err = sslbench("inspect", "run")
    assert code == 1 and "run is a pretraining run without weights and checkpoints yet" in err
    save.save(run / "checkpoints" / "step_000000004.ckpt", resnet, backbone="resnet18w0.125", metadata={})
    assert sslbench("inspect", "run")[1].startswith("run/checkpoints/step_000000004.ckpt")
    save.save(run / "weights.torch", resnet, backbone="resnet18w0.125", metadata={})
    assert sslbench("inspect", "run")[1].startswith("run/weights.torch")


def test_a_folder_of_save_pretrained_by_its_path_and_behind_hf(sslbench, folder):
    (folder / "vit").mkdir()
    state = build("timm:vit_tiny_patch16_224,depth=1,num_heads=4,img_size=32").module.state_dict()
    content = load_table("huggingface_vit").from_canonical(state, prefix="")
    safetensors.torch.save_file({key: tensor.contiguous() for key, tensor in content.items()}, "vit/model.safetensors")
    Path("vit/config.json").write_text('{"model_type": "vit", "num_attention_heads": 4, "hidden_size": 192}')
    for what in ("vit", "hf:./vit", "hf:vit"):
        code, out, err = sslbench("inspect", what)
        assert code == 0, err
        assert out.startswith(what) and "huggingface_vit" in out and "1 blocks, width 192, 4 heads" in out
    for number in ("9", "10"):
        shutil.copytree("vit", f"run/checkpoint-{number}")
    code, _, err = sslbench("inspect", "run")
    assert code == 1 and "Did you mean run/checkpoint-10, the last of 2?" in err
    code, _, err = sslbench("inspect", "hf:./none")
    assert code == 2 and "there is no folder none" in err


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_a_file_of_extract_is_no_weights_file(sslbench, folder, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow", reason="pip install 'sslbench[parquet]'")
    columns = {"id": ["a", "b", "c"], "path": ["", "", ""], "split": ["train", "train", "test"]}
    columns |= {"width": [8, 8, 8], "height": [8, 8, 8], "label": ["0", "1", "0"]}
    write = external_files._write_npz if suffix == ".npz" else external_files._write_parquet
    write(Path(f"f{suffix}"), columns, np.zeros((3, 5), np.float32))
    code, out, _ = sslbench("inspect", f"f{suffix}")
    assert code == 0 and "features of 3 images, 5 float" in out
    assert "train 2, test 1" in out and f"--features f{suffix} --labels f{suffix}" in out
