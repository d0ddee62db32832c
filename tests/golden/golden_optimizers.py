"""Steps of LARS and LARC, and parameter groups, as VISSL, solo-learn and DINO make them."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from golden_cases import Case, option
from golden_losses import not_offered, recorded_precisions
from torch import nn

from sslbench.backbones.build import build
from sslbench.train.optimizers.larc import LARC
from sslbench.train.optimizers.lars import LARS
from sslbench.train.optimizers.optimizer import OptimizerSettings
from sslbench.train.parameter_groups import parameter_groups

_TOLERANCES = {"f32": {"rtol": 2e-6, "atol": 1e-7}, "f64": {"rtol": 1e-12, "atol": 1e-15}}


def trajectory(case: Case) -> None:
    """Compare parameters and momentum after each of some updates by given gradients."""
    given, wanted = case.inputs(), case.expected()
    names = [key.removeprefix("p0/") for key in given if key.startswith("p0/")]
    precisions = recorded_precisions(case)
    assert names and precisions
    for precision, dtype in precisions.items():
        params = {name: nn.Parameter(torch.tensor(given[f"p0/{name}"], dtype=dtype)) for name in names}
        optimizer, compared = _optimizer(case, params)
        steps = len({key.partition("/")[0] for key in given if key.startswith("grad")})
        rates = np.broadcast_to(given.get("lr", option(case.args, "lr", default=0.1)), steps)
        for i, lr in enumerate(rates):
            for name, parameter in params.items():
                gradient = given.get(f"grad{i}/{name}")
                parameter.grad = None if gradient is None else torch.tensor(gradient, dtype=dtype)
            for group in optimizer.param_groups:
                group["lr"] = float(lr)
            optimizer.step()
            for name in compared:
                recorded = wanted.get(f"{precision}/p{i + 1}/{name}")
                if recorded is not None:
                    np.testing.assert_allclose(params[name].detach(), recorded, **_TOLERANCES[precision])
                recorded = wanted.get(f"{precision}/mom{i + 1}/{name}")
                if recorded is not None and optimizer.defaults["momentum"]:  # else ours keeps no buffer
                    buffer = optimizer.state[params[name]]["momentum_buffer"]
                    np.testing.assert_allclose(buffer, recorded, **_TOLERANCES[precision])


def _optimizer(case: Case, params: Mapping[str, nn.Parameter]) -> tuple[LARS, list[str]]:
    """Return ours with the options of a case, and the names of the parameters to compare.

    LARC is a wrapper of torch's SGD; its options and those of the three LARS have defaults of their own. Of these,
    ours excludes numbers too, which have no dimension, where it excludes what has one.
    """
    args, text = case.args, f"{case.name} {case.call}"
    larc, solo = "larc" in text.lower(), case.is_of("solo") or "solo" in case.name
    dino = case.is_of("facebookresearch/dino@") or case.name.startswith("dino")
    if option(args, "dampening", default=0):
        not_offered("momentum with dampening")
    options: dict[str, Any] = {
        "momentum": option(args, "momentum", default=0.0 if larc or solo else 0.9),
        "nesterov": option(args, "nesterov", default=False),
        "weight_decay": option(args, "weight_decay", default=0.0),
        "trust_coefficient": option(args, "trust_coefficient", "eta", default=0.02 if larc else 0.001),
        "clip": option(args, "clip", "clip_lr", default=larc),
        "eps": option(args, "eps", default=1e-8),
        "denominator": "separate" if larc or solo else "joint",
        "exclude_1d": dino or option(args, "exclude_bias_and_norm", "exclude_bias_n_norm", default=False),
        "decay_1d": not (dino or solo),
    }
    compared = [name for name, p in params.items() if p.dim() or not options["exclude_1d"]]
    groups: list[dict[str, Any]] = [{"params": list(params.values())}]
    if "groups" in text or "wd 0 on 1-D" in text:
        flat = [p for p in params.values() if p.dim() <= 1]
        groups = [{"params": [p for p in params.values() if p.dim() > 1]}, {"params": flat, "weight_decay": 0.0}]
    return (LARC if larc else LARS)([group for group in groups if group["params"]], 0.0, **options), compared


def groups(case: Case) -> None:
    """Compare rate and weight decay of every parameter with VISSL's groups.

    What `non_regularized_parameters` names has the rate of the backbone there, in the head too; in ours it has not.
    """
    recorded = case.expected_json()
    options = option(recorded, "optimizer", default={})
    weight_decay = option(options, "weight_decay", default=1e-4)
    of_head = {group["lr"] for group in recorded["groups"]} & {"LR_HEAD"}
    # The rates are recorded as LR and LR_HEAD: any factor that is not 1 tells them apart.
    factor = recorded.get("head_lr_factor", 0.25 if of_head else 1.0)
    wanted: dict[str, tuple[str, float]] = {}
    for group in recorded["groups"]:
        assert group["lr"] in ("LR", "LR_HEAD")
        for name in group["names"]:
            wanted.setdefault(
                _our_name(name), (group["lr"], float(option(group, "weight_decay", default=weight_decay)))
            )
    settings = OptimizerSettings(
        weight_decay=weight_decay,
        head_weight_decay=option(recorded, "head_wd", default=weight_decay),
        head_lr_factor=factor,
        decay_norm=option(options, "regularize_bn", default=False),
        decay_bias=option(options, "regularize_bias", default=True),
        no_decay=tuple(option(options, "non_regularized_parameters", default=())),
    )
    ours = parameter_groups(_model(list(wanted)), settings)
    assert sorted(name for group in ours for name in group["names"]) == sorted(wanted)
    for group in ours:
        own = settings.weight_decay if group["own_weight_decay"] is None else group["own_weight_decay"]
        for name in group["names"]:
            rate, decay = wanted[name]
            assert own * group["weight_decay_factor"] == decay, name
            if name.startswith("backbone.") or rate == "LR_HEAD" or not of_head:
                assert group["lr_factor"] == (factor if rate == "LR_HEAD" else 1.0), name


def _our_name(name: str) -> str:
    return re.sub(r"^trunk\.(_feature_blocks\.)?", "backbone.", name)


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
    """Return a module of the recorded parameters: a ResNet, frozen where no name is its, or others, and heads."""
    backbone = [name for name in trainable if name.startswith("backbone.")]
    model, resnet = nn.Module(), all(re.match(r"backbone\.(conv1|bn1|layer[1-4])\.", name) for name in backbone)
    if resnet:
        with torch.device("meta"):
            model.backbone = build(resnet_with(backbone)).module
        for name, parameter in model.backbone.named_parameters():
            parameter.requires_grad_(f"backbone.{name}" in backbone)
    for name in trainable:
        if not resnet or name not in backbone:
            _place(model, name, trainable)
    return model


def _place(model: nn.Module, name: str, names: list[str]) -> None:
    """Put a parameter there: in a normalisation layer where the reference has one.

    Its name tells; in a Sequential of Linear, BatchNorm and ReLU the layer right behind one with weights is one.
    """
    *path, leaf = name.split(".")
    *above, last = path
    behind = last.isdigit() and int(last) > 0 and ".".join([*above, str(int(last) - 1), "weight"]) in names
    is_norm = bool(re.search(r"norm|bn\d*$", last)) or (behind and "prototypes" not in last and len(above) > 2)
    for part in above:
        if not hasattr(model, part):
            model.add_module(part, nn.Module())
        model = getattr(model, part)
    if not hasattr(model, last):
        model.add_module(last, nn.BatchNorm1d(3, affine=False) if is_norm else nn.Module())
    shape = (3,) if is_norm or leaf == "bias" else (3, 3)
    setattr(getattr(model, last), leaf, nn.Parameter(torch.zeros(shape)))


PATTERNS = {
    "03_larc_lars/*": trajectory,
    "11_models_params/param_groups/*": groups,
}
