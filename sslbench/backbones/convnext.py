"""Recognition of ConvNeXt and ConvNeXt V2 by the names and shapes of their tensors."""

import re
from collections.abc import Mapping

from sslbench.weights.reading.model_config import NO_CONFIG, ModelConfig

_PUBLISHED: Mapping[tuple[tuple[int, ...], tuple[int, ...]], str] = {
    ((2, 2, 6, 2), (40, 80, 160, 320)): "atto",
    ((2, 2, 6, 2), (48, 96, 192, 384)): "femto",
    ((2, 2, 6, 2), (64, 128, 256, 512)): "pico",
    ((2, 2, 8, 2), (80, 160, 320, 640)): "nano",
    ((3, 3, 9, 3), (96, 192, 384, 768)): "tiny",
    ((3, 3, 27, 3), (96, 192, 384, 768)): "small",
    ((3, 3, 27, 3), (128, 256, 512, 1024)): "base",
    ((3, 3, 27, 3), (192, 384, 768, 1536)): "large",
    ((3, 3, 27, 3), (256, 512, 1024, 2048)): "xlarge",
    ((3, 3, 27, 3), (352, 704, 1408, 2816)): "huge",
    ((3, 4, 30, 3), (384, 768, 1536, 3072)): "xxlarge",
}
"""(blocks, width) of each stage -> timm's word."""
_SECOND_ONLY, _FIRST_ONLY = ("huge",), ("xlarge", "xxlarge")
_CONVOLUTIONS = ("atto", "femto", "pico", "nano")
"""Sizes whose MLP consists of 1x1 convolutions in timm, and of linear layers in its authors' files."""
_OF_TESTS = (24, 32, 48, 64)
"""Widths of timm's network for its own tests, which has another activation."""
_EPS = 1e-6
"""Of the norms in timm's networks."""
_KNOWN = re.compile(
    r"(?:stem\.[01]|stages\.\d+\.downsample\.[01]|head\.norm)\.(?:weight|bias)|"
    r"stages\.\d+\.blocks\.\d+\.(?:gamma|(?:conv_dw|norm|mlp\.fc[12]|mlp\.grn)\.(?:weight|bias))"
)


def recognise_convnext(
    shapes: Mapping[str, tuple[int, ...]], config: ModelConfig = NO_CONFIG, weights: str = ""
) -> str | None:
    """Return the name, for `--backbone`, of the ConvNeXt with these tensors; None for other networks.

    >>> recognise_convnext({"conv1.weight": (64, 3, 7, 7)})

    Args:
        shapes: canonical name -> shape, without the classifier.
        config: configuration beside the file.
        weights: name of the file.

    Raises:
        BackboneError: the configuration is of another network.
    """
    stem, blocks = shapes.get("stem.0.weight", ()), dict[int, int]()
    if len(stem) != 4 or "head.norm.bias" not in shapes or not all(_KNOWN.fullmatch(name) for name in shapes):
        return None
    for name in shapes:
        if found := re.match(r"stages\.(\d+)\.blocks\.(\d+)\.", name):
            blocks[int(found[1])] = max(blocks.get(int(found[1]), 0), int(found[2]) + 1)
    depths = tuple(blocks[stage] for stage in sorted(blocks))
    dims = tuple(shapes.get(f"stages.{stage}.blocks.0.conv_dw.weight", (0,))[0] for stage in sorted(blocks))
    first = shapes.get("stages.0.blocks.0.mlp.fc1.weight", ())
    second = "stages.0.blocks.0.mlp.grn.weight" in shapes
    if dims == _OF_TESTS:
        return None
    word = _PUBLISHED.get((depths, dims), "")
    if len(depths) != 4 or word in (_FIRST_ONLY if second else _SECOND_ONLY):
        word = ""
    options: dict[str, object] = {}
    if not word:
        options |= {"depths": "-".join(map(str, depths)), "dims": "-".join(map(str, dims))}
    if (len(first) == 4) != (word in _CONVOLUTIONS):
        options["conv_mlp"] = len(first) == 4
    if ("stages.0.blocks.0.gamma" in shapes) == second:
        options["ls_init_value"] = None if not second else 1e-6
    if stem[2] != 4:
        options["patch_size"] = stem[2]
    if stem[1] != 3:
        options["in_chans"] = stem[1]
    options |= _told(config)
    base = f"convnext{'v2' if second else ''}_{word or 'tiny'}"
    name = f"timm:{base}" + "".join(f",{key}={value}" for key, value in options.items())
    shown = {
        "model_type": frozenset(("convnextv2",) if second else ("convnext", "dinov3_convnext")),
        "num_channels": stem[1],
        "patch_size": stem[2],
        "num_stages": 4,
        "hidden_sizes": dims,
        "depths": depths,
    }
    config.compare(shown, weights, name)
    return name


def _told(config: ModelConfig) -> dict[str, object]:
    """Return the options that no tensor shows."""
    options: dict[str, object] = {}
    if config.activation not in ("", "gelu"):
        options["act_layer"] = config.activation
    if (eps := config.number("layer_norm_eps")) not in (None, _EPS):
        # Of transformers' ConvNeXts, only DINOv3's has the number of the configuration in all norms.
        every = config.fields.get("model_type") == "dinov3_convnext"
        options["norm_eps" if every else "head_norm_eps"] = eps
    return options
