"""Configurations beside the weights of a model: facts about its network and images that no tensor shows."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sslbench.errors import BackboneError, WeightsError

_LARGEST = 1 << 26
# Names of transformers -> timm's.
_ACTIVATIONS = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate", "gelu_new", "gelu_fast"), "gelu_tanh"),
    **{name: name for name in ("gelu_tanh", "quick_gelu", "relu", "relu6", "leaky_relu", "mish", "tanh", "sigmoid")},
    **dict.fromkeys(("silu", "swish"), "silu"),
    **{"hardswish": "hard_swish", "linear": "identity"},
}
_VIT = {"num_attention_heads": 12, "hidden_act": "gelu", "layer_norm_eps": 1e-12}
_DINO = {**_VIT, "layer_norm_eps": 1e-6}
_CLIP = {**_VIT, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
_SIGLIP = {**_DINO, "hidden_act": "gelu_pytorch_tanh"}
_AIM = {"num_attention_heads": 8, "hidden_act": "silu", "rms_norm_eps": 1e-5}
_CNN = {"hidden_act": "gelu", "layer_norm_eps": 1e-12}
_SWIN = {"hidden_act": "gelu", "layer_norm_eps": 1e-5, "window_size": 7, "image_size": 224}
# model_type -> fields that no tensor shows: transformers does not write fields of inner towers that are as usual.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("vit", "deit", "vit_mae", "ijepa", "beit", "data2vec-vision"), _VIT),
    **dict.fromkeys(("vit_msn", "dinov2", "dinov2_with_registers"), _DINO),
    "dinov3_vit": {"num_attention_heads": 6, "hidden_act": "gelu", "layer_norm_eps": 1e-5, "rope_theta": 100.0},
    **dict.fromkeys(("clip", "clip_vision_model"), _CLIP),
    **dict.fromkeys(("siglip", "siglip_vision_model", "siglip2", "siglip2_vision_model"), _SIGLIP),
    **dict.fromkeys(("aimv2", "aimv2_vision_model"), _AIM),
    "vjepa2": {**_DINO, "num_attention_heads": 16, "crop_size": 256},
    **dict.fromkeys(("convnext", "convnextv2"), _CNN),
    "dinov3_convnext": {**_CNN, "layer_norm_eps": 1e-6},
    "resnet": {"hidden_act": "relu", "downsample_in_bottleneck": False, "downsample_in_first_stage": False},
    "regnet": {"hidden_act": "relu", "downsample_in_first_stage": True},
    "swin": _SWIN,
    "swinv2": {**_SWIN, "pretrained_window_sizes": [0, 0, 0, 0]},
}
_MOMENTS = ("mean", "std")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Facts about a network from the configuration beside its weights, which tensors do not show.

    Attributes:
        path: of the configuration; None if there is none, and everything else is empty.
        backbone: architecture in timm's words, in folders that timm wrote; '' in others.
        fields: of the network, by transformers' names; those of open_clip are translated.
        mean: of the pixel values in [0, 1]; empty if not stated.
    """

    path: Path | None = None
    backbone: str = ""
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def count(self, key: str) -> int | None:
        """Return a positive whole number, the side of squares included; None if it is not stated."""
        value = _plain(self.fields.get(key))
        # true is an int to Python.
        if value is not None and not (isinstance(value, int) and not isinstance(value, bool) and value > 0):
            raise self.wrong(key, "a positive whole number")
        return value

    def number(self, key: str) -> float | None:
        """Return a positive number; None if it is not stated."""
        value = self.fields.get(key)
        fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
        if value is not None and not fits:
            raise self.wrong(key, "a positive number")
        return None if value is None else float(value)

    def ratio(self, width: int, hidden: int) -> float:
        """Return the stated `mlp_ratio` if it makes a hidden width of a width, else the ratio of both."""
        told = self.number("mlp_ratio")
        return told if told is not None and int(width * told) == hidden else hidden / width

    @property
    def heads(self) -> int | None:
        """Number of heads of attention; None if not stated."""
        return self.count("num_attention_heads")

    @property
    def activation(self) -> str:
        """Activation of the MLP, in timm's words; '' if not stated."""
        name = self.fields.get("hidden_act")
        if name is None:
            return ""
        if not isinstance(name, str) or name not in _ACTIVATIONS:
            raise self.unsupported("hidden_act", "timm does not have this activation")
        return _ACTIVATIONS[name]

    def compare(self, shown: Mapping[str, Any], weights: str, name: str) -> None:
        """Refuse a configuration of another network than the one with these tensors.

        shown: field -> its value as the tensors show it; a frozenset holds all values that fit.
        """
        for key, wanted in shown.items():
            told = _plain(self.fields.get(key))
            if isinstance(wanted, frozenset):
                known = isinstance(told, str) and told in _DEFAULTS
                fits, wanted = not known or told in wanted, " or ".join(sorted(wanted))
            else:
                fits = told == _plain(wanted)
            if told is not None and not fits:
                raise BackboneError(
                    f"{self.path} is of another network: it has {key} {_text(told)}, the tensors of {weights} show "
                    f"{_text(wanted)}",
                    f"Put the configuration of these weights beside them, or name the network: --backbone {name}",
                )

    def require(self, only: Mapping[str, Any]) -> None:
        """Refuse settings that the networks here do not have.

        only: field -> the value that they have.
        """
        for key, value in only.items():
            if key in self.fields and self.fields[key] is not None and self.fields[key] != value:
                raise self.unsupported(key, f"the network here has {_text(value)}")

    def unsupported(self, key: str, reason: str) -> BackboneError:
        """Return the error for a setting that the networks here do not have."""
        return BackboneError(
            f"{self.path}: {key} is {_text(self.fields[key])}, which changes the features, and {reason}",
            "Give your own network: --backbone MODULE:FUNCTION.",
        )

    def wrong(self, key: str, wanted: str) -> BackboneError:
        """Return the error for a value that no network has."""
        return BackboneError(
            f"{self.path}: {key} should be {wanted}, not {json.dumps(self.fields[key])[:80]}",
            "Correct it, or move the file away and name the network: --backbone NAME.",
        )


