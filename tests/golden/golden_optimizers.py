"""Steps of LARS and LARC, and parameter groups, as VISSL, solo-learn and DINO make them."""

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from golden_cases import Case
from torch import nn

from sslbench.backbones.build import build
from sslbench.train.lars import LARC, LARS
from sslbench.train.optimizers import OptimizerSettings, parameter_groups

_NAMES = ("w", "conv", "b", "g")


def trajectory(case: Case) -> None:
    """Five updates by given gradients; parameters and momentum after each."""
    given, wanted = case.inputs(), case.expected()
    for precision, dtype, tolerance in (
        ("f32", torch.float32, {"rtol": 2e-6, "atol": 1e-7}),
        ("f64", torch.float64, {"rtol": 1e-12, "atol": 1e-15}),
    ):
        params = {name: nn.Parameter(torch.tensor(given[f"p0/{name}"], dtype=dtype)) for name in _NAMES}
        optimizer = _optimizer(case, params)
        for i, lr in enumerate(given["lr"]):
            for name, parameter in params.items():
                parameter.grad = torch.tensor(given[f"grad{i}/{name}"], dtype=dtype)
            for group in optimizer.param_groups:
                group["lr"] = float(lr)
            optimizer.step()
            for name, parameter in params.items():
                recorded = f"{precision}/{{}}{i + 1}/{name}"
                np.testing.assert_allclose(parameter.detach(), wanted[recorded.format("p")], **tolerance)
                buffer = optimizer.state[parameter]["momentum_buffer"]
                np.testing.assert_allclose(buffer, wanted[recorded.format("mom")], **tolerance)


def _optimizer(case: Case, params: Mapping[str, nn.Parameter]) -> LARS:
    args = case.meta["args"]
    options = {name: args[name] for name in ("momentum", "nesterov", "weight_decay") if name in args}
    groups: list[dict[str, Any]] = [{"params": list(params.values())}]
    if case.name.endswith("_groups"):
        flat = [p for p in params.values() if p.dim() == 1]
        groups = [{"params": [p for p in params.values() if p.dim() > 1]}, {"params": flat, "weight_decay": 0.0}]
    if "larc" in case.name:
        return LARC(
            groups, 0.0, trust_coefficient=args["trust_coefficient"], clip=args["clip"], eps=args["eps"], **options
        )
    options["trust_coefficient"] = args["eta"]
    if case.name.startswith("vissl"):
        return LARS(groups, 0.0, exclude_1d=args["exclude_bias_and_norm"], **options)
    if case.name.startswith("dino"):
        return LARS(groups, 0.0, exclude_1d=True, decay_1d=False, **options)
    return LARS(
        groups,
        0.0,
        denominator="separate",
        exclude_1d=args["exclude_bias_n_norm"],
        decay_1d=False,
        clip=args["clip_lr"],
        **options,
    )


def groups(case: Case) -> None:
    """VISSL's four groups: backbone and head, with and without weight decay; ours leaves out empty ones."""
    recorded = json.loads((case.topic / "expected.json").read_text(encoding="utf-8"))[case.name]
    wanted = [
        ([_our_name(name) for name in group["names"]], group["lr"] == "LR_HEAD", float(group["weight_decay"]))
        for group in recorded["groups"]
        if group["names"]
    ]
    options = recorded["optimizer"]
    settings = OptimizerSettings(
        weight_decay=options["weight_decay"],
        head_weight_decay=recorded["head_wd"],
        head_lr_factor=0.5,
        decay_norm=options["regularize_bn"],
        decay_bias=options["regularize_bias"],
        no_decay=tuple(options["non_regularized_parameters"]),
    )
    ours = parameter_groups(_model([name for names, _, _ in wanted for name in names]), settings)
    assert len(ours) == len(wanted)
    for group, (names, head, weight_decay) in zip(ours, wanted, strict=True):
        assert sorted(group["names"]) == sorted(names)
        assert group["lr_factor"] == (0.5 if head else 1.0)
        own = settings.weight_decay if group["own_weight_decay"] is None else group["own_weight_decay"]
        assert own * group["weight_decay_factor"] == weight_decay


def _our_name(name: str) -> str:
    return name.replace("trunk._feature_blocks.", "backbone.")


def _model(trainable: list[str]) -> nn.Module:
    """A ResNet-50 (frozen if no name is its) and heads whose layers are told by the recorded names."""
    with torch.device("meta"):
        backbone = build("resnet50").module
    model = nn.Module()
    model.backbone = backbone
    backbone.requires_grad_(any(name.startswith("backbone.") for name in trainable))
    for name in trainable:
        if name.startswith("heads."):
            *path, leaf = name.split(".")
            _place(model, path, leaf)
    return model


def _place(model: nn.Module, path: list[str], leaf: str) -> None:
    """Puts a layer that has the parameter there: BatchNorm where the reference has it, else Linear."""
    *above, last = path
    for part in above:
        if not hasattr(model, part):
            model.add_module(part, nn.Module())
        model = getattr(model, part)
    is_norm = last == "channel_bn" or re.search(r"projection_head\.1$", ".".join(path))
    if not hasattr(model, last):
        model.add_module(last, nn.BatchNorm1d(3) if is_norm else nn.Linear(3, 3, bias="prototypes" not in last))
    assert hasattr(getattr(model, last), leaf)
