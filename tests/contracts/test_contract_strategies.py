"""Methods under ddp, fsdp and zero: plain, averaged, accumulated, compiled, in bfloat16; two processes, no GPU.

The three strategies compute the same, so they have to end with the same weights. One process has to end there too, if
BatchNorm does not take the statistics of each process's images: it does in the runs with every option, not in those of
every method (`OF_EACH_PROCESS` has the exceptions).

Numbers are float64: small networks with BatchNorm turn differences of rounding into ones a thousand times as large.
Not the full product, which takes an hour: options act in the training loop and on what methods are made of, so four
methods that have all of it between them are tried with every option; all under ddp, one per kind of state under fsdp
(`make test-all`: all), and of those that say themselves what is compiled a third is compiled in one process
(`make test-all`: all), two others in two.
What acts between the backward pass and the update (`together`) is tried in one run. Zero changes the optimizer only: it
is tried with those four, and not compiled. `make test-all` has the rest of those four.
"""

import contextlib
import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import runs, two_processes
from helpers.small_methods import one_per_kind_of_state

from sslbench.backbones.build import build
from sslbench.backbones.sizes import accept_sizes, feature_dim
from sslbench.config import build as build_dataclass
from sslbench.data.decode.transforms import normalise
from sslbench.data.loading.pretraining import RawBatch
from sslbench.data.views import Augment
from sslbench.distributed.collectives import from_first, rank, world_size
from sslbench.distributed.parallel import module_state
from sslbench.preprocessing import Preprocessing
from sslbench.pretraining import PretrainSettings, networks
from sslbench.pretraining.networks import make_method, make_state
from sslbench.train import schedules
from sslbench.train import state as states
from sslbench.train.loop import RateSchedules, TrainingPlan, train
from sslbench.train.method import Batch, Setup, Step, find_method
from sslbench.train.views import RunOnViews

RESNET = "resnet_basic_1-1-1-1w0.125"
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=24,num_heads=2,dynamic_img_size=True"
UPDATES, IMAGES = 2, 16
SETTINGS = {
    "optimizer": {"name": "sgd", "lr": 0.02, "lr_scaling": "none"},
    "schedule": {"lr": 1.0},
    "device": "cpu",
    "precision": "fp32",
    "batch_size": IMAGES,
}
STRATEGIES = {"ddp": {}, "fsdp": {"strategy": "fsdp"}, "zero": {"zero": True}}
OPTIONS = {
    "plain": {},
    "together": {
        "ema": 0.5,
        "accumulate": 2,
        "clip_norm": 0.1,
        "optimizer": {"name": "lars", "lr": 0.05, "lr_scaling": "none", "trust_coefficient": 0.02},
        **(GROUPS := {"groups": {"backbone": {"lr": 0.005, "weight_decay": 0.1}}}),
    },
    "bf16": {"precision": "bf16", "channels_last": False},  # fsdp has it off, and other kernels round otherwise
    "compile": {"compile": True},
}
CELLS = [(s, o) for s in STRATEGIES for o in OPTIONS if (s, o) != ("zero", "compile")]
COMPILED_ALONE = [("ddp", "plain"), ("ddp", "compile")]
NO_FSDP = [*(("ddp", option) for option in OPTIONS if option != "compile"), ("zero", "plain"), ("zero", "together")]
COMPILED_ONCE = {
    strategy: [cell for cell in CELLS if cell[1] != "compile" or cell[0] == strategy] for strategy in ("ddp", "fsdp")
}
WITH_ALL_OPTIONS = {
    **{"byol": ("byol", COMPILED_ONCE["ddp"]), "dino": ("dino", COMPILED_ONCE["fsdp"])},
    **{f"{name} without fsdp": (name, NO_FSDP) for name in ("mae", "swav")},
    **{f"{name}, all": pytest.param(name, CELLS, marks=pytest.mark.long) for name in ("byol", "dino", "mae", "swav")},
}
"""BatchNorm and a momentum network; a vision transformer with a centre; masks and a decoder; queue and prototypes."""
ALONE = {"ema": {"ema": 0.5}, "accumulate": {"accumulate": 2}, "clip": {"clip_norm": 0.1}, "groups": GROUPS}
"""Options of `together`, one by one, of ddp: each does what it should, and nothing more."""
AS_ONE = {"accumulate": ALONE["accumulate"]}
"""An option of methods whose loss is a mean over images: two passes are one."""
SECONDS = 1800
"""Two processes that take longer hang; idle, a method takes less than 20 s."""