NO_CONFIG = ModelConfig()


def read_configs(paths: tuple[Path, Path, Path, Path]) -> ModelConfig:
    """Return the facts in the configurations that exist."""
    network, open_clip, images, processor = (
        read_json(path) if path.is_file() or path.is_symlink() else {} for path in paths
    )
    inner = processor.get("image_processor")
    if not images and isinstance(inner, Mapping):
        images, paths = dict(inner), (*paths[:2], paths[3], paths[3])
    found = ModelConfig()
    if network:
        found = _of_timm(network, paths[0]) if "architecture" in network else _of_transformers(network, paths[0])
    elif open_clip:
        found = _of_open_clip(open_clip, paths[1])
    if images:
        mean, std = (_moment(images, f"image_{key}", paths[2]) for key in _MOMENTS)
        if images.get("do_normalize", True) is False:
            mean, std = (0.0,) * 3, (1.0,) * 3
        scale = images.get("rescale_factor", 1 / 255) if images.get("do_rescale", True) else 1
        if not isinstance(scale, int | float) or not 0 < scale < math.inf:
            raise WeightsError(
                f"{paths[2]}: rescale_factor should be a positive number, not {_text(scale)}",
                "Correct it, or move it away and give --mean and --std.",
            )
        white = 255 * float(scale)  # a white pixel before mean and std: 1, or 255 where bytes are taken as they are
        if not math.isclose(white, 1.0):
            # The processor subtracts them after a scaling of its own; here pixels are from 0 to 1.
            mean, std = tuple(value / white for value in mean), tuple(value / white for value in std)
        found = dataclasses.replace(found, path=found.path or paths[2], mean=mean, std=std)
    numbers = (*found.mean, *found.std)
    if len(found.mean) != len(found.std) or not all(map(math.isfinite, numbers)) or min(found.std, default=1) <= 0:
        raise WeightsError(
            f"{paths[2] if images else found.path}: mean and std should be one finite number per channel, std positive",
            "Correct it, or move it away and give --mean and --std.",
        )
    return found


def _moment(images: Mapping[str, Any], key: str, path: Path) -> tuple[float, ...]:
    """Return the mean or standard deviation of each channel; one number is that of all three."""
    value = images.get(key)
    found = _numbers([value] * 3 if isinstance(value, int | float) else value)
    if value is not None and not found:
        raise WeightsError(
            f"{path}: {key} should be a list of numbers, not {_text(value)}",
            "Correct it, or move it away and give --mean and --std.",
        )
    return found


def _of_transformers(config: Mapping[str, Any], path: Path) -> ModelConfig:
    """Return the facts in a configuration of transformers; those of the image tower in one of several towers."""
    tower = config.get("vision_config")
    fields = {"model_type": config.get("model_type"), **tower} if isinstance(tower, Mapping) else dict(config)
    kind = fields.get("model_type")
    return ModelConfig(path=path, fields={**_DEFAULTS.get(kind if isinstance(kind, str) else "", {}), **fields})


