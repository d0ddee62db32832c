"""With strategy=fsdp only the first process builds the networks: all start from the same, bit for bit."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from helpers import runs, two_processes
from helpers.small_methods import one_per_kind_of_state
from torch import nn

from sslbench.distributed import parallel
from sslbench.pretraining import PretrainRequest
from sslbench.pretraining.networks import make_state
from sslbench.pretraining.preparation import prepare

EVA = "timm:eva02_tiny_patch14_224,img_size=32,patch_size=8,depth=1,embed_dim=24,num_heads=2"
SWIN, OWN, LOCAL = (f"{Path(__file__).stem}:{name}" for name in ("swin", "own", "local"))
BACKBONES = {
    "rotary positions, which no file has": ("simclr", EVA),
    "masks and tables of shifted windows": ("simclr", SWIN),
    "shared tensors and attributes": ("simclr", OWN),
    "copies of shared tensors": ("byol", OWN),
}


class Own(nn.Module):
    """Shared parameters, buffers that are not saved, tensors that are neither, and marks on parameters."""

    def __init__(self):
        super().__init__()
        self.preprocessing = {"resize": 32, "crop": [32, 32]}
        self.one = nn.Linear(48, 48)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(48, 48), nn.Sequential(nn.ReLU())) for _ in range(2)])
        self.two = nn.Linear(48, 48)
        self.two.weight = self.one.weight
        self.two.bias.mark = "kept"
        self.register_buffer("table", torch.randn(3, 48), persistent=False)
        self.register_buffer("number", torch.tensor(7))
        self.register_buffer("flags", torch.rand(5) > 0.5)
        self.register_buffer("none", None)
        self.alias = self.one
        self.scale = torch.randn(48)

    def forward(self, x):
        x = nn.functional.adaptive_avg_pool2d(x, 4).flatten(1)
        for block in self.blocks:
            x = block(x)
        return (self.two(self.one(x)) + self.table[0]) * self.scale


def swin():
    network = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=32, window_size=4, depths=(1, 2), num_heads=(2, 2), embed_dim=8
    )
    network.reset_classifier(0)
    network.preprocessing = {"resize": 32, "crop": [32, 32]}
    return network


def own():
    return Own()


def local():
    class Local(Own):
        """A class that only this function knows, which cannot be pickled."""

    return Local()


def prepared(method, changes, data):
    """A run of two processes that is ready to start."""
    settings = runs.settings(method, strategy="fsdp", epochs=1, **changes)
    found = prepare(PretrainRequest(settings, data=data, out=Path("never"), limit=32))
    places = {tensor.device.type for tensor in found.method.state_dict().values()}
    state = make_state(found.method, settings, torch.device("cpu"), "fp32")
    return found, state, places


def content(module):
    """Everything in a module: tensors as arrays, whether they are saved and trained, and its other values."""
    found = {}
    for path, part in module.named_modules(remove_duplicate=False):
        values = {**part._parameters, **part._buffers}
        values |= {name: value for name, value in vars(part).items() if isinstance(value, torch.Tensor)}
        for name, value in values.items():
            where = f"{path}.{name}"
            if value is None:
                found[where] = None
                continue
            marks = {key: text for key, text in vars(value).items() if isinstance(text, str)}
            kept = name in part._non_persistent_buffers_set
            found[where] = (parallel.whole(value.detach()).numpy().copy(), value.requires_grad, kept, marks)
        names = {name for name in vars(part) if not name.startswith("__composable_api")}  # FSDP's, random
        found[path] = (type(part).__name__, part.training, sorted(names - {"forward"}))
    same = {id(tensor): name for name, tensor in module.named_parameters(remove_duplicate=False)}
    found["shared"] = sorted(same.values())
    return found


def starts(rank, cases):
    """What a process starts each case with."""
    torch.set_num_threads(1)
    return [start(rank, *case) for case in cases]


def start(rank, method, changes, data):
    torch.manual_seed(rank)  # states that differ as those of programs do
    run, state, places = prepared(method, changes, data)
    return {
        "places": places,
        "method": content(state.method),
        "average": None if state.average is None else content(state.average),
        "setup": {**dataclasses.asdict(run.setup), "targets": None},
        "sha": run.init_sha256,
        "name": run.backbone.name,
        "is the method's": any(part is run.backbone.module for part in run.method.modules()),
        "preprocessing": run.backbone.preprocessing.record(),
        "optimized": [tuple(p.shape) for group in state.optimizer.param_groups for p in group["params"]],
    }


def equal(found, expected, where):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key, value in expected.items():
            equal(found[key], value, f"{where}, {key}")
    elif isinstance(expected, tuple | list):
        assert len(found) == len(expected), where
        for one, other in zip(found, expected, strict=True):
            equal(one, other, where)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype and found.shape == expected.shape, where
        assert found.tobytes() == expected.tobytes(), where
    else:
        assert found == expected, where


def check(cases, *, pickled=True):
    first, second = two_processes.run(starts, cases, seconds=900)
    for (method, *_), built, received in zip(cases, first, second, strict=True):
        assert built.pop("places") == {"cpu"}, method
        assert received.pop("places") == {"meta" if pickled else "cpu"}, method
        assert built["is the method's"]
        equal(received, built, method)


@pytest.mark.parametrize("methods", ["one per kind of state", pytest.param("all", marks=pytest.mark.long)])
def test_every_method_starts_from_the_same_networks(methods, shared):
    data = str(shared("photos") / "photos" / "train")
    check([(method, {}, data) for method in (runs.METHODS if methods == "all" else one_per_kind_of_state())])


@pytest.mark.parametrize("case", BACKBONES.values(), ids=BACKBONES)
def test_backbones_with_more_than_parameters(case, shared):
    method, backbone = case
    check([(method, {"backbone": backbone, "ema": 0.9}, str(shared("photos") / "photos" / "train"))])


def test_what_cannot_be_pickled_is_built_by_every_process(shared):
    check([("simclr", {"backbone": LOCAL}, str(shared("photos") / "photos" / "train"))], pickled=False)
