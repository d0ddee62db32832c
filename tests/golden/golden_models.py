"""Features of ResNets at VISSL's layers with weights that a recipe gives, and VISSL's linear heads."""

import ast
import dataclasses
import hashlib
from typing import Any

import numpy as np
import torch
from golden_cases import Case, option
from golden_losses import not_offered

from sslbench import config
from sslbench.backbones.alexnet import SPECS
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.build import build
from sslbench.backbones.layer_spec import parse_pool
from sslbench.backbones.layers import Layer, forward_layers, resolve_layers
from sslbench.library.presets import load_preset
from sslbench.protocols import linear_online
from sslbench.protocols.linear_online.run import make_heads, planned


def resnet_features(case: Case) -> None:
    """Compare pooled features; the case says the depth (in its name), the size, the layers and their pools."""
    args, given, wanted = case.args, case.inputs(), case.expected()
    name, _, size = case.name.partition("_features")
    backbone = build(option(args, "arch", default=name))
    with torch.no_grad():
        for key, tensor in backbone.module.state_dict().items():
            tensor.copy_(
                torch.from_numpy(np.asarray(recipe(key, tuple(tensor.shape), option(args, "salt", default=""))))
            )
    size = option(args, "size", default=int(size.strip("_") or 224))
    drawn = np.random.RandomState(int(given.get("image_seed", 0))).standard_normal((2, 3, size, size))
    image = given.get("image", drawn).astype(np.float32)
    written = dict(option(args, "pool_ops", default=[]))
    names = list(dict.fromkeys(key.rpartition("/")[0] for key in wanted))
    assert names
    pools = {name: _pool(written.get(name, ("Identity", []))) for name in names}
    ours = {} if case.name.startswith("alexnet") else {"flatten": "res5avg"}  # the same numbers in a ResNet
    layers = resolve_layers(backbone, [_with_pool(ours.get(name, name), *pools[name]) for name in names])
    with torch.inference_mode():
        features = forward_layers(backbone.module.eval(), torch.from_numpy(image), layers)
    for name, layer in zip(names, layers, strict=True):
        values = features[layer.text].numpy()
        mean = np.abs(values).mean(dtype=np.float64)
        recorded = {key.rpartition("/")[2]: value for key, value in wanted.items() if key.rpartition("/")[0] == name}
        for key, value in recorded.items():
            if key == "shape":
                assert values.shape == (value[0], np.prod(value[1:]))
            elif key == "abs_mean":
                np.testing.assert_allclose(mean, float(value), rtol=1e-4)
            elif key == "sum":
                np.testing.assert_allclose(
                    values.sum(dtype=np.float64), value, rtol=1e-4, atol=1e-6 * mean * values.size
                )
            else:
                assert key.startswith("first"), key
                first = values[:, : value.shape[1]]
                np.testing.assert_allclose(first, value, rtol=1e-4, atol=1e-4 * mean)


def _pool(written: Any) -> tuple[str, list]:
    """Return kind and arguments of a pool, which may be recorded as text."""
    kind, arguments = ast.literal_eval(written) if isinstance(written, str) else written
    return kind, arguments


def _with_pool(name: str, kind: str, arguments: list) -> str:
    """A recorded layer and pool in our words: 'res5:avg(6,1,0)'."""
    if kind == "Identity":
        return f"{name}:flatten"
    if kind == "AdaptiveAvgPool2d":
        height, width = arguments[0] if isinstance(arguments[0], list) else (arguments[0], arguments[0])
        return f"{name}:adaptive({height},{width})"
    assert kind == "AvgPool2d", kind
    numbers = [value[0] if isinstance(value, list) else value for value in arguments]
    return f"{name}:avg({','.join(map(str, numbers))})"