def _of_timm(config: Mapping[str, Any], path: Path) -> ModelConfig:
    recorded = config.get("pretrained_cfg")
    recorded = recorded if isinstance(recorded, Mapping) else config
    options = config.get("model_args")
    options = dict(options) if isinstance(options, Mapping) else {}
    options.pop("num_classes", None)  # of the classifier, which is left out
    parts = [f"timm:{config['architecture']}"]
    for key, value in options.items():
        text = "-".join(map(str, value)) if isinstance(value, list) else str(value)
        if not text or "," in text or (isinstance(value, list) and len(value) < 2):
            others = ",".join(parts)
            raise WeightsError(
                f"{path}: model_args has {key} {json.dumps(value)[:80]}, which is not taken from a file",
                f"Move the file away and name the network, with the options that it needs: --backbone {others}",
            )
        parts.append(f"{key}={text}")
    tag = recorded.get("tag")
    parts[0] += f".{tag}" if isinstance(tag, str) and tag else ""
    numbers = [_numbers(recorded.get(key)) for key in _MOMENTS]
    return ModelConfig(path=path, backbone=",".join(parts), mean=numbers[0], std=numbers[1])


def _of_open_clip(config: Mapping[str, Any], path: Path) -> ModelConfig:
    model, images = (part if isinstance(part, Mapping) else {} for part in map(config.get, _PARTS_OF_OPEN_CLIP))
    tower = model.get("vision_cfg")
    tower = dict(tower) if isinstance(tower, Mapping) else {}
    fields = {ours: tower[theirs] for theirs, ours in _WORDS_OF_OPEN_CLIP.items() if theirs in tower}
    fields["hidden_act"] = "quick_gelu" if model.get("quick_gelu") else "gelu"
    for options, key in ((tower.get("act_kwargs"), "approximate"), (tower.get("norm_kwargs"), "eps")):
        if isinstance(options, Mapping) and key in options:
            fields |= {"layer_norm_eps": options[key]} if key == "eps" else {"hidden_act": f"gelu_{options[key]}"}
    # 4.0, and 64 for the width of a head, are the defaults of open_clip's CLIPVisionCfg.
    width, ratio = tower.get("width"), tower.get("mlp_ratio", 4.0)
    if isinstance(width, int) and isinstance(tower.get("layers"), int) and width > 0:
        head = tower.get("head_width", 64)
        fields["num_attention_heads"] = width // head if isinstance(head, int) and head > 0 else head
        fits = isinstance(ratio, int | float) and math.isfinite(ratio)
        fields["intermediate_size"] = int(width * ratio) if fits else ratio
    numbers = [_numbers(images.get(key)) for key in _MOMENTS]
    return ModelConfig(path=path, fields=fields, mean=numbers[0], std=numbers[1])


_PARTS_OF_OPEN_CLIP = ("model_cfg", "preprocess_cfg")
# Fields of open_clip's image tower -> those of transformers, or their own where it has none.
_WORDS_OF_OPEN_CLIP = {
    **{"width": "hidden_size", "layers": "num_hidden_layers"},
    **{key: key for key in ("patch_size", "image_size", "pool_type", "final_ln_after_pool")},
}


def _plain(value: Any) -> Any:
    """Return a value for comparison: a tuple for a list, a side for a square."""
    if isinstance(value, list | tuple):
        value = tuple(value)
        return value[0] if len(value) == 2 and value[0] == value[1] else value
    return value


def _text(value: Any) -> str:
    """Return a value as it stands in JSON, shortened."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _numbers(value: Any) -> tuple[float, ...]:
    """Return the mean or standard deviation of each channel; () for anything else."""
    fits = isinstance(value, list) and all(isinstance(number, int | float) for number in value)
    return tuple(map(float, value)) if fits else ()


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a model."""
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError("it is too large")
        text = path.read_text(encoding="utf-8-sig")  # Windows' editors write a byte-order mark
        if not text.strip():
            raise ValueError("it is empty")
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, not an object of keys and values")
    except FileNotFoundError as error:
        raise WeightsError(
            f"{path} is a link to {path.readlink()}, which does not exist",
            "Copy it again with the file that it stands for (cp -L, rsync -L).",
        ) from error
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        remedy = "Copy it again; if it is of no model, move it away."
        raise WeightsError(f"{path} is damaged: {reason}", remedy) from error
    return content
