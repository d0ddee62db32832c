"""Features of ResNets at VISSL's layers with weights that a recipe gives, and VISSL's linear heads."""

import ast
import dataclasses
import hashlib

import numpy as np
import torch
from golden_cases import Case

from sslbench import config
from sslbench.backbones.build import build
from sslbench.backbones.layers import Layer, forward_layers, resolve_layers
from sslbench.library.presets import load_preset
from sslbench.protocols import linear_online
from sslbench.protocols.linear_online.plan import make_heads, planned


def resnet_features(case: Case) -> None:
    """Compare pooled features; the case says the depth (in its name), the size, the layers and their pools."""
    args, seed, wanted = case.meta["args"], int(case.inputs()["image_seed"]), case.expected()
    backbone = build(args.get("arch", case.name.partition("_features")[0]))
    with torch.no_grad():
        for name, tensor in backbone.module.state_dict().items():
            tensor.copy_(torch.from_numpy(np.asarray(recipe(name, tuple(tensor.shape), args["salt"]))))
    image = np.random.RandomState(seed).standard_normal((2, 3, args["size"], args["size"])).astype(np.float32)
    pools = {name: ast.literal_eval(pool) if isinstance(pool, str) else pool for name, pool in args["pool_ops"]}
    names = [name.removesuffix("/shape") for name in wanted if name.endswith("/shape")]
    layers = resolve_layers(backbone, [_with_pool(name, *pools[name]) for name in names])
    with torch.inference_mode():
        features = forward_layers(backbone.module.eval(), torch.from_numpy(image), layers)
    for name, layer in zip(names, layers, strict=True):
        values = features[layer.text].numpy()
        shape = wanted[f"{name}/shape"]
        assert values.shape == (shape[0], np.prod(shape[1:]))
        size = float(wanted[f"{name}/abs_mean"])
        np.testing.assert_allclose(np.abs(values).mean(dtype=np.float64), size, rtol=1e-4)
        np.testing.assert_allclose(values.sum(dtype=np.float64), wanted[f"{name}/sum"], rtol=1e-4)
        np.testing.assert_allclose(values[:, :64], wanted[f"{name}/first64"], rtol=1e-4, atol=1e-4 * size)


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
    """VISSL's heads on pooled layers: what the preset `linear/vissl` trains has the same layers, pools and shapes.

    A recorded head without BatchNorm is one of the preset's plain layers; heads are taken in the recorded order.
    """
    recorded = case.expected_json()
    backbone = build("resnet50")
    preset = load_preset("linear/vissl")
    settings = config.build(linear_online.Settings, preset.settings, preset.name)
    _check_pools(resolve_layers(backbone, preset.layers), recorded["feat_pool_ops"])
    assert recorded["trunk_trainable"] is False
    if not recorded["head_params"]:  # an SVM's: features only
        return
    both = zip(recorded["head_params"], recorded["feat_pool_ops"], strict=True)
    kinds = [(kind, name) for (kind, _), (name, _) in both]
    asked = [name for kind, name in kinds if kind == "eval_mlp"]
    texts = {layer.partition(":")[0]: layer for layer in preset.layers}
    layers = resolve_layers(backbone, [texts[name] for name in dict.fromkeys(name for _, name in kinds)])
    plain = tuple(name for kind, name in kinds if kind != "eval_mlp")
    settings = dataclasses.replace(settings, plain_layers=plain if asked else (), norm="affine" if asked else "none")
    plans = planned(backbone, layers, settings)
    assert len(plans) == len(recorded["head_params"])
    shapes = {layer.text: _width(layer) for layer in layers}
    classes = recorded["head_params"][0][1]["dims"][-1]
    heads = make_heads(plans, shapes, classes, settings, seed=0, device=torch.device("cpu"))
    state = recorded["heads_state"]
    for number, bank in enumerate(heads.all_banks()):
        kind, arguments = recorded["head_params"][number]
        prefix = f"{number}.clf.clf.0" if kind == "eval_mlp" else f"{number}.clf.0"
        assert [bank.weight.shape[2], bank.weight.shape[1]] == arguments["dims"]
        assert list(bank.weight.shape[1:]) == state[f"{prefix}.weight"]
        assert list(bank.bias.shape[1:]) == state[f"{prefix}.bias"]
        assert bank.norm == ("affine" if kind == "eval_mlp" else "none")
        if kind == "eval_mlp":
            assert bank.channels == arguments["in_channels"]
            for ours, theirs in (("scale", "weight"), ("shift", "bias")):
                assert list(getattr(bank, ours).shape[1:]) == state[f"{number}.channel_bn.{theirs}"]
            assert list(bank.running_mean.shape) == state[f"{number}.channel_bn.running_mean"]
            said = recorded["heads_modules"][f"{number}.channel_bn"]
            assert f"eps={settings.norm_eps:g}" in said and "momentum=0.1, affine=True" in said


def _check_pools(layers: tuple[Layer, ...], recorded: list) -> None:
    """The pools of a recorded list, in which a layer stands once per head."""
    ours = {layer.text.partition(":")[0]: layer.pool for layer in layers}
    for name, (kind, arguments) in recorded:
        if kind == "Identity":
            assert ours[name] is None
            continue
        (kernel, _), stride, padding = arguments
        assert kind == "AvgPool2d" and ours[name] is not None
        assert (ours[name].name, [*ours[name].arguments, 0][:3]) == ("avg", [kernel, stride, padding])


def _width(layer: Layer) -> tuple[int, int]:
    """(features, channels) of a layer of ResNet-50 at 224 pixels, by the formula for pooled maps."""
    name = layer.text.partition(":")[0]
    side = {"conv1": 112, "res2": 56, "res3": 28, "res4": 14, "res5": 7, "res5avg": 1}[name]
    channels = {"conv1": 64, "res2": 256, "res3": 512, "res4": 1024, "res5": 2048, "res5avg": 2048}[name]
    if layer.pool is None:
        return channels, channels
    kernel, stride, padding = [*map(int, layer.pool.arguments), 0][:3]
    return channels * ((side + 2 * padding - kernel) // stride + 1) ** 2, channels


def recipe(name: str, shape: tuple[int, ...], salt: str) -> np.ndarray:
    """The values of one tensor from its name (golden topic 08, meta.json)."""
    seed = int(hashlib.sha256((salt + name).encode()).hexdigest()[:8], 16)
    if name.endswith("num_batches_tracked"):
        return np.array(seed % 1000, dtype=np.int64)
    values = (np.random.RandomState(seed).standard_normal(shape) * 0.05).astype(np.float32)
    return np.abs(values) + np.float32(0.5) if name.endswith("running_var") else values


PATTERNS = {
    "11_models_params/resnet*_features*": resnet_features,
    "11_models_params/linear_heads/*": linear_heads,
}
