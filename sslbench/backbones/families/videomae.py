"""Encoders of VideoMAE on clips: videomae_small, videomae_base, videomae_large, videomae_huge, videomae_giant."""

from collections.abc import Mapping

from sslbench.backbones import videomae
from sslbench.backbones.architectures import VIDEOMAE_NAMES
from sslbench.backbones.backbone import Backbone, Kind
from sslbench.backbones.build import Family
from sslbench.backbones.timm_models import check_recorded_options, parse_options
from sslbench.backbones.video_recognise import VideoEncoders
from sslbench.errors import UsageError
from sslbench.preprocessing import Preprocessing
from sslbench.weights.reading.model_config import ModelConfig

_ENCODERS = VideoEncoders("VideoMAE", videomae.SIZES, 224, ("videomae", "image_size", "num_channels"))


def _build(name: str) -> Backbone:
    base, options = parse_options(name)
    try:
        module, given = videomae.build_videomae(base, options)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise UsageError(f"{name} cannot be built: {error}", f"Write for example {base},frames=16.") from error
    side, depth = given["img_size"], given["depth"]
    usual = Preprocessing(side, (side, side), origin="VideoMAE's evaluation transform")
    return Backbone(
        name=name,
        kind=Kind(options=frozenset({"in_chans", "img_size"}), frames=given["frames"]),
        module=module,
        preprocessing=usual.for_channels(given["in_chans"]),
        aliases={"features": "", **{f"features.{i}": f"blocks.{i}" for i in range(depth)}, "last": "norm"},
        default_layer="features",
        stems=("patch_embed.proj",),
    )


def _recognise(shapes: Mapping[str, tuple[int, ...]], format: str, weights: str, config: ModelConfig) -> str | None:
    stem, second = shapes.get("patch_embed.proj.weight", ()), shapes.get("blocks.0.mlp.fc2.weight", ())
    if len(stem) != 5 or len(second) != 2 or "blocks.0.attn.q_bias" not in shapes:
        return None
    options: dict[str, object] = {"frames": n} if (n := config.count("num_frames")) not in (None, 16) else {}
    options |= {} if "norm.weight" in shapes else {"final_norm": False}
    return _ENCODERS.name(shapes, config, weights, {"intermediate_size": second[1], "qkv_bias": True}, options)


FAMILY = Family(lambda name: name.partition(",")[0] in VIDEOMAE_NAMES, _build, check_recorded_options, _recognise)
