"""Small pretraining runs for tests: one setting per method, seconds each on one core."""

import functools
import pkgutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

import sslbench.methods
from sslbench.config import build
from sslbench.evaluation.pretraining import knn_evaluator
from sslbench.library.recipes import compose_pretraining, read_recipe
from sslbench.names import list_names
from sslbench.pretraining import PretrainRequest, PretrainSettings, pretrain
from sslbench.train.method import find_method

RESNET = "resnet_basic_1-1-1-1w0.125"
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=48,num_heads=3,dynamic_img_size=True"
PAIR = {"views": [{"count": 2, "size": 32, "scale": [0.3, 1.0], "flip": 0.0}]}
CROPS = {"views": [*PAIR["views"], {"count": 2, "size": 24, "scale": [0.1, 0.3], "flip": 0.0}]}
SINGLE = {"views": [{"count": 1, "size": 32, "scale": [0.3, 1.0], "flip": 0.0}]}
PIECES = {"size": 10, "scale": [0.6, 1.0], "flip": 0.0, "grid": {"side": 3, "gap": 1, "augment": "views"}}
PATCHES = {"views": [*SINGLE["views"], PIECES]}

# Small settings, views and backbone of a method, where they are not its recipe's in small.
CHOSEN = {
    "aim": ({"head_dim": 32, "head_depth": 1}, SINGLE, VIT),
    "barlow_twins": ({"projector": [64, 64]}, PAIR, RESNET),
    "capi": (
        {"prototypes": 16, "predictor_depth": 1, "predictor_heads": 3, "predicted": 0.3, "momentum_warmup": 0.2},
        SINGLE,
        VIT,
    ),
    "beitv2": ({"tokenizer": "random", "smallest_block": 2, "early_blocks": 1, "head_blocks": 1}, SINGLE, VIT),
    "byol": ({"projector": [64, 32], "predictor": [64]}, PAIR, RESNET),
    "deepclusterv2": ({"clusters": [8, 8, 8], "projector": [64, 32]}, CROPS, RESNET),
    "distillation": ({"teacher": "random", "teacher_backbone": "resnet18w0.25"}, SINGLE, RESNET),  # has a head
    "data2vec2": (
        {"masks": 2, "target_layers": 1, "decoder_dim": 32, "decoder_layers": 2, "decoder_groups": 4, "masked": 0.5},
        SINGLE,
        VIT,
    ),
    "densecl": ({"queue": 64, "projector": [64, 32]}, PAIR, RESNET),
    "dino": (
        {"prototypes": 64, "hidden": [64], "bottleneck": 32, "frozen_epochs": 0.5, "temperature_epochs": 1},
        CROPS,
        VIT,
    ),
    "directclr": ({"dimensions": 24}, PAIR, RESNET),
    "emp_ssl": ({"projector": [64, 32]}, PAIR, RESNET),
    "jigsaw": ({"permutations": 12, "hidden": 32}, {"views": [PIECES]}, RESNET),
    "npid": ({"negatives": 64, "projector": [32], "contrast": "info_nce"}, SINGLE, RESNET),
    "pirl": ({"negatives": 64, "projector": [32], "contrast": "info_nce"}, PATCHES, RESNET),
    "dinov2": (
        {
            "prototypes": 64,
            "hidden": [64],
            "bottleneck": 32,
            "patch_prototypes": 32,
            "patch_bottleneck": 16,
            "frozen_epochs": 0.5,
            "temperature_epochs": 1,
            "drop_path": 0.2,
        },
        CROPS,
        VIT,
    ),
    "ibot": (
        {"prototypes": 64, "hidden": [64], "bottleneck": 32, "frozen_epochs": 0.5, "temperature_epochs": 1},
        CROPS,
        VIT,
    ),
    "ijepa": ({"predictor_dim": 32, "predictor_depth": 1, "predictor_heads": 2, "min_patches": 2}, SINGLE, VIT),
    "lejepa": ({"projector": [64, 32], "directions": 64}, CROPS, VIT),
    "mae": ({"decoder_dim": 32, "decoder_depth": 1, "decoder_heads": 2}, SINGLE, VIT),
    "maskfeat": ({"smallest_block": 2}, SINGLE, VIT),
    "moco": ({"queue": 64, "projector": [64, 32]}, PAIR, RESNET),
    "moco_v3": ({"projector": [64, 32], "predictor": [64]}, PAIR, RESNET),
    "msn": ({"prototypes": 32, "projector": [64, 32]}, CROPS, VIT),
    "rotnet": ({}, SINGLE, RESNET),
    "simclr": ({"projector": [64, 32]}, PAIR, RESNET),
    "smog": (
        {"groups": 4, "temperature": 0.5, "queue": 64, "reset_every": 8, "projector": [64, 32], "predictor": [64]},
        PAIR,
        RESNET,
    ),
    "simsiam": ({"projector": [64, 64], "predictor": [16]}, PAIR, RESNET),
    "supervised": ({}, SINGLE, RESNET),
    "swav": ({"prototypes": [30], "projector": [64, 32], "queue": 64, "queue_start": 4}, CROPS, RESNET),
    "vicreg": ({"projector": [64, 64]}, PAIR, RESNET),
    "vicregl": ({"projector": [64, 64], "place_projector": [32, 32]}, PAIR, RESNET),
    "vqkd": (
        {"teacher": "random", "teacher_backbone": VIT, "codes": 32, "code_dim": 8, "decoder_depth": 1},
        SINGLE,
        VIT,
    ),
    "wmse": ({"projector": [32, 4], "slice": 8}, PAIR, RESNET),
}

