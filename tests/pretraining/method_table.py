"""Every method on the same images for the same epochs, against its untrained network: a table of kNN accuracies.

`python tests/pretraining/method_table.py torchvision:FashionMNIST@FOLDER --out FOLDER` trains each method on the same
images and appends a row per method to FOLDER/methods.csv: top-1 of kNN (k = 20, cosine votes, T = 0.07) or of another
protocol with its 95 % interval, the paired difference from the same network untrained, training images per second, and
peak memory of the process that trains. Every method has a process of its own; methods that stand in the table are left
out. Not part of the suite: hours.

With `--peer lightly` each method that lightly has too is trained in turn from its parts and from ours, with the same
views, backbone, optimizer, batches and seeds. FOLDER/peers.csv gets both accuracies of kNN, their difference with its
interval over test images and seeds, the processor time of an update of both in milliseconds, updated in turn in one
process with one thread, and theirs divided by ours.
"""

import argparse
import csv
import importlib.util
import multiprocessing
import resource
import sys
import time
from pathlib import Path

import numpy as np
import torch

import sslbench
from sslbench import evaluation
from sslbench.backbones.build import build as build_backbone
from sslbench.backbones.sizes import feature_dim
from sslbench.config import build
from sslbench.preprocessing import LIGHTNESS
from sslbench.pretraining import PretrainRequest, PretrainSettings, pretrain
from sslbench.pretraining.networks import make_method
from sslbench.train.method import Batch, Setup, Step

RESNET = "resnet18w0.25"
PLACES = "resnet_basic_1-1-1-1w0.25_cifar"  # for methods on places: maps of 4 x 4, where RESNET has one place
VIT = "timm:vit_tiny_patch16_224,img_size=28,patch_size=4,depth=4,embed_dim=96,num_heads=3"
MEAN = f"{VIT},class_token=False,global_pool=avg,fc_norm=False"
CROP = {
    "size": 28,
    "scale": [0.4, 1.0],
    "flip": 0.5,
    "jitter": {"p": 0.8, "brightness": 0.4, "contrast": 0.4, "saturation": 0.0, "hue": 0.0},
}
PAIR = {"views": [{"count": 2, **CROP}]}
CROPS = {"views": [{"count": 2, **CROP}, {"count": 2, **CROP, "size": 16, "scale": [0.15, 0.4]}]}
SINGLE = {"views": [{"count": 1, "size": 28, "scale": [0.4, 1.0], "flip": 0.5}]}
CHANGED = {"views": [{"count": 1, **CROP}]}
PIECES = {**CROP, "size": 8, "scale": [0.6, 1.0], "grid": {"side": 3, "gap": 2, "augment": "views"}}
COLOURED = {"views": [{"count": 1, "size": 32, "scale": [0.4, 1.0], "flip": 0.5}]}
FOUR = {"views": [{"count": 4, **CROP}]}
SMALL = {"views": [{"count": 8, **CROP, "size": 16, "scale": [0.25, 0.25]}]}
WEAK = {"views": [CROP, {"size": 28, "scale": [0.4, 1.0], "flip": 0.5}]}

