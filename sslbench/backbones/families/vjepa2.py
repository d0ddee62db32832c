"""Encoders of V-JEPA 2: vjepa2_large, vjepa2_huge, vjepa2_giant on images, with frames=16 on clips."""

from collections.abc import Mapping

from sslbench.backbones.architectures import VJEPA2_NAMES
from sslbench.backbones.build import Family
from sslbench.backbones.timm_models import check_recorded_options
from sslbench.backbones.video_encoders import VideoEncoders
from sslbench.backbones.vjepa2 import OPTIONS, SIZES, make_encoder
from sslbench.weights.reading.model_config import ModelConfig

_ENCODERS = VideoEncoders("V-JEPA 2", SIZES, OPTIONS, make_encoder, 256 / 224, ("vjepa2", "crop_size", "in_chans"))


def _recognise(shapes: Mapping[str, tuple[int, ...]], format: str, weights: str, config: ModelConfig) -> str | None:
    stem, second = shapes.get("patch_embed.proj.weight", ()), shapes.get("blocks.0.mlp.fc2.weight", ())
    if len(stem) != 5 or len(second) != 2 or "blocks.0.attn.q_bias" in shapes:
        return None
    shown = {"mlp_ratio": config.ratio(stem[0], second[1]), "qkv_bias": "blocks.0.attn.qkv.bias" in shapes}
    return _ENCODERS.name(shapes, config, weights, shown, {})


FAMILY = Family(
    lambda name: name.partition(",")[0] in VJEPA2_NAMES, _ENCODERS.build, check_recorded_options, _recognise
)
