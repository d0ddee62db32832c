"""Every method on the same images for the same time, against the untrained network: a table of kNN accuracies.

`python tests/pretraining/method_table.py torchvision:FashionMNIST@FOLDER --out FOLDER` trains each method on the same
10,000 images and prints a line per method: top-1 of kNN (k = 20, cosine votes, T = 0.07) on the whole test part with
its 95 % interval, and the paired difference from the same network untrained. Not part of the suite: half an hour.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

import sslbench
from sslbench import evaluation
from sslbench.config import build
from sslbench.pretraining import PretrainRequest, PretrainSettings, pretrain

RESNET = "resnet18w0.5"
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=4,depth=6,embed_dim=96,num_heads=3"
CROP = {
    "size": 32,
    "scale": [0.3, 1.0],
    "flip": 0.5,
    "jitter": {"p": 0.8, "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
    "blur": {"p": 0.3, "sigma": [0.1, 1.0]},
}
PAIR = {"views": [{"count": 2, **CROP}]}
CROPS = {"views": [{"count": 2, **CROP}, {"count": 2, **CROP, "size": 16, "scale": [0.1, 0.3]}]}
SINGLE = {"views": [{"count": 1, "size": 32, "scale": [0.3, 1.0], "flip": 0.5}]}
SGD = {"name": "sgd", "lr": 0.06, "weight_decay": 5e-4}
ADAM = {"name": "adamw", "lr": 5e-4, "weight_decay": 0.05, "decay_norm": False, "decay_bias": False}

# method -> settings, views, backbone, optimizer; widths and momenta for small images and few updates.
METHODS = {
    "supervised": ({}, SINGLE, RESNET, SGD),
    "simclr": ({"temperature": 0.2, "projector": [512, 128]}, PAIR, RESNET, SGD),
    "moco": ({"temperature": 0.1, "queue": 4096, "momentum": 0.99, "projector": [512, 128]}, PAIR, RESNET, SGD),
    "moco_v3": ({"temperature": 0.2, "projector": [512, 128], "predictor": [512]}, PAIR, RESNET, SGD),
    "swav": ({"prototypes": [100], "projector": [512, 128]}, CROPS, RESNET, SGD),
    "byol": ({"projector": [512, 128], "predictor": [512], "momentum": 0.98}, PAIR, RESNET, SGD),
    "simsiam": ({"projector": [512, 512, 512], "predictor": [128]}, PAIR, RESNET, SGD),
    "barlow_twins": ({"projector": [512, 512, 512]}, PAIR, RESNET, {**SGD, "lr": 0.03}),
    "vicreg": ({"projector": [512, 512, 512]}, PAIR, RESNET, {**SGD, "lr": 0.03}),
    "dino": ({"prototypes": 1024, "hidden": [512, 512], "bottleneck": 128, "momentum": 0.98}, CROPS, VIT, ADAM),
    "mae": ({"decoder_dim": 96, "decoder_depth": 2, "decoder_heads": 3}, SINGLE, VIT, {**ADAM, "lr": 1e-3}),
    "rotnet": ({}, SINGLE, RESNET, SGD),
}


def train(method, data, out, limit, epochs):
    """Trains one method; the path of its weights."""
    own, augment, backbone, optimizer = METHODS[method]
    if method == "dino":
        backbone += ",dynamic_img_size=True"
    values = {
        "method": {"name": method, **own},
        "augment": augment,
        "optimizer": optimizer,
        "schedule": {"lr": {"name": "cosine", "start": 1.0, "end": 0.0}, "warmup_epochs": 1},
        "backbone": backbone,
        "batch_size": 256,
        "epochs": epochs,
        "clip_norm": 3.0,
        "log_every": 39,
        "keep": 1,
    }
    settings = build(PretrainSettings, values, method)
    request = PretrainRequest(settings, data=data, out=out, limit=limit)
    return backbone, pretrain(request, command="method table").weights


def correct(weights, backbone, data, out, limit):
    """(N,) booleans, which test images kNN gets right, and the result."""
    size = {"resize": (32, 32), "crop": None}
    results = sslbench.evaluate(
        weights,
        data,
        protocols=["knn"],
        settings={"knn": {"k": (20,), "temperature": 0.07}},
        out=out,
        run=evaluation.RunSettings(floors=False),
        backbone=backbone if weights == "random" else None,
        limit=limit,
        preprocessing=size if weights == "random" else {},
    )
    scores = np.load(next(out.rglob("*.scores.npz")))
    return scores["scores"].argmax(axis=1) == scores["labels"], results[0]


def paired(a, b, rng):
    """Mean difference of two boolean vectors and its 95 % bootstrap interval, in points."""
    difference = a.astype(float) - b.astype(float)
    means = [difference[rng.integers(0, len(a), len(a))].mean() for _ in range(1000)]
    return 100 * difference.mean(), *(100 * np.percentile(means, [2.5, 97.5]))


def main():
    """The table, a line as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--limit", type=int, default=10000)
    parser.add_argument("--epochs", type=float, default=10)
    arguments = parser.parse_args()
    floors = {}
    for method in arguments.methods:
        out = arguments.out / method
        began = time.monotonic()
        backbone, weights = train(method, arguments.data, out / "run", arguments.limit, arguments.epochs)
        seconds = time.monotonic() - began
        if backbone not in floors:
            name = f"floor{len(floors)}"
            floors[backbone] = correct("random", backbone, arguments.data, arguments.out / name, arguments.limit)
        right, result = correct(weights, backbone, arguments.data, out / "results", arguments.limit)
        floor, floor_result = floors[backbone]
        top1, base = result.metrics["top1"], floor_result.metrics["top1"]
        gain, low, high = paired(right, floor, np.random.default_rng(0))
        print(
            f"{method:13s} {seconds:5.0f} s  top-1 {top1.value:.2f} [{top1.low:.2f}, {top1.high:.2f}]  untrained "
            f"{base.value:.2f}  difference {gain:+.2f} [{low:+.2f}, {high:+.2f}]",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