# Settings that a recipe leaves to the user, or that depend on each other.
NEEDED = {
    "beitv2": {"tokenizer": "random", "early_blocks": 1, "head_blocks": 1},
    "capi": {"predictor_heads": 3},
    "distillation": {"teacher": "random", "teacher_backbone": RESNET, "target": "features", "soft_weight": 1.0},
    "vqkd": {"teacher": "random", "teacher_backbone": VIT},
    "wmse": {"projector": [64, 4], "slice": 8},
}


@functools.cache
def modules():
    """Return the names of all methods."""
    return sorted(m.name for m in pkgutil.iter_modules(sslbench.methods.__path__) if not m.name.startswith("_"))


@functools.cache
def recipe_in_small(method):
    """Return settings, views and backbone of a small run after the first recipe of a method in configs/method."""
    names = sorted(list_names("method"), key=lambda name: name != method)  # most are called as their method
    name = next(name for name in names if read_recipe("method", name)["method"].get("name") == method)
    recipe = compose_pretraining(name, {}, {}).values
    own = {key: in_small(value) for key, value in recipe["method"].items() if key != "name"} | NEEDED.get(method, {})
    views = recipe["augment"]["views"]
    largest = max(view["size"] for view in views)
    small = [
        {
            "count": view.get("count", 1),
            "size": 32 if view["size"] == largest else 16,
            "scale": [0.3, 1.0],
            "flip": 0.0,
            "grid": view.get("grid", {}),
        }
        for view in views
    ]
    lightness = ",in_chans=1" if "in_chans=1" in recipe["backbone"] else ""  # colorization
    return own, {"views": small}, VIT if recipe["backbone"].startswith("timm:vit") else f"{RESNET}{lightness}"


def in_small(value):
    """Return a setting with all whole numbers at most 64: widths, queues, prototypes."""
    if isinstance(value, list | tuple):
        return [in_small(entry) for entry in value]
    return min(value, 64) if type(value) is int else value


class _Methods(Mapping):
    """Settings, views and backbone of a small run, by method; recipes are read when they are asked for."""

    def __iter__(self):
        return iter(modules())

    def __len__(self):
        return len(modules())

    def __getitem__(self, method):
        if method not in modules():
            raise KeyError(method)
        return CHOSEN.get(method) or recipe_in_small(method)


METHODS = _Methods()


def settings(method, /, **changes):
    """Settings of a small run of a method."""
    own, augment, backbone = METHODS[method]
    values = {
        "method": {"name": method, **own},
        "augment": augment,
        "optimizer": {"name": "sgd", "lr": 0.05},
        "schedule": {"lr": {"name": "cosine", "start": 1.0, "end": 0.0}, "warmup_epochs": 1},
        "backbone": backbone,
        "batch_size": 16,
        "epochs": 3,
        "device": "cpu",
        "precision": "fp32",
        "workers": 0,
        "log_every": 1,
        "save_every": "2 updates",
        **changes,
    }
    return build(PretrainSettings, values, "test")


def coloured(folder, count=96):
    """Return a folder of images of 32 x 32 pixels, written once: colours that change from left to right."""
    if not folder.exists():
        rng, part = np.random.default_rng(0), folder.with_suffix(".part")
        part.mkdir(parents=True)
        for i in range(count):
            edges = rng.integers(0, 256, (2, 1, 1, 3))
            ramp = np.linspace(0, 1, 32)[None, :, None]
            pixels = edges[0] * (1 - ramp) + edges[1] * ramp + rng.normal(0, 10, (32, 32, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(part / f"{i:02d}.png")
        part.rename(folder)
    return str(folder)


def run(method, out, /, *, limit=48, observers=(), eval_data=None, **changes):
    """A small run on the digits, which are grey, or on coloured images."""
    data = "sklearn:digits" if find_method(method).space == "RGB" else coloured(Path(out).parent / "coloured")
    request = PretrainRequest(settings(method, **changes), data=data, out=Path(out), limit=limit, eval_data=eval_data)
    return pretrain(request, command="test", observers=observers, evaluator=knn_evaluator(request))
