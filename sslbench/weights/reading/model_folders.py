"""Folders of the Hugging Face Hub: weights in one file or in shards with an index, and their configuration."""

import re
from collections.abc import Mapping
from pathlib import Path

from sslbench.errors import WeightsError
from sslbench.weights.reading.model_config import NO_CONFIG, ModelConfig, read_configs, read_json

WEIGHTS = ("model.safetensors", "pytorch_model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin")
"""Files of weights that are tried in order: those without pickles first."""
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
"""Files that name the shard of every tensor."""
CONFIGS = ("config.json", "open_clip_config.json", "preprocessor_config.json", "processor_config.json")
"""Descriptions of the network, of transformers or timm and of open_clip, and of its images, of transformers."""

_SHARD = re.compile(r"(?P<name>.+)-\d{5}-of-(?P<number>\d{5})(?P<suffix>\.safetensors|\.bin)")


def weights_file(folder: Path) -> Path | None:
    """Return the weights in a folder of a model, or the index of its shards; None if it has neither.

    A link to a file that is missing is returned too.
    """
    paths = [folder / name for name in (*WEIGHTS, *INDEXES)]
    return next((path for path in paths if path.is_file()), next((path for path in paths if path.is_symlink()), None))


def is_model(folder: Path) -> bool:
    """Return whether a folder holds a network or a part of one: weights, shards, or the checkpoints of a Trainer."""
    if weights_file(folder) is not None or without_index(folder) is not None:
        return True
    return any(weights_file(inner) is not None for inner in folder.glob("checkpoint-*"))


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
            f"Copy them to {index.parent}"
            + (", and not as links." if (index.parent / missing[0]).is_symlink() else "."),
        )
    return [index.parent / name for name in names]


def shard_names(index: Path) -> list[str]:
    """Return the names of the shards that an index names; errors as for `shards_of`."""
    names = sorted(set(map(str, _weight_map(index).values())))
    if not names or any(Path(name).name != name for name in names):
        raise WeightsError(f"{index} does not name the shards of a model", "Copy it again with its shards.")
    return names


def tensor_names(index: Path) -> list[str]:
    """Return the names of the tensors that an index lists; errors as for `shards_of`."""
    return list(_weight_map(index))


def _weight_map(index: Path) -> Mapping[str, object]:
    places = read_json(index).get("weight_map")
    return places if isinstance(places, Mapping) else {}


def index_of_shard(path: Path) -> Path | None:
    """Return the index beside a file that is one of its shards; None for other files."""
    if "-of-" not in path.name:
        return None
    beside = (path.with_name(name) for name in INDEXES)
    return next((index for index in beside if index.is_file() and path.name.encode() in index.read_bytes()), None)


def without_index(path: Path) -> WeightsError | None:
    """Return the error for a shard whose index is missing, or for a folder of them; None for others."""
    folder = path if path.is_dir() else path.parent
    shards = sorted(file.name for file in folder.iterdir() if _SHARD.fullmatch(file.name)) if folder.is_dir() else []
    match = _SHARD.fullmatch(shards[0] if path.is_dir() and shards else path.name)
    index = f"{match['name']}{match['suffix']}.index.json" if match else ""
    if match is None or int(match["number"]) < 2 or (folder / index).exists():
        return None
    alike = sum(name.startswith(f"{match['name']}-") for name in shards)
    return WeightsError(
        f"{path}: {alike} of the {int(match['number'])} shards of a network are here, without their index {index}",
        f"Copy the whole folder of the model, the index included, to {folder}.",
    )


def read_config(weights: Path) -> ModelConfig:
    """Return the configuration beside weights that have one of the names in `WEIGHTS` and `INDEXES`.

    Raises:
        WeightsError: a configuration is damaged.
    """
    if weights.name not in (*WEIGHTS, *INDEXES):
        return NO_CONFIG  # any other file may share its folder with the configuration of another network
    network, open_clip, images, processor = (weights.with_name(name) for name in CONFIGS)
    return read_configs((network, open_clip, images, processor))
