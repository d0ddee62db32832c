"""Encoders of V-JEPA 2: vjepa2_large, vjepa2_huge, vjepa2_giant on images, with frames=16 on clips."""

from collections.abc import Mapping

from sslbench.backbones import vjepa2
from sslbench.backbones.architectures import VJEPA2_NAMES
from sslbench.backbones.backbone import Backbone, Kind
from sslbench.backbones.build import Family
from sslbench.backbones.timm_models import check_recorded_options, parse_options
from sslbench.backbones.video_recognise import VideoEncoders
from sslbench.errors import UsageError
from sslbench.preprocessing import Preprocessing
from sslbench.weights.reading.model_config import ModelConfig

_RESIZED = 256 / 224
_ENCODERS = VideoEncoders("V-JEPA 2", vjepa2.SIZES, 256, ("vjepa2", "crop_size", "in_chans"))


def _build(name: str) -> Backbone:
    base, options = parse_options(name)
    try:
        module, given = vjepa2.build_vjepa2(base, options)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise UsageError(f"{name} cannot be built: {error}", f"Write for example {base},img_size=384.") from error
    blocks = {f"features.{index}": f"blocks.{index}" for index in range(given["depth"])}
    side = given["img_size"]
    usual = Preprocessing(round(side * _RESIZED), (side, side), origin="V-JEPA 2's evaluation transform")
    return Backbone(
        name=name,
        kind=Kind(options=frozenset({"in_chans", "img_size"}), frames=given["frames"] or 1),
        module=module,
        preprocessing=usual.for_channels(given["in_chans"]),
        aliases={"features": "", **blocks, "last": "norm"},
        default_layer="features",
        stems=("patch_embed.proj",),
    )


def _recognise(shapes: Mapping[str, tuple[int, ...]], format: str, weights: str, config: ModelConfig) -> str | None:
    stem, second = shapes.get("patch_embed.proj.weight", ()), shapes.get("blocks.0.mlp.fc2.weight", ())
    if len(stem) != 5 or len(second) != 2 or "blocks.0.attn.q_bias" in shapes:
        return None
    shown = {"mlp_ratio": config.ratio(stem[0], second[1]), "qkv_bias": "blocks.0.attn.qkv.bias" in shapes}
    return _ENCODERS.name(shapes, config, weights, shown, {})


FAMILY = Family(lambda name: name.partition(",")[0] in VJEPA2_NAMES, _build, check_recorded_options, _recognise)
