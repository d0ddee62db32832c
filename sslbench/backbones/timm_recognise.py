"""Recognition of RegNets, ConvNeXts and Swin Transformers, as timm's models, by names and shapes of their tensors."""

import math
import re
from collections.abc import Mapping

from sslbench.backbones.vit_recognise import UNKNOWN, mlp_ratio
from sslbench.errors import BackboneError
from sslbench.weights.reading.model_config import NO_CONFIG, ModelConfig

_Sizes = tuple[tuple[int, ...], tuple[int, ...], int]
# Blocks and channels of each stage, and channels of a group -> timm's word; without squeeze-excitation.
_X: Mapping[_Sizes, str] = {
    ((1, 1, 4, 7), (24, 56, 152, 368), 8): "002",
    ((1, 2, 7, 12), (32, 64, 160, 384), 16): "004",
    ((1, 2, 7, 12), (32, 64, 160, 400), 16): "004_tv",
    ((1, 3, 5, 7), (48, 96, 240, 528), 24): "006",
    ((1, 3, 7, 5), (64, 128, 288, 672), 16): "008",
    ((2, 4, 10, 2), (72, 168, 408, 912), 24): "016",
    ((2, 6, 15, 2), (96, 192, 432, 1008), 48): "032",
    ((2, 5, 14, 2), (80, 240, 560, 1360), 40): "040",
    ((2, 4, 10, 1), (168, 392, 784, 1624), 56): "064",
    ((2, 5, 15, 1), (80, 240, 720, 1920), 80): "080",
    ((2, 5, 11, 1), (224, 448, 896, 2240), 112): "120",
    ((2, 6, 13, 1), (256, 512, 896, 2048), 128): "160",
    ((2, 7, 13, 1), (336, 672, 1344, 2520), 168): "320",
}
# The same with squeeze-excitation.
_Y: Mapping[_Sizes, str] = {
    ((1, 1, 4, 7), (24, 56, 152, 368), 8): "002",
    ((1, 3, 6, 6), (48, 104, 208, 440), 8): "004",
    ((1, 3, 7, 4), (48, 112, 256, 608), 16): "006",
    ((1, 3, 8, 2), (64, 128, 320, 768), 16): "008",
    ((1, 3, 8, 2), (64, 144, 320, 784), 16): "008_tv",
    ((2, 6, 17, 2), (48, 120, 336, 888), 24): "016",
    ((2, 5, 13, 1), (72, 216, 576, 1512), 24): "032",
    ((2, 6, 12, 2), (128, 192, 512, 1088), 64): "040",
    ((2, 7, 14, 2), (144, 288, 576, 1296), 72): "064",
    ((2, 4, 10, 1), (168, 448, 896, 2016), 56): "080",
    ((2, 4, 10, 1), (224, 448, 896, 2016), 56): "080_tv",
    ((2, 5, 11, 1), (224, 448, 896, 2240), 112): "120",
    ((2, 4, 11, 1), (224, 448, 1232, 3024), 112): "160",
    ((2, 5, 12, 1), (232, 696, 1392, 3712), 232): "320",
    ((2, 5, 12, 1), (328, 984, 1968, 4920), 328): "640",
    ((2, 7, 17, 1), (528, 1056, 2904, 7392), 264): "1280",
    ((2, 7, 17, 1), (746, 1492, 4103, 10444), 373): "2560",
    # SEER's of ten thousand million parameters (Goyal et al. 2022, arXiv 2202.08360).
    ((2, 7, 17, 1), (2020, 4040, 11110, 28280), 1010): "1280,w0=1744,wa=620.83,wm=2.52,group_size=1010",
}
_REGNETS = re.compile(
    r"(?:stem|s\d\.b\d+\.(?:conv[123]|downsample))\.(?:conv\.weight|bn\.\w+)|s\d\.b\d+\.se\.fc[12]\.(?:weight|bias)"
)


