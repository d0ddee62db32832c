"""Folders that hold weights: models of the Hugging Face Hub, whole or in shards, and sharded checkpoints."""

import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors

from sslbench.errors import WeightsError
from sslbench.weights.reading.model_config import NO_CONFIG, ModelConfig, read_configs, read_json

if TYPE_CHECKING:
    from torch import Tensor


# Files of weights that are tried in order: those without pickles first.
WEIGHTS = ("model.safetensors", "pytorch_model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin")
# Files that name the shard of every tensor.
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
# Descriptions of the network, of transformers or timm and of open_clip, and of its images, of transformers.
CONFIGS = ("config.json", "open_clip_config.json", "preprocessor_config.json", "processor_config.json")

_SHARD = re.compile(r"(?P<name>.+)-\d{5}-of-(?P<number>\d{5})(?P<suffix>\.safetensors|\.bin)")


# File of everything but the shards; it is written last.
STATE = "state.torch"
# File of a checkpoint of torch.distributed.checkpoint that says where the tensors lie; it is written last.
METADATA = ".metadata"
_SHARDS = "shard-*.safetensors"  # as torch.distributed.checkpoint names the files
_SHARDING = "DCP_SHARDING_INFO"  # key of the metadata in which torch.distributed.checkpoint writes offsets
_ERRORS = (safetensors.SafetensorError, OSError, RuntimeError, ValueError, TypeError, KeyError, AttributeError)


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
    """Return the shards that an index names."""
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
    names = sorted(set(map(str, weight_map(index).values())))
    if not names or any(Path(name).name != name for name in names):
        raise WeightsError(f"{index} does not name the shards of a model", "Copy it again with its shards.")
    return names


def weight_map(index: Path) -> Mapping[str, object]:
    """Return tensor -> name of its shard, as an index lists them."""
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
    """Return the configuration beside weights that have one of the names in `WEIGHTS` and `INDEXES`."""
    if weights.name not in (*WEIGHTS, *INDEXES):
        return NO_CONFIG  # any other file may share its folder with the configuration of another network
    network, open_clip, images, processor = (weights.with_name(name) for name in CONFIGS)
    return read_configs((network, open_clip, images, processor))


def is_sharded(path: Path) -> bool:
    """Return whether a path is a sharded checkpoint."""
    return path.is_dir() and (path / STATE).is_file()


def is_unfinished(path: Path) -> bool:
    """Return whether a folder has shards, but lacks the file that is written last."""
    return path.is_dir() and not (path / STATE).exists() and any(path.glob(_SHARDS))


def is_part(path: Path) -> bool:
    """Return whether a file is one of those of a sharded checkpoint."""
    if path.name != STATE and not path.match(_SHARDS):
        return False
    return is_sharded(path.parent) and any(path.parent.glob(_SHARDS))


def is_distributed(path: Path) -> bool:
    """Return whether a path is the folder of a checkpoint of torch.distributed.checkpoint, finished or not."""
    return path.is_dir() and any(path.glob("*.distcp"))


def crc32(path: Path, also: Callable[[bytes], Any] = lambda block: None) -> int:
    """Return the CRC-32 of a file."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            value = zlib.crc32(block, value)
            also(block)
    return value


def damage(
    folder: Path, files: Any, *, contents: bool = True, also: Callable[[bytes], Any] = lambda block: None
) -> str | None:
    """Return the first problem of the shards in a folder, or None."""
    if not isinstance(files, Mapping) or not files:
        return f"{STATE} lists no shards"
    for name, entry in files.items():
        # A name with a folder in it could lead anywhere on the disk.
        if Path(name).name != name or not isinstance(entry, Mapping) or entry.keys() != {"bytes", "crc32"}:
            return f"{STATE} has a wrong entry '{name}'"
        path, size, checksum = folder / name, entry["bytes"], entry["crc32"]
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size:,} bytes, not {size:,}"
        if contents and crc32(path, also) != checksum:
            return f"the checksum of {name} is wrong"
    return None


def whole_tensors(folder: Path, files: Iterable[str], wanted: Iterable[str]) -> "dict[str, Tensor]":
    """Return tensors that are put together from the shards."""
    names = set(wanted)
    pieces: dict[str, list[tuple[list[int], Tensor]]] = {name: [] for name in names}
    for file in files:
        try:
            with safetensors.safe_open(folder / file, framework="pt", device="cpu") as shards:
                offsets = json.loads((shards.metadata() or {})[_SHARDING])
                for name in names & set(shards.keys()):
                    pieces[name].append((list(map(int, offsets[name]["saved_offsets"])), shards.get_tensor(name)))
        except _ERRORS as error:
            raise WeightsError(f"{folder / file} has no readable shards: {error}") from error
    try:
        return {name: joined(found) for name, found in pieces.items()}
    except _ERRORS as error:
        raise WeightsError(f"{folder}: its shards do not fit together: {error}") from error


def joined(pieces: "list[tuple[list[int], Tensor]]") -> "Tensor":
    """Return the tensor that pieces at these offsets fill."""
    import torch

    pieces = [(offset, piece) for offset, piece in pieces if piece.numel()] or pieces[:1]
    if not pieces:
        raise ValueError("a tensor is missing")
    if min((start for offset, _ in pieces for start in offset), default=0) < 0:
        raise ValueError("an offset is negative")
    ends = ([start + n for start, n in zip(offset, piece.shape, strict=True)] for offset, piece in pieces)
    size = [max(stops) for stops in zip(*ends, strict=True)]
    # Checked before memory is taken for a size that the file claims.
    if sum(piece.numel() for _, piece in pieces) != math.prod(size):
        raise ValueError("pieces are missing, or overlap")
    whole = torch.empty(size, dtype=pieces[0][1].dtype)
    filled = torch.zeros(size, dtype=torch.bool)
    for offset, piece in pieces:
        place = tuple(slice(start, start + length) for start, length in zip(offset, piece.shape, strict=True))
        whole[place], filled[place] = piece, True
    if not bool(filled.all()):
        raise ValueError("pieces overlap")
    return whole


CHECKPOINT = re.compile(r"step_(\d{9})\.ckpt")
"""Name of a checkpoint of a training run, with its number of updates."""


def checkpoint_files(folder: Path) -> list[Path]:
    """Return the checkpoints of a training run in a folder, oldest first."""
    return sorted(path for path in folder.glob("step_*.ckpt") if CHECKPOINT.fullmatch(path.name))


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint of a training run in a folder, or None."""
    found = checkpoint_files(folder)
    return found[-1] if found else None
