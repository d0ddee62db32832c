"""Commands on weights: convert, diff, cka, stems, predict."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sslbench.backbones.build import build
from sslbench.metrics.spectrum import cka_matrix
from sslbench.preprocessing import Preprocessing
from sslbench.solvers.alignment import procrustes
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


@pytest.fixture
def two_networks(tmp_path, monkeypatch, shared):
    """a.pth and b.pth: the same small ResNet-18 but for two tensors; moco.pth: a.pth under other names."""
    monkeypatch.chdir(tmp_path)
    tensors = torch.load(shared("weights") / "resnet18w0.125.pth", weights_only=True)
    torch.save(tensors, "a.pth")
    torch.save({"state_dict": {f"module.encoder_q.{name}": t for name, t in tensors.items()}}, "moco.pth")
    changed = {"bn1.bias": tensors["bn1.bias"] + 0.5, "layer1.0.bn1.weight": tensors["layer1.0.bn1.weight"] * 2}
    torch.save({**tensors, **changed}, "b.pth")
    return tmp_path


def test_equal_files_of_different_formats(two_networks, sslbench):
    code, out, _ = sslbench("diff", "a.pth", "moco.pth")
    assert code == 0 and "A: a.pth (torchvision)" in out and "B: moco.pth (moco)" in out
    assert "equal: 100 tensors" in out and out.endswith("the backbones are equal\n")


def test_what_differs_is_named_and_measured(two_networks, sslbench):
    code, out, _ = sslbench("diff", "moco.pth", "b.pth")
    assert code == 1 and "different: 2 tensors" in out and "equal: 98 tensors" in out
    assert "layer1.0.bn1.weight  1  1" in out and "bn1.bias  0.5  inf" in out
    assert out.endswith("the backbones differ\n")


def test_another_architecture(two_networks, sslbench, shared):
    code, out, _ = sslbench("diff", "a.pth", shared("weights") / "resnet18w0.25.pth")
    assert code == 1 and "of another shape: 100 tensors" in out and "conv1.weight  8x3x7x7 / 16x3x7x7" in out
    assert len(out.splitlines()) < 20 and "--json lists all" in out


def test_json_has_everything(two_networks, sslbench):
    code, out, _ = sslbench("diff", "a.pth", "b.pth", "--json")
    found = json.loads(out)
    assert code == 1 and found["same"] is False and len(found["equal"]) == 98
    assert [change["name"] for change in found["changed"]] == ["bn1.bias", "layer1.0.bn1.weight"]


def test_files_of_no_known_format_are_compared_as_they_are_on_request(two_networks, sslbench):
    for name, value in (("x", 1.0), ("y", 1.5)):
        torch.save({"net": {"odd.w": torch.tensor([value])}, "odd": torch.ones(2)}, f"{name}.pth")
    code, out, err = sslbench("diff", "x.pth", "y.pth")
    assert code == 1 and out == "" and "no known format" in err and "--raw compares" in err
    code, out, _ = sslbench("diff", "x.pth", "y.pth", "--raw")
    assert code == 1 and "net.odd.w  0.5  0.5" in out and "equal: 1 tensors" in out
    assert sslbench("diff", "x.pth", "x.pth", "--raw")[0] == 0


def test_raw_excludes_formats(two_networks, sslbench):
    code, _, err = sslbench("diff", "a.pth", "b.pth", "--raw", "--format-a", "moco")
    assert code == 2 and "--raw does not go with --format-a" in err


NET = "tiny_net_of_the_tests:net"


def matrix(path):
    with Path(path).open() as file:
        head, *rows = csv.reader(file)
    return head[1:], [row[0] for row in rows], np.array([[float(value) for value in row[1:]] for row in rows])


def test_layers_of_two_networks_on_the_same_images(world, sslbench):
    code, out, err = sslbench(
        *("cka", "w.pth", "random", "--backbone", NET, "--data", "photos", "--layers", "conv1,conv2"),
        *("--csv", "cka.csv", "--png", "cka.png"),
    )
    assert code == 0, err
    assert "15 images" in err, "the test part"
    columns, rows, values = matrix("cka.csv")
    assert columns == rows == ["conv1", "conv2"] and np.all((values > 0) & (values <= 1))
    assert f"{values[1, 0]:.3f}" in out
    assert Image.open("cka.png").size[0] > 200
    again = ("cka", "w.pth", "w.pth", "--backbone", NET, "--data", "photos", "--layers", "conv1,conv2")
    code, _, err = sslbench(*again, "--csv", "same.csv")
    assert code == 0 and "features were stored" in err
    np.testing.assert_allclose(np.diag(matrix("same.csv")[2]), 1)


def test_by_default_all_named_layers_of_each_side(world, sslbench):
    code, _, err = sslbench(
        *("cka", "random", "pixels", "--backbone", "resnet18w0.25", "--data", "photos", "--limit", "6"),
        *("--backbone-b", "pixels", "--csv", "cka.csv", "--resize", "32x32", "--crop", "none"),
    )
    assert code == 0, err
    columns, rows, _ = matrix("cka.csv")
    assert columns == ["pixels"]
    assert rows == ["conv1", "res1", "res2", "res3", "res4", "res5", "res5avg"]


@pytest.mark.parametrize("debiased", [False, True])
def test_features_made_elsewhere_and_folders_of_the_store(world, sslbench, debiased):
    generator = np.random.default_rng(0)
    x, y = (generator.normal(size=(30, width)).astype(np.float32) for width in (4, 7))
    np.save("x.npy", x)
    np.save("y.npy", y)
    flags = ["--debiased"] if debiased else []
    code, _, err = sslbench("cka", "x.npy", "y.npy", "--csv", "cka.csv", *flags)
    assert code == 0, err
    assert matrix("cka.csv")[2][0, 0] == pytest.approx(cka_matrix([x], [y], debiased=debiased)[0, 0], abs=1e-12)
    code, _, err = sslbench("cka", "x.npy", "y.npy", "--csv", "p.csv", "--measure", "procrustes", *flags)
    assert code == (2 if debiased else 0), err
    assert (
        "--debiased applies to CKA" in err if debiased else matrix("p.csv")[2][0, 0] == pytest.approx(procrustes(x, y))
    )
    code, out, err = sslbench(
        "extract", "--weights", "w.pth", "--backbone", NET, "--data", "photos", "--layers", "conv1,conv2"
    )
    train = next(line.split("\t")[-1] for line in out.splitlines() if line.startswith("train"))
    test = next(line.split("\t")[-1] for line in out.splitlines() if line.startswith("test"))
    folder = Path(train).parent
    code, _, err = sslbench("cka", folder, folder, "--layers", "conv2", "--layers-b", "conv1,conv2", "--csv", "s.csv")
    assert code == 0, err
    columns, rows, values = matrix("s.csv")
    assert (columns, rows) == (["conv1", "conv2"], ["conv2"]) and values[0, 1] == pytest.approx(1)
    code, _, err = sslbench("cka", folder, Path(test).parent)
    assert code == 1 and "the samples differ" in err
    (world / "photos" / "train" / "blue" / "0.png").rename(world / "photos" / "train" / "blue" / "zero.png")
    _, out, _ = sslbench("extract", "--weights", "w.pth", "--backbone", NET, "--data", "photos")
    renamed = Path(next(line.split("\t")[-1] for line in out.splitlines() if line.startswith("train"))).parent
    code, _, err = sslbench("cka", folder, renamed, "--layers", "conv2", "--layers-b", "output")
    assert code == 1 and "the samples differ" in err, "as many, with other ids"
    shutil.copy(world / "photos" / "train" / "blue" / "1.png", world / "photos" / "train" / "blue" / "zero.png")
    _, out, _ = sslbench("extract", "--weights", "w.pth", "--backbone", NET, "--data", "photos")
    other = Path(next(line.split("\t")[-1] for line in out.splitlines() if line.startswith("train"))).parent
    code, _, err = sslbench("cka", other, renamed)
    assert code == 1 and "different images with the same names" in err
    code, _, err = sslbench("cka", folder, folder, "--layers", "conv3")
    assert code == 2 and "no layer 'conv3'" in err and "conv" in err


def test_mistakes_are_said_plainly(world, sslbench):
    np.save("x.npy", np.eye(5, dtype=np.float32))
    code, _, err = sslbench("cka", "x.npy", "w.pth")
    assert code == 2 and "both be weights or both be features" in err
    np.save("nan.npy", np.full((5, 2), np.nan, np.float32))
    code, _, err = sslbench("cka", "x.npy", "nan.npy")
    assert code == 1 and "not all finite" in err
    code, _, err = sslbench("cka", "x.npy", "missing.npy")
    assert code == 2 and "missing.npy" in err
    assert "Traceback" not in err


SMALL = "resnet18w0.125_cifar"


@pytest.fixture
def weights(world):
    """rgb.pth: a small ResNet for three channels."""
    torch.save(build(SMALL, seed=1).module.state_dict(), "rgb.pth")
    return world


def features(sslbench, *arguments):
    import numpy as np

    sizes = ("--resize", "32", "--crop", "32", "--workers", "0", "--precision", "fp32")
    code, out, err = sslbench("extract", *arguments, "--data", "photos", *sizes)
    assert code == 0, err
    return np.concatenate([np.load(line.split("\t")[-1]) for line in out.splitlines()])


def test_a_grey_backbone_is_evaluated_on_pictures_and_the_record_says_what_was_done_to_its_stem(weights, sslbench):
    run = ("eval", "knn", "k=[1]", "--data", "photos", "--workers", "0", "--no-floors", "--weights", "rgb.pth")
    code, _, err = sslbench(*run, "--stem", "sum")
    assert code == 0, err
    [path] = weights.glob("results/knn/*.json")
    record = json.loads(path.read_text())
    assert record["weights"]["backbone"] == f"{SMALL},in_chans=1"
    assert record["weights"]["changed"] == ["stem conv1.weight from 3 to 1 channels: sum"]
    assert len(record["preprocessing"]["mean"]) == 1 and "averaged for 1 channel" in record["preprocessing"]["origin"]
    assert "from 3 to 1 channels: sum" in err


def test_a_converted_stem_gives_the_features_of_one_that_is_mapped_on_loading(weights, sslbench):
    code, out, err = sslbench("convert", "rgb.pth", "grey.torch", "--to", "sslbench", "--stem", "sum")
    assert code == 0, err
    assert "changed  stem conv1.weight from 3 to 1 channels: sum" in out and "as written" in out
    code, out, _ = sslbench(
        "convert", "rgb.pth", "grey.pth", "--to", "torchvision", "--stem", "average", "--in-chans", 1
    )
    assert code == 0 and torch.load("grey.pth", weights_only=True)["conv1.weight"].shape == (8, 1, 3, 3)
    mapped = features(sslbench, "--weights", "rgb.pth", "--stem", "sum")
    assert (features(sslbench, "--weights", "grey.torch") == mapped).all()
    code, out, _ = sslbench("inspect", "grey.torch")
    assert code == 0 and "CIFAR's stem, 1 input channel" in out and "1 channel, 0 to 1, then mean (0.449)" in out


MISSING = [
    (["eval", "knn", "--weights", "rgb.pth", "--backbone", f"{SMALL},in_chans=13"], "takes 13 channels"),
    (
        ["eval", "knn", "--weights", "rgb.pth", "--backbone", f"{SMALL},in_chans=13", "--stem", "repeat"],
        "has 3 channels",
    ),
    (["extract", "--weights", "random", "--backbone", f"{SMALL},in_chans=4"], "has 3 channels"),
    (["convert", "rgb.pth", "x.pth", "--to", "timm", "--in-chans", "4"], "--in-chans needs --stem"),
    (["convert", "rgb.pth", "x.pth", "--to", "timm", "--stem", "repeat"], "For example --in-chans 4"),
    (["convert", "rgb.pth", "x.pth", "--to", "timm", "--stem", "random"], "adds no new values"),
]


def test_what_is_missing_is_said_before_a_picture_is_decoded(weights, sslbench):
    for arguments, message in MISSING:
        data = ["--data", "photos", "--workers", "0"] if arguments[0] != "convert" else []
        code, _, err = sslbench(*arguments, *data)
        assert code in (1, 2) and message in err, err
        assert not (weights / "x.pth").exists()


@pytest.fixture
def network_and_classifier(tmp_path, monkeypatch, shared):
    """The current folder, with a small ResNet-18 and its classifier of three classes."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    state = torch.load(shared("weights") / "resnet18w0.25.pth", weights_only=True)
    torch.save({**state, "fc.weight": torch.rand(3, 128), "fc.bias": torch.rand(3)}, "r18.pth")
    (tmp_path / "empty.txt").write_text("a\n\nb\n")
    return tmp_path