def sizes_of(method):
    return build_dataclass(Augment, runs.METHODS[method][1], "test").sizes


def batches(sizes):
    """The same images in every process and strategy; each process takes its part."""
    generator = torch.Generator().manual_seed(0)
    share = IMAGES // world_size()
    rows = slice(rank() * share, (rank() + 1) * share)
    for _ in range(UPDATES):
        images = torch.rand(IMAGES, 3, 32, 32, generator=generator) * 255
        views = [
            torch.nn.functional.interpolate(images, size=size)
            + 20 * torch.randn(IMAGES, 3, size, size, generator=generator)
            for size in sizes
        ]
        labels = torch.arange(IMAGES) % 4
        boxes = torch.rand(IMAGES, len(sizes), 4, generator=generator)
        yield RawBatch(
            tuple(view[rows] for view in views),
            labels[rows],
            torch.arange(IMAGES)[rows],
            torch.zeros(share).bool(),
            boxes=boxes[rows],
        )


def trained(method, backbone, changes):
    """Losses, weights and average after a few updates, and the state.

    Under autocast one update is all that strategies have in common: later ones round other activations.
    """
    own, augment, _ = runs.METHODS[method]
    values = {"method": {"name": method, **own}, "augment": augment, **SETTINGS, **changes}
    settings = build_dataclass(PretrainSettings, values, "test")
    updates = UPDATES if settings.precision == "fp32" else 1
    state = start(settings, backbone, seed=0)
    schedule = schedules.constant(settings.optimizer.lr)
    plan = TrainingPlan(
        steps=updates,
        per_epoch=2,
        rates=RateSchedules(schedule, settings.optimizer.lr),
        parts={name: rates_of(part) for name, part in (settings.groups or {}).items()},
        normalisation=Preprocessing(),
        accumulate=settings.accumulate,
        clip_norm=settings.clip_norm,
        precision=settings.precision,
        average_decay=settings.ema or 0.0,
        log_every=1,
    )
    lines = []
    kept = {}

    class Recorded(RunOnViews):
        def log(self, line):
            lines.append(line)

        def save(self):
            kept.update(states.to_checkpoint(state))

    run = Recorded(plan, (), Path())
    run.state = state
    train(state, plan, batches(sizes_of(method)), run, lambda: 0)
    found = {
        "losses": [line.loss for line in lines],
        "weights": arrays(state.method),
        "average": {} if state.average is None else arrays(state.average),
    }
    # Otherwise a checkpoint is that of one process; that of fsdp is tried with an average, of no method in particular.
    if settings.zero or (settings.strategy == "fsdp" and settings.ema):
        again = start(settings, backbone, seed=1)
        states.from_checkpoint(again, {**from_first(lambda: kept), "step": updates})
        found["restored"] = arrays(again.method)
    return found, state


def rates_of(part):
    return RateSchedules(schedules.constant(part.lr), part.lr, schedules.constant(part.weight_decay))


def start(settings, backbone, *, seed):
    built = build(backbone, seed=seed)
    network, channels = built.module, built.preprocessing.channels
    network.requires_grad_(True).train()
    sizes = sizes_of(settings.method["name"])
    accept_sizes(network, sizes, name=backbone, channels=channels)
    passes = IMAGES // world_size() // settings.accumulate
    dim = feature_dim(network, 32, channels)
    setup = Setup(dim, sizes, passes, IMAGES, world_size(), 96, 4, UPDATES, 2, backbone)
    method = make_method(network, settings.method, setup, seed=seed)
    if settings.precision == "fp32":
        method.double().forward = functools.partial(loss_of_doubles, method)
    return make_state(method, settings, torch.device("cpu"), settings.precision)


def loss_of_doubles(method, batch, step):
    return method.loss(dataclasses.replace(batch, views=tuple(view.double() for view in batch.views)), step)


def arrays(module):
    return {name: tensor.numpy().copy() for name, tensor in module_state(module).items()}


def under_every_strategy(number, method, cells):
    """What each strategy and option ends with, in one of two processes."""
    torch.set_num_threads(1)
    return of_cells(method, cells, ALONE)