# method or recipe -> settings, views, backbone; widths and momenta for small images and few updates. "name" is the
# method of a recipe that is called otherwise.
METHODS = {
    "simclr": ({"temperature": 0.2, "projector": [256, 128]}, PAIR, RESNET),
    "moco": ({"temperature": 0.2, "queue": 4096, "momentum": 0.99, "projector": [256, 128]}, PAIR, RESNET),
    "moco_v3": ({"temperature": 0.2, "momentum": 0.98, "projector": [256, 128], "predictor": [256]}, PAIR, RESNET),
    "swav": ({"prototypes": [100], "projector": [256, 128]}, CROPS, RESNET),
    "byol": ({"projector": [256, 128], "predictor": [256], "momentum": 0.98}, PAIR, RESNET),
    "simsiam": ({"projector": [256, 256, 256], "predictor": [64]}, PAIR, RESNET),
    "barlow_twins": ({"projector": [256, 256, 256], "scale": 1.0}, PAIR, RESNET),
    "vicreg": ({"projector": [256, 256, 256]}, PAIR, RESNET),
    "dino": ({"prototypes": 1024, "hidden": [256, 256], "bottleneck": 64, "momentum": 0.98}, CROPS, RESNET),
    "mae": ({"decoder_dim": 96, "decoder_depth": 2, "decoder_heads": 3}, SINGLE, VIT),
    "simmim": ({"unit": 1}, SINGLE, MEAN),  # its class token is not trained; the authors average too
    "maskfeat": ({"cell": 4, "smallest_block": 4}, SINGLE, MEAN),  # as simmim
    "beitv2": ({"tokenizer": "random", "smallest_block": 4, "early_blocks": 2}, SINGLE, VIT),
    "aim": ({"head_dim": 96, "head_depth": 2}, SINGLE, MEAN),
    "ijepa": ({"predictor_dim": 96, "predictor_depth": 2, "predictor_heads": 3, "momentum": 0.98}, SINGLE, MEAN),
    "data2vec2": (
        {"masks": 4, "target_layers": 3, "decoder_dim": 96, "decoder_layers": 2, "momentum": 0.98},
        SINGLE,
        VIT,
    ),
    "ibot": ({"prototypes": 1024, "hidden": [256, 256], "bottleneck": 64, "momentum": 0.98}, CROPS, VIT),
    "dinov2": (
        {
            "prototypes": 1024,
            "hidden": [256, 256],
            "bottleneck": 64,
            "patch_prototypes": 1024,
            "patch_bottleneck": 64,
            "drop_path": 0.1,
            "momentum": 0.98,
        },
        CROPS,
        VIT,
    ),
    "capi": (
        {
            "prototypes": 512,
            "predictor_depth": 2,
            "predictor_heads": 3,
            "predicted": 0.3,
            "drop_path": 0.0,
            "momentum": 0.98,
        },
        SINGLE,
        MEAN,
    ),
    "franca": (
        {
            "name": "dinov2",
            "prototypes": 1024,
            "hidden": [256, 256],
            "bottleneck": 64,
            "patch_prototypes": 1024,
            "patch_bottleneck": 64,
            "nested": [0.25, 0.5, 1.0],
            "mask_shape": "inverse_block",
            "mask_ratio": [0.1, 0.65],
            "drop_path": 0.1,
            "momentum": 0.98,
        },
        CROPS,
        VIT,
    ),
    "msn": ({"prototypes": 256, "projector": [256, 256, 128], "momentum": 0.98}, CROPS, VIT),
    "lejepa": ({"projector": [256, 256, 64]}, CROPS, VIT),
    "densecl": ({"queue": 4096, "momentum": 0.99, "projector": [256, 128]}, PAIR, PLACES),
    "vicregl": ({"projector": [256, 256, 256], "place_projector": [128, 128, 128]}, PAIR, PLACES),
    "rotnet": ({}, SINGLE, RESNET),
    "supervised": ({}, SINGLE, RESNET),
    "distillation": ({"teacher": "supervised"}, SINGLE, RESNET),
    "npid": ({"negatives": 512, "contrast": "info_nce", "projector": [128]}, CHANGED, RESNET),
    "pirl": (
        {"negatives": 512, "contrast": "info_nce", "projector": [128]},
        {"views": [*CHANGED["views"], PIECES]},
        RESNET,
    ),
    "jigsaw": ({"permutations": 100, "hidden": 128}, {"views": [PIECES]}, RESNET),
    "deepclusterv2": ({"clusters": [100, 100, 100], "projector": [256, 128]}, CROPS, RESNET),
    "nnclr": ({"temperature": 0.2, "queue": 1024, "projector": [256, 256, 128], "predictor": [256]}, PAIR, RESNET),
    "supcon": ({"projector": [256, 128]}, PAIR, RESNET),
    "dcl": ({"temperature": 0.2, "projector": [256, 128]}, PAIR, RESNET),
    "tico": ({"projector": [256, 128], "momentum": 0.98}, PAIR, RESNET),
    "ressl": ({"queue": 1024, "projector": [256, 128], "momentum": 0.98}, WEAK, RESNET),
    "wmse": ({"projector": [256, 16], "slice": 32}, PAIR, RESNET),
    "fastsiam": ({"name": "simsiam", "projector": [256, 256, 256], "predictor": [64]}, FOUR, RESNET),
    "nnbyol": (
        {"name": "byol", "projector": [256, 128], "predictor": [256], "momentum": 0.98, "queue": 1024},
        PAIR,
        RESNET,
    ),
    "directclr": ({"dimensions": 32, "temperature": 0.2}, PAIR, RESNET),
    "mmcr": ({"projector": [256, 128], "momentum": 0.98}, PAIR, RESNET),
    "emp_ssl": ({"projector": [256, 256, 128]}, SMALL, RESNET),
    "smog": (
        {"groups": 100, "queue": 4096, "projector": [256, 128], "predictor": [256], "momentum": 0.98},
        PAIR,
        RESNET,
    ),
    "pmsn": (
        {"name": "msn", "prototypes": 256, "projector": [256, 256, 128], "momentum": 0.98, "power_law": 0.25},
        CROPS,
        VIT,
    ),
    "clusterfit": ({}, SINGLE, RESNET),
    "colorization": ({"neighbours": 10, "stride": 8}, COLOURED, f"{PLACES},in_chans=1"),
}
NAMED_ONLY = {"clusterfit": "--train-data, a table of clusters", "colorization": "data with colours"}
"""Methods that are trained only if they are named, and the data they need."""