# (blocks, width) of each stage -> timm's word.
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
_SECOND_ONLY, _FIRST_ONLY = ("huge",), ("xlarge", "xxlarge")
# Sizes whose MLP consists of 1x1 convolutions in timm, and of linear layers in its authors' files.
_CONVOLUTIONS = ("atto", "femto", "pico", "nano")
# Widths of timm's network for its own tests, which has another activation.
_OF_TESTS = (24, 32, 48, 64)
# Of the norms in timm's networks.
_EPS = 1e-6
_CONVNEXTS = re.compile(
    r"(?:stem\.[01]|stages\.\d+\.downsample\.[01]|head\.norm)\.(?:weight|bias)|"
    r"stages\.\d+\.blocks\.\d+\.(?:gamma|(?:conv_dw|norm|mlp\.fc[12]|mlp\.grn)\.(?:weight|bias))"
)
# (width, blocks of each stage) -> timm's word.
_PUBLISHED_SWINS: Mapping[tuple[int, tuple[int, ...]], str] = {
    (96, (2, 2, 6, 2)): "tiny",
    (96, (2, 2, 18, 2)): "small",
    (128, (2, 2, 18, 2)): "base",
    (192, (2, 2, 18, 2)): "large",
}
# Dimensions of a head in published networks.
_HEAD = 32
# Of the norms in timm's networks.
_SWIN_EPS = 1e-5
_SWINS = re.compile(
    r"(?:patch_embed\.(?:proj|norm)|norm|layers\.\d+\.downsample\.(?:norm|reduction))\.(?:weight|bias)|"
    r"layers\.\d+\.blocks\.\d+\.(?:(?:norm[12]|attn\.(?:qkv|proj)|mlp\.fc[12])\.(?:weight|bias)|"
    r"attn\.(?:relative_position_bias_table|logit_scale|[qv]_bias|cpb_mlp\.[02]\.(?:weight|bias)))"
)


def recognise_regnet(
    shapes: Mapping[str, tuple[int, ...]], config: ModelConfig = NO_CONFIG, weights: str = ""
) -> str | None:
    """Return the name, for `--backbone`, of the RegNet with these tensors; None for other networks.

    >>> recognise_regnet({"conv1.weight": (64, 3, 7, 7)})

    shapes: canonical name -> shape, without the classifier.
    """
    if "s1.b1.conv2.conv.weight" not in shapes or not all(_REGNETS.fullmatch(name) for name in shapes):
        return None
    blocks = [found for name in shapes if (found := re.match(r"s(\d)\.b(\d+)\.", name))]
    depths = tuple(max((int(b[2]) for b in blocks if int(b[1]) == stage), default=0) for stage in range(1, 5))
    widths = tuple(shapes.get(f"s{stage}.b1.conv3.conv.weight", (0,))[0] for stage in range(1, 5))
    group, gated = shapes["s1.b1.conv2.conv.weight"][1], "s1.b1.se.fc1.weight" in shapes
    word, stem = (_Y if gated else _X).get((depths, widths, group)), shapes.get("stem.conv.weight", (0, 0))
    if word is None:
        return None
    name = f"timm:regnet{'y' if gated else 'x'}_{word}" + (f",in_chans={stem[1]}" if stem[1] != 3 else "")
    shown = {"model_type": frozenset(("regnet",)), "num_channels": stem[1], "embedding_size": stem[0]}
    shown |= {"hidden_sizes": widths, "depths": depths, "groups_width": group, "layer_type": "y" if gated else "x"}
    config.compare(shown, weights, name)
    config.require({"hidden_act": "relu", "downsample_in_first_stage": True})
    return name


def recognise_convnext(
    shapes: Mapping[str, tuple[int, ...]], config: ModelConfig = NO_CONFIG, weights: str = ""
) -> str | None:
    """Return the name, for `--backbone`, of the ConvNeXt with these tensors; None for other networks.

    >>> recognise_convnext({"conv1.weight": (64, 3, 7, 7)})

    shapes: canonical name -> shape, without the classifier.
    """
    stem, blocks = shapes.get("stem.0.weight", ()), dict[int, int]()
    if len(stem) != 4 or "head.norm.bias" not in shapes or not all(_CONVNEXTS.fullmatch(name) for name in shapes):
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


def recognise_swin(
    shapes: Mapping[str, tuple[int, ...]], config: ModelConfig = NO_CONFIG, weights: str = ""
) -> str | None:
    """Return the name, for `--backbone`, of the Swin Transformer with these tensors; None for other networks.

    >>> recognise_swin({"conv1.weight": (64, 3, 7, 7)})

    shapes: canonical name -> shape, without the classifier.
    """
    stem, blocks = shapes.get("patch_embed.proj.weight", ()), dict[int, int]()
    if len(stem) != 4 or "norm.weight" not in shapes or not all(_SWINS.fullmatch(name) for name in shapes):
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
    word = _PUBLISHED_SWINS.get((width, depths), "")
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
    only = {"layer_norm_eps": _SWIN_EPS, "use_absolute_embeddings": False}
    config.require(only if second else {**only, "hidden_act": "gelu"})