def under_few_strategies(number, methods, sharded, accumulated):
    """The same of several methods under ddp, and of some under fsdp, without statistics of a batch."""
    torch.set_num_threads(1)
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "make_method", fixed_norms)
        for method in methods:
            try:
                cells = [("ddp", "plain"), *([("fsdp", "plain")] if method in sharded else [])]
                found[method] = of_cells(method, cells, AS_ONE if method in accumulated else {})
            except Exception as error:
                raise RuntimeError(f"{method} fails under a strategy") from error
    return found


def compiled_alone(number, methods):
    """What methods end with plain and compiled; each process has its own methods and joins no other."""
    torch.set_num_threads(1)
    return {method: of_cells(method, COMPILED_ALONE, {}) for method in methods[number::2]}


def of_cells(method, cells, alone):
    cells = {(strategy, option): {**STRATEGIES[strategy], **OPTIONS[option]} for strategy, option in cells}
    cells |= {("ddp", option): changes for option, changes in alone.items()}
    found = {}
    for cell, changes in cells.items():
        with eager_backend():
            outcome, state = trained(method, backbone_of(method), changes)
            if "compile" in cell:
                outcome["outside"] = outside_compiled(state, sizes_of(method))
        found[cell] = outcome
    return found


@contextlib.contextmanager
def eager_backend():
    """torch.compile without a compiler: graphs are captured and run as they are."""
    own, of_module = torch.compile, torch.nn.Module.compile
    torch._dynamo.reset()
    torch.compile = functools.partial(own, backend="eager")
    torch.nn.Module.compile = functools.partialmethod(of_module, backend="eager")
    try:
        yield
    finally:
        torch.compile, torch.nn.Module.compile = own, of_module


def outside_compiled(state, sizes):
    """Layers of networks in a forward pass, and how many of them ran outside what was compiled."""
    raw = next(batches(sizes))
    views = tuple(normalise(view, Preprocessing()) for view in raw.views)
    batch = Batch(views, raw.labels, raw.indices, boxes=raw.boxes)
    step = Step(UPDATES - 1, UPDATES, 2)
    state.model(batch, step)  # what is compiled again here shows its layers outside while that is going on
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        state.model(batch, step)
    layers = [event for event in profile.events() if event.name in ("aten::conv2d", "aten::linear")]
    return len(layers), sum(not compiled(event) for event in layers)


def compiled(event):
    while event is not None:
        if event.name.startswith("Torch-Compiled Region"):
            return True
        event = event.cpu_parent
    return False


def backbone_of(method):
    _, _, backbone = runs.METHODS[method]
    return VIT if backbone == runs.VIT else backbone.replace(runs.RESNET, RESNET)  # with options, such as in_chans=1


@pytest.mark.parametrize(("method", "cells"), WITH_ALL_OPTIONS.values(), ids=WITH_ALL_OPTIONS)
def test_every_strategy_and_option_trains_the_same_network(method, cells):
    check_equal(method, *two_processes.run(under_every_strategy, method, cells, seconds=SECONDS))


@pytest.mark.parametrize("every", ["third", pytest.param("one", marks=pytest.mark.long)])
def test_methods_that_say_what_is_compiled_compile_all_of_it(every):
    stated = {"compile_networks", "compiled_methods"}
    methods = [method for method in runs.METHODS if stated & set(vars(find_method(method)))]
    methods = methods[1::3] if every == "third" else methods
    assert all(any(way in vars(find_method(method)) for method in methods) for way in stated)
    for outcomes in two_processes.run(compiled_alone, methods, join=False, seconds=SECONDS):
        for method, outcome in outcomes.items():
            check_equal(method, outcome, outcome)


@pytest.mark.parametrize("sharded", ["one per kind of state", pytest.param("all", marks=pytest.mark.long)])
@pytest.mark.parametrize("part", range(2))
def test_every_method_trains_the_same_network_alone_and_under_every_strategy(part, sharded):
    methods = list(runs.METHODS)[part::2]
    sharded = methods if sharded == "all" else one_per_kind_of_state()
    compared = sorted(set(methods) - set(OF_EACH_PROCESS))
    accumulated = [method for method in compared if is_mean_of_images(method)]
    assert len(accumulated) >= 8, "one of them is a mean no more"
    alone = trained_alone(compared)
    first, second = two_processes.run(under_few_strategies, methods, sharded, accumulated, seconds=SECONDS)
    for method in methods:
        check_equal(method, first[method], second[method])
    for method in compared:
        assert (("ddp", "accumulate") in first[method]) == (method in accumulated)
        for cell, found in first[method].items():
            np.testing.assert_allclose(found["losses"], alone[method]["losses"], rtol=1e-6, err_msg=f"{method}, {cell}")
            close(found["weights"], alone[method]["weights"], f"{method}, {cell}", 1e-6)


