"""ResNet-50 features at VISSL's layers, with weights that a recipe gives."""

import hashlib

import numpy as np
import torch
from golden_cases import Case

from sslbench.backbones.build import build
from sslbench.backbones.layers import forward_layers, resolve_layers

_LAYERS = ("conv1", "res2", "res3", "res4", "res5", "res5avg")


def resnet50_features(case: Case) -> None:
    args, seed = case.meta["args"], int(case.inputs()["image_seed"])
    backbone = build("resnet50")
    with torch.no_grad():
        for name, tensor in backbone.module.state_dict().items():
            tensor.copy_(torch.from_numpy(np.asarray(recipe(name, tuple(tensor.shape), args["salt"]))))
    image = np.random.RandomState(seed).standard_normal((2, 3, args["size"], args["size"])).astype(np.float32)
    names = [layer if layer == "res5avg" else f"{layer}:vissl" for layer in _LAYERS]
    layers = resolve_layers(backbone, names)
    with torch.inference_mode():
        features = forward_layers(backbone.module.eval(), torch.from_numpy(image), layers)
    wanted = case.expected()
    for name, layer in zip(_LAYERS, layers, strict=True):
        values = features[layer.text].numpy()
        shape = wanted[f"{name}/shape"]
        assert values.shape == (shape[0], np.prod(shape[1:]))
        size = float(wanted[f"{name}/abs_mean"])
        np.testing.assert_allclose(np.abs(values).mean(dtype=np.float64), size, rtol=1e-4)
        np.testing.assert_allclose(values.sum(dtype=np.float64), wanted[f"{name}/sum"], rtol=1e-4)
        np.testing.assert_allclose(values[:, :64], wanted[f"{name}/first64"], rtol=1e-4, atol=1e-4 * size)


def recipe(name: str, shape: tuple[int, ...], salt: str) -> np.ndarray:
    """The values of one tensor from its name (golden topic 08, meta.json)."""
    seed = int(hashlib.sha256((salt + name).encode()).hexdigest()[:8], 16)
    if name.endswith("num_batches_tracked"):
        return np.array(seed % 1000, dtype=np.int64)
    values = (np.random.RandomState(seed).standard_normal(shape) * 0.05).astype(np.float32)
    return np.abs(values) + np.float32(0.5) if name.endswith("running_var") else values
