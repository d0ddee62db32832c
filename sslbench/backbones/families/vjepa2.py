"""Encoders of V-JEPA 2 on single images: vjepa2_large, vjepa2_huge, vjepa2_giant."""

from collections.abc import Mapping

from sslbench.backbones import vjepa2
from sslbench.backbones.architectures import VJEPA2_NAMES
from sslbench.backbones.backbone import Backbone, Kind
from sslbench.backbones.build import Family
from sslbench.backbones.timm_models import check_recorded_options, parse_options
from sslbench.backbones.vit_recognise import UNKNOWN, mlp_ratio
from sslbench.errors import BackboneError, UsageError
from sslbench.preprocessing import Preprocessing
from sslbench.weights.reading.model_config import ModelConfig

_RESIZED = 256 / 224


def _build(name: str) -> Backbone:
    base, options = parse_options(name)
    try:
        module, side, depth = vjepa2.build_vjepa2(base, options)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise UsageError(f"{name} cannot be built: {error}", f"Write for example {base},img_size=384.") from error
    blocks = {f"features.{index}": f"blocks.{index}" for index in range(depth)}
    usual = Preprocessing(round(side * _RESIZED), (side, side), origin="V-JEPA 2's evaluation transform")
    return Backbone(
        name=name,
        kind=Kind(options=frozenset({"in_chans", "img_size"})),
        module=module,
        preprocessing=usual.for_channels(options.get("in_chans", 3)),
        aliases={"features": "", **blocks, "last": "norm"},
        default_layer="features",
        stems=("patch_embed.proj",),
    )


def _recognise(shapes: Mapping[str, tuple[int, ...]], format: str, weights: str, config: ModelConfig) -> str | None:
    stem, second = shapes.get("patch_embed.proj.weight", ()), shapes.get("blocks.0.mlp.fc2.weight", ())
    if len(stem) != 5 or len(second) != 2:
        return None
    depth = sum(name.endswith(".norm1.weight") for name in shapes)
    size, heads = (stem[0], depth, second[1]), config.heads
    if heads and stem[0] % heads:
        raise config.wrong("num_attention_heads", f"a divisor of the width, {stem[0]}")
    base, published = next(
        ((n, h) for n, (width, blocks, h, r) in vjepa2.SIZES.items() if size == (width, blocks, int(width * r))),
        ("", None),
    )
    options: dict[str, object] = {}
    if not base:
        base = VJEPA2_NAMES[0]
        options |= {"embed_dim": stem[0], "depth": depth, "num_heads": heads or UNKNOWN}
        options |= {"mlp_ratio": mlp_ratio(second[1], stem[0])}
    elif heads not in (None, published):
        options["num_heads"] = heads
    options |= {"patch_size": stem[-1]} if stem[-1] != 16 else {}
    options |= {"img_size": side} if (side := config.count("crop_size")) not in (None, 256) else {}
    options |= {"in_chans": stem[1]} if stem[1] != 3 else {}
    options |= {"norm_eps": eps} if (eps := config.number("layer_norm_eps")) not in (None, 1e-6) else {}
    name = base + "".join(f",{key}={value}" for key, value in options.items())
    shown = {
        "model_type": frozenset(("vjepa2",)),
        "hidden_size": stem[0],
        "num_hidden_layers": depth,
        "mlp_ratio": config.ratio(stem[0], second[1]),
        "in_chans": stem[1],
        "tubelet_size": stem[2],
        "patch_size": stem[-1],
        "qkv_bias": "blocks.0.attn.qkv.bias" in shapes,
    }
    config.compare(shown, weights, name)
    config.require({"hidden_act": "gelu"})
    if options.get("num_heads") == UNKNOWN:
        raise BackboneError(
            f"{weights}: an encoder of V-JEPA 2 of {depth} blocks, width {stem[0]}: the number of heads is not visible "
            "in the tensors, and no published network has this size",
            f"Put the model's config.json beside the file, or give the number of its training for {UNKNOWN}: "
            f"--backbone {name}",
        )
    return name


FAMILY = Family(lambda name: name.partition(",")[0] in VJEPA2_NAMES, _build, check_recorded_options, _recognise)
