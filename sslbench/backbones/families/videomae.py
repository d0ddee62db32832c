"""Encoders of VideoMAE on clips: videomae_small, videomae_base, videomae_large, videomae_huge, videomae_giant."""

from collections.abc import Mapping

from sslbench.backbones.architectures import VIDEOMAE_NAMES
from sslbench.backbones.build import Family
from sslbench.backbones.timm_models import check_recorded_options
from sslbench.backbones.video_encoders import VideoEncoders
from sslbench.backbones.videomae import OPTIONS, SIZES, VideoTransformer
from sslbench.weights.reading.model_config import ModelConfig

_ENCODERS = VideoEncoders("VideoMAE", SIZES, OPTIONS, VideoTransformer, 1.0, ("videomae", "image_size", "num_channels"))


def _recognise(shapes: Mapping[str, tuple[int, ...]], format: str, weights: str, config: ModelConfig) -> str | None:
    stem, second = shapes.get("patch_embed.proj.weight", ()), shapes.get("blocks.0.mlp.fc2.weight", ())
    if len(stem) != 5 or len(second) != 2 or "blocks.0.attn.q_bias" not in shapes:
        return None
    options: dict[str, object] = {"frames": n} if (n := config.count("num_frames")) not in (None, 16) else {}
    options |= {} if "norm.weight" in shapes else {"final_norm": False}
    return _ENCODERS.name(shapes, config, weights, {"intermediate_size": second[1], "qkv_bias": True}, options)


FAMILY = Family(
    lambda name: name.partition(",")[0] in VIDEOMAE_NAMES, _ENCODERS.build, check_recorded_options, _recognise
)