PEERS = {"lightly": "simclr moco byol simsiam barlow_twins vicreg swav nnclr dcl tico".split()}
"""Other libraries, with the methods in peers/NAME.py."""
PEER_COLUMNS = (
    "method backbone images epochs batch_size seeds ours theirs difference low high our_update their_update speed"
).split()
COLUMNS = (
    "method backbone epochs batch_size protocol images_per_second peak_mib "
    "top1 low high untrained gain gain_low gain_high"
).split()


def train(method, data, out, limit, epochs, batch_size, *, peer=None, seed=0):
    """Trains one method; its weights, training images per second and the peak memory of this process in MiB.

    With `peer`, the method is that of another library.
    """
    own, augment, backbone = METHODS[method]
    method = "supervised" if method == "clusterfit" else method
    if "teacher" in own:  # another method of the table, trained before
        own = {**own, "teacher": str(out.parent.parent / own["teacher"] / "run" / "weights.torch")}
    values = {
        "method": named(method, own, peer),
        "seed": seed,
        "augment": augment,
        "optimizer": {"name": "adamw", "lr": 1e-3 if backbone.startswith("timm:") else 2e-3, "lr_scaling": "none"},
        "schedule": {"lr": {"name": "cosine", "start": 1.0, "end": 0.0}, "warmup_epochs": 1},
        "backbone": backbone,
        "batch_size": batch_size,
        "epochs": epochs,
        "clip_norm": 3.0,
        "log_every": 10,
        "keep": 1,
        "workers": 0,
    }
    settings = build(PretrainSettings, values, method)
    began = time.monotonic()
    outcome = pretrain(PretrainRequest(settings, data=data, out=out, limit=limit), command="method table")
    seconds = time.monotonic() - began
    return (
        outcome.weights,
        outcome.steps * batch_size / seconds,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def correct(protocol, weights, method, data, out, limit):
    """(N,) booleans, which test images a protocol gets right, and the result."""
    _, augment, backbone = METHODS[method]
    side = augment["views"][0]["size"] if method == "colorization" else 28
    space = {key: getattr(LIGHTNESS, key) for key in ("space", "mean", "std")} if method == "colorization" else {}
    untrained = {"backbone": backbone, "preprocessing": {"resize": (side, side), "crop": None, **space}}
    results = sslbench.evaluate(
        weights,
        data,
        protocols=[protocol],
        settings={"knn": {"k": (20,), "temperature": 0.07}} if protocol == "knn" else {},
        out=out,
        run=evaluation.RunSettings(floors=False),
        limit=limit,
        **(untrained if weights == "random" else {}),
    )
    scores = np.load(next((out / protocol).glob("*.scores.npz")))
    return scores["scores"].argmax(axis=1) == scores["labels"], results[0]


def paired(a, b, rng):
    """Mean difference of two boolean vectors and its 95 % bootstrap interval, in points."""
    difference = a.astype(float) - b.astype(float)
    means = [difference[rng.integers(0, len(a), len(a))].mean() for _ in range(1000)]
    return 100 * difference.mean(), *(100 * np.percentile(means, [2.5, 97.5]))


def rows(method, arguments):
    """The rows of one method."""
    out, data, limit = arguments.out / method, arguments.data, arguments.limit
    images = arguments.train_data or data
    weights, speed, memory = train(method, images, out / "run", limit, arguments.epochs, arguments.batch_size)
    found = []
    for protocol in arguments.protocols:
        right, result = correct(protocol, weights, method, data, out / "results", limit)
        floor, base = correct(protocol, "random", method, data, out / "untrained", limit)
        top1 = result.metrics["top1"]
        numbers = [speed, memory, top1.value, top1.low, top1.high, base.metrics["top1"].value]
        numbers += paired(right, floor, np.random.default_rng(0))
        facts = [method, METHODS[method][2], arguments.epochs, arguments.batch_size, protocol]
        found.append(dict(zip(COLUMNS, [*facts, *(f"{value:.2f}" for value in numbers)], strict=True)))
    return found


def named(method, own, peer=None):
    """The settings of a method, of ours or of another library, whose losses have no factor."""
    if peer is None:
        return {"name": method, **own}
    return {"name": f"peers.{peer}", "of": method} | {key: own[key] for key in own if key != "scale"}


def peer_row(method, arguments):
    """The row of one method of ours and of another library, trained in turn with each seed."""
    peers, right = (None, arguments.peer), []
    for seed in range(arguments.seeds):
        for peer in peers:
            out = arguments.out / f"{method}_{peer or 'ours'}_{seed}"
            plan = arguments.data, out / "run", arguments.limit, arguments.epochs, arguments.batch_size
            with multiprocessing.get_context("spawn").Pool(1) as process:
                weights, _, _ = process.apply(train, (method, *plan), {"peer": peer, "seed": seed})
            right.append(correct("knn", weights, method, arguments.data, out, arguments.limit)[0])
    ours, theirs = np.array(right[::2], dtype=float), np.array(right[1::2], dtype=float)  # (seeds, test images)
    interval = over_seeds_and_images(ours - theirs, np.random.default_rng(0))
    with multiprocessing.get_context("spawn").Pool(1) as process:
        updates = 1000 * process.apply(update_seconds, (method, peers, arguments.batch_size))
    speed = np.median(updates[:, 1] / updates[:, 0])
    numbers = [100 * ours.mean(), 100 * theirs.mean(), *interval, *np.median(updates, axis=0), speed]
    facts = [method, METHODS[method][2], arguments.limit, arguments.epochs, arguments.batch_size, arguments.seeds]
    return dict(zip(PEER_COLUMNS, [*facts, *(f"{value:.2f}" for value in numbers)], strict=True))


def update_seconds(method, peers, batch_size, updates=30):
    """(updates, peers), the processor time of updates that libraries make in turn on the same random images."""
    torch.set_num_threads(1)
    own, augment, name = METHODS[method]
    sizes = tuple(view["size"] for view in augment["views"] for _ in range(view.get("count", 1)))
    sides = []
    for peer in peers:
        backbone = build_backbone(name, seed=0).module.requires_grad_(True).train()
        dim = feature_dim(backbone, sizes[0], 3)
        setup = Setup(dim, sizes, batch_size, batch_size, 1, 10 * batch_size, 10, updates, 10, name)
        side = make_method(backbone, named(method, own, peer), setup, seed=0).to(memory_format=torch.channels_last)
        trained = [parameter for parameter in side.parameters() if parameter.requires_grad]
        sides.append((side.train(), torch.optim.AdamW(trained, lr=1e-3, fused=True)))
    seconds = np.zeros((updates, len(peers)))
    for index in range(updates):
        images = [torch.randn(batch_size, 3, size, size) for size in sizes]
        views = tuple(each.contiguous(memory_format=torch.channels_last) for each in images)
        batch = Batch(views, torch.zeros(batch_size, dtype=torch.int64), torch.arange(batch_size))
        step = Step(index, updates, 10)
        for number in (0, 1) if index % 2 else (1, 0):
            side, optimizer = sides[number]
            began = time.process_time()
            optimizer.zero_grad()
            side(batch, step).value.backward()
            side.before_update(step)
            optimizer.step()
            side.after_update(step)
            seconds[index, number] = time.process_time() - began
    return seconds[5:]  # caches are warm


def over_seeds_and_images(difference, rng):
    """Mean of (seeds, test images) and its 95 % bootstrap interval over both, in points."""
    seeds, images = difference.shape
    draws = [difference[rng.integers(0, seeds, seeds)][:, rng.integers(0, images, images)].mean() for _ in range(1000)]
    return 100 * difference.mean(), *(100 * np.percentile(draws, [2.5, 97.5]))


def main():
    """The table, a row as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--train-data", help="images and labels to train on, where they are not those of the scores")
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--protocols", nargs="*", default=["knn"], choices=["knn", "linear"])
    parser.add_argument("--limit", type=int, default=10000)
    parser.add_argument("--epochs", type=float, default=20)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--peer", choices=list(PEERS), help="train the methods of this library in turn with ours")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each method with --peer")
    arguments = parser.parse_args()
    shared = PEERS.get(arguments.peer, list(METHODS))
    methods = [each for each in shared if each not in NAMED_ONLY] if arguments.methods is None else arguments.methods
    unknown = [method for method in methods if method not in shared]
    if unknown:
        parser.error(f"no {' or '.join(unknown)} here; there are {', '.join(shared)}")
    if arguments.peer and importlib.util.find_spec(arguments.peer) is None:
        parser.error(f"{arguments.peer} is not installed; install it with: pip install {arguments.peer}")
    table, columns = ("peers.csv", PEER_COLUMNS) if arguments.peer else ("methods.csv", COLUMNS)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / table).open("a+", newline="") as file:
        file.seek(0)
        known = {line["method"] for line in csv.DictReader(file)}
        writer = csv.DictWriter(file, columns)
        if not known:
            writer.writeheader()
        for method in methods:
            if method in known:
                continue
            if arguments.peer:
                writer.writerow(peer_row(method, arguments))
            else:
                with multiprocessing.get_context("spawn").Pool(1) as process:
                    writer.writerows(process.apply(rows, (method, arguments)))
            file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
