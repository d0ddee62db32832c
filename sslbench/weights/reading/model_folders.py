"""Folders of the Hugging Face Hub: weights in one file or in shards with an index, and their configuration."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sslbench.errors import WeightsError

WEIGHTS = ("model.safetensors", "pytorch_model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin")
"""Files of weights that are tried in order: those without pickles first."""
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
"""Files that name the shard of every tensor."""
CONFIGS = ("config.json", "open_clip_config.json", "preprocessor_config.json")
"""Descriptions of the network and of its images: of transformers or timm, of open_clip, and of transformers."""
_LARGEST = 1 << 26
_ACTIVATIONS = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    "quick_gelu": "quick_gelu",
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_tanh"), "gelu_tanh"),
    **{name: name for name in ("relu", "silu", "mish", "tanh", "sigmoid")},
    "swish": "silu",
}


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Facts about a network from the configuration beside its weights, which tensors do not show.

    Attributes:
        path: of the configuration; None if there is none, and everything else is empty.
        backbone: architecture in timm's words, in folders that timm wrote; '' in others.
        heads: of attention; None if not stated.
        width: of a token, to compare with the tensors; None if not stated.
        image: side of the images in pixels; None if not stated.
        activation: of the MLP, in timm's words; '' if not stated.
        mean: of the pixel values in [0, 1]; empty if not stated.
        std: likewise.
    """

    path: Path | None = None
    backbone: str = ""
    heads: int | None = None
    width: int | None = None
    image: int | None = None
    activation: str = ""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


NO_CONFIG = ModelConfig()


def weights_file(folder: Path) -> Path | None:
    """Return the weights in a folder of a model, or the index of its shards; None if it has neither."""
    return next((folder / name for name in (*WEIGHTS, *INDEXES) if (folder / name).is_file()), None)


def is_index(path: Path) -> bool:
    """Return whether a file is the index of shards."""
    return path.name in INDEXES


def shards_of(index: Path) -> list[Path]:
    """Return the shards that an index names.

    Raises:
        WeightsError: it is damaged, names files of other folders, or a shard is missing.
    """
    names = shard_names(index)
    if missing := [name for name in names if not (index.parent / name).is_file()]:
        raise WeightsError(
            f"{index} names {len(names)} shards, of which {len(missing)} are missing: {', '.join(missing[:3])}",
            f"Copy them to {index.parent}.",
        )
    return [index.parent / name for name in names]


def shard_names(index: Path) -> list[str]:
    """Return the names of the shards that an index names; errors as for `shards_of`."""
    places = _read_json(index).get("weight_map")
    names = sorted(set(map(str, places.values()))) if isinstance(places, Mapping) else []
    if not names or any(Path(name).name != name for name in names):
        raise WeightsError(f"{index} does not name the shards of a model", "Copy it again with its shards.")
    return names


def index_of_shard(path: Path) -> Path | None:
    """Return the index beside a file that is one of its shards; None for other files."""
    if "-of-" not in path.name:
        return None
    beside = (path.with_name(name) for name in INDEXES)
    return next((index for index in beside if index.is_file() and path.name in index.read_text("utf-8")), None)


def read_config(weights: Path) -> ModelConfig:
    """Return the configuration beside weights that have one of the names in `WEIGHTS` and `INDEXES`.

    Raises:
        WeightsError: a configuration is damaged.
    """
    if weights.name not in (*WEIGHTS, *INDEXES):
        return ModelConfig()  # any other file may share its folder with the configuration of another network
    paths = [weights.with_name(name) for name in CONFIGS]
    network, open_clip, images = (_read_json(path) if path.is_file() else {} for path in paths)
    found = ModelConfig()
    if network:
        found = _of_timm(network, paths[0]) if "architecture" in network else _of_transformers(network, paths[0])
    elif open_clip:
        found = _of_open_clip(open_clip, paths[1])
    if images:
        mean, std = (_numbers(images.get(f"image_{key}")) for key in _MOMENTS)
        if images.get("do_normalize", True) is False:
            mean, std = (0.0,) * 3, (1.0,) * 3
        range_ = _range(images)
        if not math.isclose(range_, 1.0):
            mean, std = tuple(value / range_ for value in mean), tuple(value / range_ for value in std)
        found = dataclasses.replace(found, path=found.path or paths[2], mean=mean, std=std)
    numbers = (*found.mean, *found.std)
    if len(found.mean) != len(found.std) or not all(map(math.isfinite, numbers)) or min(found.std, default=1) <= 0:
        raise WeightsError(
            f"{paths[2] if images else found.path}: mean and std should be one finite number per channel, std positive",
            "Correct it, or move it away and give --mean and --std.",
        )
    return found