def check_equal(method, first, second):
    for (strategy, option), found in first.items():
        name = f"{method}, {strategy}, {option}"
        assert np.isfinite(found["losses"]).all(), name
        close(found["weights"], second[strategy, option]["weights"], f"{name}: the two processes", 0, statistics=False)
        close(found["weights"], found.get("restored", found["weights"]), f"{name}: from the checkpoint", 0)
        expected = first["ddp", "plain" if option == "compile" else option]
        tolerance = 1e-5 if option == "bf16" else 1e-6
        np.testing.assert_allclose(found["losses"], expected["losses"], rtol=tolerance, err_msg=name)
        close(found["weights"], expected["weights"], name, tolerance)
        close(found["average"], expected["average"], name, tolerance)
        plain = first[strategy, "plain"]["weights"]
        assert found["weights"].keys() == plain.keys()
        if option == "ema":
            close(found["weights"], plain, "an average changes nothing", 0)
        elif option == "compile":
            layers, outside = found["outside"]
            assert layers > 0 and outside == 0, f"{name}: {outside} of {layers} layers are not compiled"
        elif option not in ("plain", "accumulate"):
            assert any((found["weights"][key] != plain[key]).any() for key in plain), f"{name} changes nothing"
        if option in ("ema", "together"):
            own = {k.removeprefix("backbone."): v for k, v in found["weights"].items() if k.startswith("backbone.")}
            assert found["average"].keys() == own.keys()
            assert any((found["average"][key] != own[key]).any() for key in own)


def close(found, expected, what, tolerance, *, statistics=True):
    assert found.keys() == expected.keys(), what
    for name, value in found.items():
        if statistics or "running_" not in name:  # of BatchNorm: those of each process are its own
            np.testing.assert_allclose(value, expected[name], rtol=tolerance, atol=tolerance, err_msg=f"{what}: {name}")


OF_EACH_PROCESS = {
    "capi": "each of its blocks leaves out a share of the images of a process",
    "dinov2": "its masks have shares spread over the images of a process, whose nearest neighbours KoLeo parts",
    "ijepa": "contexts are cut to the shortest of a process's images, as they go through the network together",
    "wmse": "a process whitens slices of its own images",
}
"""Methods that are not the same with other numbers of processes, and the reason."""


def with_fixed_norms(method):
    """A method whose BatchNorm never takes the statistics of a process's images."""
    for module in method.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.eval().train = lambda mode=True, module=module: module
    return method


def fixed_norms(*args, **named):
    return with_fixed_norms(networks.make_method(*args, **named))


def is_mean_of_images(method):
    """Whether the loss of a first pass is the mean over its images, and no contrast of them."""
    values = {"method": {"name": method, **runs.METHODS[method][0]}, "augment": runs.METHODS[method][1]}
    settings = build_dataclass(PretrainSettings, values | SETTINGS, "test")
    raw = next(batches(sizes_of(method)))
    views = tuple(normalise(view, Preprocessing()) for view in raw.views)
    losses = []
    for r in (slice(None), slice(IMAGES // 2), slice(IMAGES // 2, None)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(globals(), "make_method", fixed_norms)
            made = start(settings, backbone_of(method), seed=0).method  # anew, as a first pass may leave state
        batch = Batch(tuple(v[r] for v in views), raw.labels[r], raw.indices[r], boxes=raw.boxes[r])
        torch.manual_seed(0)
        losses.append(float(made(batch, Step(0, UPDATES, 2)).value.detach()))
    whole, *halves = losses
    return abs(whole - sum(halves) / 2) < 1e-9 * abs(whole)


def trained_alone(methods):
    """What methods without statistics of a batch end with in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "make_method", fixed_norms)
        return {method: trained(method, backbone_of(method), {})[0] for method in methods}