BASE = ["predict", "--weights", "r18.pth", "--data", "sklearn:digits", "--csv", "out.csv", "--workers", "0"]
REFUSED = [
    (["--layers", "res4"], "--layers does not go with predict"),
    (["--on-error", "skip"], "--on-error does not go with predict"),
    (["--top-k", "9"], "--top-k 9: the classifier has 3 classes"),
    (["--threshold", "0.3"], "--threshold: this classifier predicts one class per image"),
    (["--classes", "missing.txt"], "cannot read the class names in missing.txt"),
    (["--classes", "empty.txt"], "empty.txt: line 2 is empty"),
    (["--weights", "random", "--backbone", "resnet18"], "'random' has no classifier"),
    (["--weights", "net.pt2"], "net.pt2 is a network for other programs"),
    (["--csv", "missing/out.csv"], "cannot write missing/out.csv"),
]


def test_options_without_effect_are_refused(network_and_classifier, sslbench):
    for words, problem in REFUSED:
        (network_and_classifier / "net.pt2").write_bytes(b"x")
        code, _, err = sslbench(*BASE, *words)
        assert code in (1, 2) and problem in err and not (network_and_classifier / "out.csv").exists()


def test_the_command_writes_the_file_and_names_it(network_and_classifier, sslbench):
    code, out, err = sslbench(*BASE, "--limit", "5", "--top-k", "3")
    assert code == 0 and out.strip() == str(network_and_classifier / "out.csv") and "5 images" in err
    lines = (network_and_classifier / "out.csv").read_text().splitlines()
    assert len(lines) == 6 and lines[0].startswith("split,id,class_1,probability_1,class_2")
