"""Recognition of Swin Transformers and Swin Transformers V2 by the names and shapes of their tensors."""

import math
import re
from collections.abc import Mapping

from sslbench.backbones.vit.recognise import UNKNOWN, mlp_ratio
from sslbench.errors import BackboneError
from sslbench.weights.reading.model_config import NO_CONFIG, ModelConfig

_PUBLISHED: Mapping[tuple[int, tuple[int, ...]], str] = {
    (96, (2, 2, 6, 2)): "tiny",
    (96, (2, 2, 18, 2)): "small",
    (128, (2, 2, 18, 2)): "base",
    (192, (2, 2, 18, 2)): "large",
}
"""(width, blocks of each stage) -> timm's word."""
_HEAD = 32
"""Dimensions of a head in published networks."""
_EPS = 1e-5
"""Of the norms in timm's networks."""
_KNOWN = re.compile(
    r"(?:patch_embed\.(?:proj|norm)|norm|layers\.\d+\.downsample\.(?:norm|reduction))\.(?:weight|bias)|"
    r"layers\.\d+\.blocks\.\d+\.(?:(?:norm[12]|attn\.(?:qkv|proj)|mlp\.fc[12])\.(?:weight|bias)|"
    r"attn\.(?:relative_position_bias_table|logit_scale|[qv]_bias|cpb_mlp\.[02]\.(?:weight|bias)))"
)


def recognise_swin(
    shapes: Mapping[str, tuple[int, ...]], config: ModelConfig = NO_CONFIG, weights: str = ""
) -> str | None:
    """Return the name, for `--backbone`, of the Swin Transformer with these tensors; None for other networks.

    >>> recognise_swin({"conv1.weight": (64, 3, 7, 7)})

    Args:
        shapes: canonical name -> shape, without the classifier.
        config: configuration beside the file, which says the windows of a V2 and the size of the images.
        weights: name of the file.

    Raises:
        BackboneError: the configuration is of another network, or there is none and the windows do not show; or the
            windows do not fill the images.
    """
    stem, blocks = shapes.get("patch_embed.proj.weight", ()), dict[int, int]()
    if len(stem) != 4 or "norm.weight" not in shapes or not all(_KNOWN.fullmatch(name) for name in shapes):
        return None
    for name in shapes:
        if found := re.match(r"layers\.(\d+)\.blocks\.(\d+)\.", name):
            blocks[int(found[1])] = max(blocks.get(int(found[1]), 0), int(found[2]) + 1)
    first = [f"layers.{stage}.blocks.0.attn." for stage in sorted(blocks)]
    second = "layers.0.blocks.0.attn.logit_scale" in shapes
    width, depths = stem[0], tuple(blocks[stage] for stage in sorted(blocks))
    tables = [shapes.get(f"{start}relative_position_bias_table", (0, 0)) for start in first]
    heads = tuple(shapes[f"{start}logit_scale"][0] for start in first) if second else tuple(t[1] for t in tables)
    hidden = shapes.get("layers.0.blocks.0.mlp.fc1.weight", ())
    if not depths or not hidden or not all(heads):
        return None
    told = config.count("window_size")
    window = told if second else (math.isqrt(tables[0][0]) + 1) // 2
    image = config.count("image_size") or (384 if window == 12 else 224 if window == 7 else None)
    bias = "layers.0.blocks.0.attn.q_bias" if second else "layers.0.blocks.0.attn.qkv.bias"
    word = _PUBLISHED.get((width, depths), "")
    base = f"swin{'v2' if second else ''}_{word or 'tiny'}_{'window8_256' if second else 'patch4_window7_224'}"
    usual = (256, 8) if second else (224, 7)
    options: dict[str, object] = {"img_size": image or UNKNOWN} if image != usual[0] else {}
    options |= {"window_size": window or UNKNOWN} if window != usual[1] else {}
    options |= {"patch_size": stem[2]} if stem[2] != 4 else {}
    options |= {"in_chans": stem[1]} if stem[1] != 3 else {}
    options |= {} if word else {"embed_dim": width, "depths": _dashed(depths)}
    if not word or heads != tuple(width * 2**stage // _HEAD for stage in range(len(depths))):
        options["num_heads"] = _dashed(heads)
    options |= {"mlp_ratio": mlp_ratio(hidden[0], width)} if hidden[0] != 4 * width else {}
    options |= {"qkv_bias": False} if bias not in shapes else {}
    trained = config.fields.get("pretrained_window_sizes")
    if second and isinstance(trained, list) and any(trained):
        options["pretrained_window_sizes"] = _dashed(trained)
    if second and config.activation not in ("", "gelu"):
        options["act_layer"] = config.activation
    name = f"timm:{base}" + "".join(f",{key}={value}" for key, value in options.items())
    if window is None or image is None:
        beside = f"its {config.path.name} does not say" if config.path else "no config.json is beside them"
        raise BackboneError(
            f"{weights}: the windows of a Swin Transformer or the size of its images are not visible in the tensors, "
            f"and {beside}",
            f"Put the model's config.json beside the file, or give the numbers of its training: --backbone {name}",
        )
    cells = [image // stem[2] // 2**stage for stage in range(len(depths))]
    if padded := [side for side in cells if side > window and side % window]:
        raise BackboneError(
            f"{weights}: its windows of {window} cells do not fill the {padded[0]}x{padded[0]} cells of an image of "
            f"{image} pixels, and timm fills up another way than transformers",
            f"For the features of timm, name it: --backbone {name}",
        )
    _check(shapes, config, weights, name, heads=heads, depths=depths, window=window)
    return name


def _dashed(numbers: tuple[int, ...] | list[int]) -> str:
    return "-".join(map(str, numbers))


def _check(
    shapes: Mapping[str, tuple[int, ...]],
    config: ModelConfig,
    weights: str,
    name: str,
    *,
    heads: tuple[int, ...],
    depths: tuple[int, ...],
    window: int,
) -> None:
    """Refuse a configuration of another network, or of one that timm does not have."""
    stem, second = shapes["patch_embed.proj.weight"], "layers.0.blocks.0.attn.logit_scale" in shapes
    shown = {
        "model_type": frozenset(("swinv2",) if second else ("swin",)),
        "num_channels": stem[1],
        "patch_size": stem[2],
        "embed_dim": stem[0],
        "depths": depths,
        "num_heads": heads,
        "window_size": window,
        "mlp_ratio": config.ratio(stem[0], shapes["layers.0.blocks.0.mlp.fc1.weight"][0]),
        "qkv_bias": ("layers.0.blocks.0.attn.q_bias" if second else "layers.0.blocks.0.attn.qkv.bias") in shapes,
    }
    config.compare(shown, weights, name)
    only = {"layer_norm_eps": _EPS, "use_absolute_embeddings": False}
    config.require(only if second else {**only, "hidden_act": "gelu"})
