"""A detector is trained on a backbone by torchvision alone: with a certificate, and frozen where memory is small.

Two iterations on the bundled shapes; what a full training gives stands in docs/detection.md.
"""

from pathlib import Path

import pytest
import torch

from sslbench.backbones.build import build
from sslbench.results.records import read_tree

DATA = "kwcoco:shapes24-64"
SMALL = {
    "fpn": ("resnet50w0.125", ("--benchmark", "detection/toy", "--data", DATA, "pyramid_channels=8", "box_channels=8")),
    "c4": (
        "resnet50w0.125",
        (
            "--benchmark",
            "detection/coco_c4_1x",
            "--data",
            DATA,
            "--test-data",
            "kwcoco:shapes8-48",
            "anchor_sizes=[[16,32]]",
            "masks=false",
        ),
    ),
    "vit_fpn": (
        "timm:vit_tiny_patch16_224,depth=2,embed_dim=48,num_heads=3,img_size=64",
        (
            *("--benchmark", "detection/toy", "--data", DATA, "architecture=vit_fpn", "pyramid_norm=layer"),
            *("head_norm=layer", "pyramid_channels=8", "box_channels=8"),
        ),
    ),
}
QUICK = (
    *("--limit-iters", "2", "min_sizes_train=[64]", "min_size_test=64", "max_size_train=64", "max_size_test=64"),
    *("precise_bn=1", "batch_size=2", "rpn_samples=32", "roi_samples=16", "rpn_post_nms_train=20"),
    *("rpn_post_nms_test=10", "--device", "cpu", "--workers", "0"),
)


@pytest.mark.parametrize(("case", "frozen"), [("fpn", ()), ("c4", ("freeze_at=5",)), ("vit_fpn", ("freeze_at=5",))])
def test_a_detector_is_trained_on_all_tensors_of_the_backbone(case, frozen, tmp_path, monkeypatch, sslbench):
    monkeypatch.chdir(tmp_path)
    name, settings = SMALL[case]
    torch.save(build(name).module.state_dict(), "w.pth")
    code, out, err = sslbench("eval", "detection", "--weights", "w.pth", "--backbone", name, *QUICK, *settings, *frozen)
    assert code == 0, err
    assert "backbone tensors (100.0 % of parameters)" in err and "AP" in out
    [record] = read_tree(Path("results"))
    assert record.weights.loaded == record.weights.total and {"AP", "AP50", "AP75"} <= set(record.metrics)


def test_weights_that_do_not_fit_are_refused_before_training(tmp_path, monkeypatch, sslbench):
    monkeypatch.chdir(tmp_path)
    name, settings = SMALL["fpn"]
    tensors = build(name).module.state_dict()
    torch.save({f"backbone.bottom_up.{key}x": tensor for key, tensor in tensors.items()}, "by_hand.pkl")
    code, out, err = sslbench("eval", "detection", "--weights", "by_hand.pkl", "--backbone", name, *QUICK, *settings)
    assert (code, out) == (1, "") and "iteration" not in err and "no known format" in err, err
    assert not list(Path().rglob("results/**/*.json"))
