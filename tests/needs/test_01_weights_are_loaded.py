"""Weights that are not in the network are never scored: each way to get them wrong ends before the first image."""

import pytest
import timm
import torch

from sslbench.results.records import read_tree

NAME = "resnet50w0.125"  # all names of a ResNet-50, an eighth of its channels
SMALL = ("--data", "photos", "--resize", "32x32", "--crop", "none", "--no-floors", "k=3")


@pytest.fixture
def tensors(shared):
    return torch.load(shared("weights") / f"{NAME}.pth", weights_only=True)


@pytest.fixture
def evaluate(world, sslbench):
    def run(path, *more):
        return sslbench("eval", "knn", "--weights", path, *SMALL, *more)

    return run


def with_head(tensors):
    return {**tensors, "fc.weight": torch.rand(3, 256), "fc.bias": torch.rand(3)}


def prefixed(prefix, tensors):
    return {prefix + name: tensor for name, tensor in tensors.items()}


def refused(world, outcome):
    code, out, err = outcome
    assert code == 1 and out == "" and "Traceback" not in err
    assert " images in " not in err, "an image was decoded"
    assert not [path for path in (world / "results").rglob("*") if path.is_file()], "a result was written"
    return err


def test_a_data_parallel_is_taken_off(world, evaluate, tensors):
    torch.save({"state_dict": prefixed("module.", with_head(tensors))}, "a.pth")
    code, _, err = evaluate("a.pth")
    assert code == 0, err
    assert "loaded 318 of 318 backbone tensors (100.0 % of parameters)" in err and "ignored: fc.*" in err


def test_b_moco_with_its_queue(world, evaluate, tensors):
    both = prefixed("module.encoder_q.", with_head(tensors)) | prefixed("module.encoder_k.", with_head(tensors))
    torch.save({"state_dict": both | {"module.queue": torch.ones(2, 3), "module.queue_ptr": torch.zeros(1)}}, "b.pth")
    code, _, err = evaluate("b.pth")
    assert code == 0, err
    assert "loaded 318 of 318 backbone tensors (100.0 % of parameters), format moco" in err
    ignored = err.partition("ignored: ")[2].partition("\n")[0]
    assert "fc.*" in ignored and "queue" in ignored


@pytest.mark.parametrize("backbone", [(), ("--backbone", NAME)])
def test_c_junk_names(world, evaluate, tensors, backbone):
    torch.save({f"junk{i}.x": tensor for i, tensor in enumerate(tensors.values())}, "c.pth")
    err = refused(world, evaluate("c.pth", *backbone))
    assert "no known format" in err and "'junk0.x', 'junk1.x'" in err and "--format" in err


def test_d_a_mistyped_path(world, evaluate, tensors):
    torch.save(tensors, "resnet.pth")
    err = refused(world, evaluate("resent.pth"))
    assert "there is no weights file resent.pth" in err and "Did you mean 'resnet.pth'?" in err


def test_e_a_tenth_of_the_tensors_is_missing(world, evaluate, tensors):
    kept = {name: tensor for i, (name, tensor) in enumerate(tensors.items()) if i % 10}
    torch.save(kept, "e.pth")
    err = refused(world, evaluate("e.pth"))
    assert "tensors missing: 'conv1.weight'" in err and "--allow-partial" in err
    code, _, err = evaluate("e.pth", "--allow-partial")
    assert code == 0 and "PARTIAL: " in err
    [record] = read_tree(world / "results")
    assert record.weights.loaded < record.weights.total, "the record says so too"


def test_f_layer_scale_that_the_backbone_does_not_have(world, evaluate):
    torch.save(timm.create_model("vit_small_patch14_dinov2", num_classes=0, depth=2).state_dict(), "f.pth")
    err = refused(world, evaluate("f.pth", "--backbone", "timm:vit_small_patch14_dinov2,depth=2,init_values=0"))
    assert "4 unexpected: 'blocks.0.ls1.gamma'" in err and "LayerScale" in err


def test_g_one_wrong_shape(world, evaluate, tensors):
    torch.save(tensors | {"layer2.0.conv2.weight": torch.rand(16, 16, 1, 1)}, "g.pth")
    err = refused(world, evaluate("g.pth"))
    assert (
        "1 of another shape: 'layer2.0.conv2.weight' (16, 16, 1, 1) in the file, (16, 16, 3, 3) in the backbone" in err
    )
