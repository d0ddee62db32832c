"""Encoders of videos: VideoMAE on clips; V-JEPA 2 on images, with frames=16 on clips."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from sslbench.backbones import videomae, vjepa2
from sslbench.backbones.architectures import VIDEO_ENCODERS
from sslbench.backbones.backbone import Backbone, Kind
from sslbench.backbones.build import Family
from sslbench.backbones.timm_models import check_recorded_options, parse_options
from sslbench.backbones.vit_recognise import UNKNOWN, mlp_ratio
from sslbench.errors import BackboneError, UsageError
from sslbench.preprocessing import Preprocessing
from sslbench.weights.reading.model_config import ModelConfig


@dataclasses.dataclass(frozen=True)
class VideoEncoders:
    """Networks that share their names of tensors.

    Attributes:
        title: name in messages.
        sizes: name -> width, blocks, heads and ratio of the MLP of the published networks.
        options: further options of a name, and their defaults.
        make: all options -> encoder with random weights.
        resized: shorter side of a frame before it is cropped, as a multiple of the crop's.
        words: of their configuration: names of model_type, side of the images, channels of the images.
    """

    title: str
    sizes: Mapping[str, tuple[int, int, int, float]]
    options: Mapping[str, Any]
    make: Callable[[Mapping[str, Any]], nn.Module]
    resized: float
    words: tuple[str, str, str]

    def build(self, name: str) -> Backbone:
        """Return the backbone of a name, with random weights."""
        base, given = parse_options(name)
        width, depth, heads, ratio = self.sizes[base]
        options: dict[str, Any] = {"patch_size": 16, "in_chans": 3, "embed_dim": width, "depth": depth}
        options |= {"num_heads": heads, "mlp_ratio": ratio, "norm_eps": 1e-6, **self.options}
        try:
            if unknown := [key for key in given if key not in options]:
                raise TypeError(f"it has no option '{unknown[0]}', but {', '.join(options)}")
            options |= given
            module = self.make(options)
        except (TypeError, ValueError, AssertionError, RuntimeError) as error:
            raise UsageError(f"{name} cannot be built: {error}", f"Write for example {base},frames=16.") from error
        side = options["img_size"]
        usual = Preprocessing(
            round(side * self.resized), (side, side), origin=f"{self.title}'s evaluation transform"
        ).for_channels(options["in_chans"])
        blocks = {f"features.{index}": f"blocks.{index}" for index in range(options["depth"])}
        return Backbone(
            name=name,
            kind=Kind(options=frozenset({"in_chans", "img_size"}), frames=options["frames"] or 1),
            module=module,
            preprocessing=usual,
            aliases={"features": "", **blocks, "last": "norm"},
            default_layer="features",
            stems=("patch_embed.proj",),
        )

    def name(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        config: ModelConfig,
        weights: str,
        shown: Mapping[str, object],
        options: Mapping[str, object],
    ) -> str:
        """Return the name of the network with these tensors, with the options that differ from the published ones.

        Args:
            shapes: canonical name -> shape; the first layer has five dimensions.
            config: the configuration beside them.
            weights: file, for messages.
            shown: further fields of the configuration, as the tensors show them.
            options: further options of the network.

        Raises:
            BackboneError: the number of heads is not known, or the configuration is of another network.
        """
        stem, hidden = shapes["patch_embed.proj.weight"], shapes["blocks.0.mlp.fc2.weight"][1]
        model_type, side_word, channels_word = self.words
        depth = sum(name.endswith(".norm1.weight") for name in shapes)
        heads = config.heads
        if heads and stem[0] % heads:
            raise config.wrong("num_attention_heads", f"a divisor of the width, {stem[0]}")
        base, published = next(
            (
                (name, usual)
                for name, (width, blocks, usual, ratio) in self.sizes.items()
                if (stem[0], depth, hidden) == (width, blocks, int(width * ratio))
            ),
            ("", None),
        )
        changed: dict[str, object] = {}
        if not base:
            base = next(iter(self.sizes))
            changed |= {"embed_dim": stem[0], "depth": depth, "num_heads": heads or UNKNOWN}
            changed |= {"mlp_ratio": mlp_ratio(hidden, stem[0])}
        elif heads not in (None, published):
            changed["num_heads"] = heads
        changed |= {"patch_size": stem[-1]} if stem[-1] != 16 else {}
        changed |= (
            {"img_size": side} if (side := config.count(side_word)) not in (None, self.options["img_size"]) else {}
        )
        changed |= {"in_chans": stem[1]} if stem[1] != 3 else {}
        changed |= {"norm_eps": eps} if (eps := config.number("layer_norm_eps")) not in (None, 1e-6) else {}
        name = base + "".join(f",{key}={value}" for key, value in (changed | dict(options)).items())
        usual_fields = {
            "model_type": frozenset((model_type,)),
            "hidden_size": stem[0],
            "num_hidden_layers": depth,
            channels_word: stem[1],
            "tubelet_size": stem[2],
            "patch_size": stem[-1],
        }
        config.compare({**usual_fields, **shown}, weights, name)
        config.require({"hidden_act": "gelu"})
        if changed.get("num_heads") == UNKNOWN:
            raise BackboneError(
                f"{weights}: an encoder of {self.title} of {depth} blocks, width {stem[0]}: the number of heads is not "
                "visible in the tensors, and no published network has this size",
                f"Put the model's config.json beside the file, or give the number of its training for {UNKNOWN}: "
                f"--backbone {name}",
            )
        return name


_VIDEOMAE = VideoEncoders(
    "VideoMAE",
    videomae.SIZES,
    videomae.OPTIONS,
    videomae.VideoTransformer,
    1.0,
    ("videomae", "image_size", "num_channels"),
)
_VJEPA2 = VideoEncoders(
    "V-JEPA 2", vjepa2.SIZES, vjepa2.OPTIONS, vjepa2.make_encoder, 256 / 224, ("vjepa2", "crop_size", "in_chans")
)


def _build(name: str) -> Backbone:
    return next(each for each in (_VIDEOMAE, _VJEPA2) if name.partition(",")[0] in each.sizes).build(name)


def _recognise(shapes: Mapping[str, tuple[int, ...]], format: str, weights: str, config: ModelConfig) -> str | None:
    stem, second = shapes.get("patch_embed.proj.weight", ()), shapes.get("blocks.0.mlp.fc2.weight", ())
    if len(stem) != 5 or len(second) != 2:
        return None
    if "blocks.0.attn.q_bias" not in shapes:
        shown = {"mlp_ratio": config.ratio(stem[0], second[1]), "qkv_bias": "blocks.0.attn.qkv.bias" in shapes}
        return _VJEPA2.name(shapes, config, weights, shown, {})
    options: dict[str, object] = {"frames": n} if (n := config.count("num_frames")) not in (None, 16) else {}
    options |= {} if "norm.weight" in shapes else {"final_norm": False}
    return _VIDEOMAE.name(shapes, config, weights, {"intermediate_size": second[1], "qkv_bias": True}, options)


FAMILY = Family(
    lambda name: name.partition(",")[0] in VIDEO_ENCODERS,
    _build,
    check_recorded_options,
    _recognise,
)