_MOMENTS = ("mean", "std")


def _range(images: Mapping[str, Any]) -> float:
    """Return the value of a white pixel before mean and std: 1, or 255 in networks that take bytes as they are."""
    scale = images.get("rescale_factor", 1 / 255) if images.get("do_rescale", True) else 1
    return 255 * scale if isinstance(scale, int | float) and scale > 0 else 1.0


def _of_transformers(config: Mapping[str, Any], path: Path) -> ModelConfig:
    """Return the facts in a configuration of transformers; those of the image tower in one of several towers."""
    tower = config.get("vision_config")
    tower = {**config, **tower} if isinstance(tower, Mapping) else config
    activation = str(tower.get("hidden_act") or "")
    if activation and activation not in _ACTIVATIONS:
        raise WeightsError(
            f"{path}: hidden_act is '{activation}', an activation that timm does not have",
            "Give your own network: --backbone MODULE:FUNCTION.",
        )
    heads, width = tower.get("num_attention_heads"), tower.get("hidden_size")
    image = tower.get("image_size", tower.get("crop_size"))
    return ModelConfig(
        path=path,
        heads=_positive(heads),
        width=_positive(width),
        image=_positive(image[0] if isinstance(image, list) and image else image),
        activation=_ACTIVATIONS.get(str(activation), ""),
    )


def _of_timm(config: Mapping[str, Any], path: Path) -> ModelConfig:
    recorded = config.get("pretrained_cfg")
    recorded = recorded if isinstance(recorded, Mapping) else config
    options = config.get("model_args")
    options = options if isinstance(options, Mapping) else {}
    parts = [f"timm:{config['architecture']}", *(f"{key}={value}" for key, value in options.items())]
    tag = recorded.get("tag")
    parts[0] += f".{tag}" if isinstance(tag, str) and tag else ""
    numbers = [_numbers(recorded.get(key)) for key in _MOMENTS]
    return ModelConfig(path=path, backbone=",".join(parts), mean=numbers[0], std=numbers[1])


def _of_open_clip(config: Mapping[str, Any], path: Path) -> ModelConfig:
    model, images = (part if isinstance(part, Mapping) else {} for part in map(config.get, _PARTS_OF_OPEN_CLIP))
    tower = model.get("vision_cfg")
    tower = tower if isinstance(tower, Mapping) else {}
    width = _positive(tower.get("width"))
    numbers = [_numbers(images.get(key)) for key in _MOMENTS]
    return ModelConfig(
        path=path,
        heads=width // (_positive(tower.get("head_width")) or 64) if width else None,
        width=width,
        image=_positive(tower.get("image_size")),
        activation="quick_gelu" if model.get("quick_gelu") else "gelu",
        mean=numbers[0],
        std=numbers[1],
    )


_PARTS_OF_OPEN_CLIP = ("model_cfg", "preprocess_cfg")


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _numbers(value: Any) -> tuple[float, ...]:
    """Return the mean or standard deviation of each channel; () for anything else."""
    fits = isinstance(value, list) and all(isinstance(number, int | float) for number in value)
    return tuple(map(float, value)) if fits else ()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError("it is too large")
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is no dictionary")
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is damaged: {' '.join(str(error).split())[:200]}", "Copy it again.") from error
    return content
