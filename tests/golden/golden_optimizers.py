"""Steps of LARS and LARC, and parameter groups, as VISSL, solo-learn and DINO make them."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from golden_cases import Case
from torch import nn

from sslbench.backbones.build import build
from sslbench.train.lars import LARC, LARS
from sslbench.train.optimizer_settings import OptimizerSettings
from sslbench.train.optimizers import parameter_groups


def trajectory(case: Case) -> None:
    """Compare parameters and momentum after each of some updates by given gradients."""
    given, wanted = case.inputs(), case.expected()
    names = [key.removeprefix("p0/") for key in given if key.startswith("p0/")]
    for precision, dtype, tolerance in (
        ("f32", torch.float32, {"rtol": 2e-6, "atol": 1e-7}),
        ("f64", torch.float64, {"rtol": 1e-12, "atol": 1e-15}),
    ):
        params = {name: nn.Parameter(torch.tensor(given[f"p0/{name}"], dtype=dtype)) for name in names}
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
                if recorded.format("mom") in wanted:
                    buffer = optimizer.state[parameter]["momentum_buffer"]
                    np.testing.assert_allclose(buffer, wanted[recorded.format("mom")], **tolerance)


def _optimizer(case: Case, params: Mapping[str, nn.Parameter]) -> LARS:
    args = case.meta["args"]
    options = {name: args[name] for name in ("momentum", "nesterov", "weight_decay") if name in args}
    groups: list[dict[str, Any]] = [{"params": list(params.values())}]
    if "groups" in case.name:
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
    recorded = case.expected_json()
    wanted = [
        ([_our_name(name) for name in group["names"]], group["lr"] == "LR_HEAD", float(group["weight_decay"]))
        for group in recorded["groups"]
        if group["names"]
    ]
    options = recorded["optimizer"]
    # The rates are recorded as LR and LR_HEAD: any factor that is not 1 tells them apart.
    factor = recorded.get("head_lr_factor", 0.25)
    settings = OptimizerSettings(
        weight_decay=options["weight_decay"],
        head_weight_decay=recorded["head_wd"],
        head_lr_factor=factor,
        decay_norm=options["regularize_bn"],
        decay_bias=options["regularize_bias"],
        no_decay=tuple(options["non_regularized_parameters"]),
    )
    ours = parameter_groups(_model([name for names, _, _ in wanted for name in names]), settings)
    assert len(ours) == len(wanted)
    for group, (names, head, weight_decay) in zip(ours, wanted, strict=True):
        assert sorted(group["names"]) == sorted(names)
        assert group["lr_factor"] == (factor if head else 1.0)
        own = settings.weight_decay if group["own_weight_decay"] is None else group["own_weight_decay"]
        assert own * group["weight_decay_factor"] == weight_decay


def _our_name(name: str) -> str:
    return name.replace("trunk._feature_blocks.", "backbone.")


def resnet_with(names: Iterable[str]) -> str:
    """Return the name of the ResNet that has these tensors, by torchvision's names; ResNet-50 for none.

    The width is left open: names do not show it.
    """
    blocks = [m for name in names if (m := re.search(r"layer([1-4])\.(\d+)\.(?:conv|bn)(\d)", name))]
    if not blocks:
        return "resnet50"
    counts = [1 + max(int(m[2]) for m in blocks if int(m[1]) == stage) for stage in (1, 2, 3, 4)]
    kind = "bottleneck" if any(m[3] == "3" for m in blocks) else "basic"
    return f"resnet_{kind}_{'-'.join(map(str, counts))}"


def _model(trainable: list[str]) -> nn.Module:
    """A ResNet (frozen if no name is its) and heads, whose layers are told by the recorded names."""
    with torch.device("meta"):
        backbone = build(resnet_with(name for name in trainable if name.startswith("backbone."))).module
    model = nn.Module()
    model.backbone = backbone
    backbone.requires_grad_(any(name.startswith("backbone.") for name in trainable))
    for name in trainable:
        if name.startswith("heads."):
            *path, leaf = name.split(".")
            _place(model, path, leaf, trainable)
    return model


def _place(model: nn.Module, path: list[str], leaf: str, names: list[str]) -> None:
    """Puts a layer that has the parameter there: BatchNorm where the reference has it, else Linear.

    In a Sequential of Linear, BatchNorm and ReLU the layer right behind one with weights is a BatchNorm.
    """
    *above, last = path
    behind = last.isdigit() and int(last) > 0 and ".".join([*above, str(int(last) - 1), "weight"]) in names
    for part in above:
        if not hasattr(model, part):
            model.add_module(part, nn.Module())
        model = getattr(model, part)
    is_norm = last == "channel_bn" or (behind and "prototypes" not in last and len(above) > 2)
    if not hasattr(model, last):
        model.add_module(last, nn.BatchNorm1d(3) if is_norm else nn.Linear(3, 3, bias="prototypes" not in last))
    assert hasattr(getattr(model, last), leaf)


PATTERNS = {
    "03_larc_lars/*": trajectory,
    "11_models_params/param_groups/*": groups,
}