def linear_heads(case: Case) -> None:
    """Compare VISSL's heads on pooled layers with ours: inputs, channels, normalisation and parameters.

    Of ResNets the pools are those of the preset `linear/vissl` where all of its layers are recorded; of AlexNets those
    of a variant.
    """
    recorded = case.expected_json()
    heads, pools = recorded.get("head_params") or [], [(name, _pool(op)) for name, op in recorded["feat_pool_ops"]]
    if not pools:
        not_offered("heads of pretraining as those of a linear evaluation")
    alexnet = "conv2" in dict(pools)
    with torch.device("meta"):
        backbone = build("alexnet_bvlc" if alexnet else "resnet50")
    layers = [resolve_layers(backbone, [_with_pool(name, *pool)])[0] for name, pool in pools]
    preset = load_preset("linear/vissl")
    standard = [{name: str(parse_pool(pool)) for name, pool in spec.pools.items()} for spec in SPECS.values()]
    if not alexnet:
        ours = resolve_layers(backbone, preset.layers)
        standard = [{layer.text.partition(":")[0]: str(layer.pool) for layer in ours if layer.pool is not None}]
    pooled = {name: str(layer.pool) for (name, pool), layer in zip(pools, layers, strict=True) if pool[0] != "Identity"}
    if pooled.keys() >= standard[0].keys():
        assert pooled in standard
    settings = config.build(linear_online.Settings, preset.settings, preset.name)
    state, modules = recorded.get("heads_state", {}), recorded.get("heads_modules", {})
    for number, ((kind, arguments), layer) in enumerate(zip(heads, layers[: len(heads)], strict=True)):
        assert kind in ("eval_mlp", "mlp") and len(arguments["dims"]) == 2
        normalised = kind == "eval_mlp"
        own = dataclasses.replace(settings, plain_layers=(), norm="affine" if normalised else "none")
        (plan,) = planned(backbone, [layer], own)
        (bank,) = make_heads(
            [plan], {layer.text: _width(layer)}, 3, own, seed=0, device=torch.device("cpu")
        ).all_banks()
        width, classes = arguments["dims"]
        assert list(bank.weight.shape[1:]) == [3, width] and list(bank.bias.shape[1:]) == [3]
        assert bank.norm == own.norm
        prefix = f"{number}.clf.clf.0" if normalised else f"{number}.clf.0"
        for leaf, shape in (("weight", [classes, width]), ("bias", [classes])):
            assert state.get(f"{prefix}.{leaf}", shape) == shape
        if normalised:
            assert bank.channels == arguments["in_channels"]
            norm = {"weight": bank.scale[0], "bias": bank.shift[0], "running_mean": bank.running_mean}
            for theirs, ours in norm.items():
                assert state.get(f"{number}.channel_bn.{theirs}", list(ours.shape)) == list(ours.shape)
            said = modules.get(f"{number}.channel_bn", f"eps={own.norm_eps:g}, momentum=0.1, affine=True")
            assert f"eps={own.norm_eps:g}" in said and "momentum=0.1, affine=True" in said
    _check_order(backbone, [kind == "eval_mlp" for kind, _ in heads], layers[: len(heads)], settings)


def _check_order(
    backbone: Backbone, normalised: list[bool], layers: list[Layer], settings: linear_online.Settings
) -> None:
    """Check that ours trains these heads together, in the same order, where plain ones repeat normalised layers."""
    texts = [layer.text for layer in layers]
    plain = [text for text, norm in zip(texts, normalised, strict=True) if not norm]
    if any(normalised) and set(plain) <= {text for text, norm in zip(texts, normalised, strict=True) if norm}:
        own = dataclasses.replace(settings, plain_layers=tuple(plain), norm="affine")
        plans = planned(backbone, list({layer.text: layer for layer in layers}.values()), own)
        assert [(plan.input.name, plan.norm == "affine") for plan in plans] == list(zip(texts, normalised, strict=True))


_SIDES = {
    "conv1": 112, "res2": 56, "res3": 28, "res4": 14, "res5": 7, "res5avg": 1, "flatten": 1,
    "alexnet conv1": 55, "alexnet conv2": 27, "alexnet conv3": 13, "alexnet conv4": 13, "alexnet conv5": 13,
}  # fmt: skip
_CHANNELS = {
    "conv1": 64, "res2": 256, "res3": 512, "res4": 1024, "res5": 2048, "res5avg": 2048, "flatten": 2048,
    "alexnet conv1": 96, "alexnet conv2": 256, "alexnet conv3": 384, "alexnet conv4": 384, "alexnet conv5": 256,
}  # fmt: skip


def _width(layer: Layer) -> tuple[int, int]:
    """(features, channels) of a layer of ResNet-50 at 224 or AlexNet at 227 pixels, by the formula for pooled maps."""
    name = layer.text.partition(":")[0]
    key = f"alexnet {name}" if layer.path.startswith("features") else name
    side, channels = _SIDES[key], _CHANNELS[key]
    if layer.pool is None or layer.pool.name == "flatten":
        return channels * side**2, channels
    numbers = [*map(int, layer.pool.arguments)]
    if layer.pool.name == "adaptive":
        return channels * numbers[0] * numbers[1], channels
    kernel, stride, padding = [*numbers, 0][:3]
    return channels * ((side + 2 * padding - kernel) // stride + 1) ** 2, channels


def recipe(name: str, shape: tuple[int, ...], salt: str) -> np.ndarray:
    """The values of one tensor from its name (golden topic 08, meta.json)."""
    seed = int(hashlib.sha256((salt + name).encode()).hexdigest()[:8], 16)
    if name.endswith("num_batches_tracked"):
        return np.array(seed % 1000, dtype=np.int64)
    values = (np.random.RandomState(seed).standard_normal(shape) * 0.05).astype(np.float32)
    return np.abs(values) + np.float32(0.5) if name.endswith("running_var") else values


PATTERNS = {
    "11_models_params/[!lp]*_features*": resnet_features,
    "11_models_params/linear_heads/*": linear_heads,
}
