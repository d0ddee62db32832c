"""Sharded checkpoint: a folder with the shards of each training process as safetensors, and a file of all the rest.

`state.torch` is an ordinary file of torch.save. Its entry 'files' has size and CRC-32 of every file of shards, and its
entry 'parts' the names of the tensors that belong to the network and its heads.
"""

import json
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors

from sslbench.errors import WeightsError

if TYPE_CHECKING:
    from torch import Tensor

STATE = "state.torch"
"""File of everything but the shards; it is written last."""
METADATA = ".metadata"
"""File of a checkpoint of torch.distributed.checkpoint that says where the tensors lie; it is written last."""
_SHARDS = "shard-*.safetensors"  # as torch.distributed.checkpoint names the files
_SHARDING = "DCP_SHARDING_INFO"  # key of the metadata in which torch.distributed.checkpoint writes offsets
_ERRORS = (safetensors.SafetensorError, OSError, RuntimeError, ValueError, TypeError, KeyError, AttributeError)


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
    """Return the CRC-32 of a file.

    Args:
        path: the file.
        also: function that gets each block too, such as `update` of another checksum.
    """
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            value = zlib.crc32(block, value)
            also(block)
    return value


def damage(
    folder: Path, files: Any, *, contents: bool = True, also: Callable[[bytes], Any] = lambda block: None
) -> str | None:
    """Return the first problem of the shards in a folder, or None.

    Args:
        folder: the sharded checkpoint.
        files: entry 'files' of its state.
        contents: compare checksums; otherwise sizes only.
        also: see `crc32`.

    Raises:
        OSError: a file cannot be read.
    """
    if not isinstance(files, Mapping) or not files:
        return f"{STATE} lists no shards"
    for name, entry in files.items():
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
    """Return tensors that are put together from the shards.

    Args:
        folder: the sharded checkpoint.
        files: names of the files of shards.
        wanted: names of the tensors; a name may occur twice.

    Raises:
        WeightsError: a file cannot be read, or the shards of a tensor do not fill it exactly.
    """
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
    """Return the tensor that pieces at these offsets fill.

    Raises:
        ValueError: pieces are missing, or overlap.
    """
    import torch

    pieces = [(offset, piece) for offset, piece in pieces if piece.numel()] or pieces[:1]
    if not pieces:
        raise ValueError("a tensor is missing")
    size = [max(ends) for ends in zip(*(_ends(*piece) for piece in pieces), strict=True)]
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


def _ends(offset: list[int], piece: "Tensor") -> list[int]:
    """Return the end of a piece in each dimension."""
    if min(offset, default=0) < 0:
        raise ValueError("an offset is negative")
    return [start + length for start, length in zip(offset, piece.shape, strict=True)]
