"""Reader of folders that torch.distributed.checkpoint wrote (FSDP, Lightning, Accelerate), without torch.distributed.

`.metadata` is a pickle with the size of every tensor and the file and offset of each of its pieces; a piece is a tensor
of torch.save.
"""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from sslbench.errors import WeightsError
from sslbench.weights.reading import shards, torch_files
from sslbench.weights.reading.pickled import InertObject, UnsupportedTensor
from sslbench.weights.reading.unpickle import RestrictedPickle

_SHARDED = ("ShardedTensor", "DTensor")
_FLAT = ("_flat_param", "flat_param")
_SAVE_WHOLE = (
    "Save it whole: get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)) of "
    "torch.distributed.checkpoint.state_dict; or save with torch.distributed.checkpoint, whose folder can be given as "
    "it is."
)

_Pieces = list[tuple[list[int], int, int]]  # offsets in the tensor, first byte in the file, bytes


def read(folder: Path) -> tuple[dict[str, Any], str]:
    """Return the nested dicts of tensors in a checkpoint, and the SHA-256 of its files; optimizers are left out.

    Args:
        folder: the folder, with all its files.

    Raises:
        WeightsError: a file is missing or damaged.
    """
    path = folder / shards.METADATA
    try:
        with path.open("rb") as file:
            about = RestrictedPickle(path.stat().st_size).load(file).mapping
        sizes = {
            name: list(entry.mapping["size"])
            for name, entry in about["state_dict_metadata"].items()
            if "size" in entry.mapping
        }
        keys = {name: [str(step) for step in (about.get("planner_data") or {}).get(name, [name])] for name in sizes}
        wanted = {name for name, steps in keys.items() if not steps[0].lower().startswith("optim")}
        files = _files(about["storage_data"], wanted)
    except WeightsError as error:
        raise WeightsError(f"{path}: {error.message}", error.remedy) from error
    except Exception as error:  # a damaged pickle may raise anything
        raise _damaged(path, error) from error
    digest = hashlib.sha256(path.read_bytes())
    pieces: dict[str, list[tuple[list[int], Any]]] = {name: [] for name in wanted}
    for name, places in sorted(files.items()):
        if Path(name).name != name or not (folder / name).is_file():
            raise WeightsError(
                f"{path} names {name}, which is missing", f"Copy all files of the checkpoint to {folder}."
            )
        shards.crc32(folder / name, digest.update)
        for tensor, piece in _read_pieces(folder / name, places):
            pieces[tensor].append(piece)
    content: dict[str, Any] = {}
    try:
        for name in sizes:
            if name in wanted:
                _put(content, keys[name], _whole(pieces[name], sizes[name]))
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        raise WeightsError(f"{folder}: the pieces of '{name}' do not fit together: {error}") from error
    return content, digest.hexdigest()


def file_of_a_rank(path: Path, content: Mapping[str, Any], classes: Sequence[str]) -> WeightsError | None:
    """Return the error for a file of FSDP or DeepSpeed without the whole tensors of a network; None for other files.

    Args:
        path: the file.
        content: content that was read.
        classes: names of the classes in its pickle.
    """
    if any(name.rpartition(".")[2] in _SHARDED for name in classes):
        kind = "the file of one rank of FSDP training: of every tensor it holds that rank's part only"
        return WeightsError(f"{path} is {kind}", _SAVE_WHOLE)
    keys = [key for inner in _inner(content) for key, value in inner.items() if isinstance(value, torch.Tensor)]
    if flat := [key for key in keys if key.rpartition(".")[2].startswith(_FLAT)]:
        what = f"'{flat[0]}'" + (f" and {len(flat) - 1} more" if len(flat) > 1 else "")
        kind = f"FSDP's flat parameters ({what}), in which names and shapes of the network's tensors are lost"
        return WeightsError(f"{path} holds {kind}", _SAVE_WHOLE)
    if any(key in inner for inner in _inner(content) for key in ("ds_version", "zero_stage")):
        return WeightsError(
            f"{path} is a file of DeepSpeed without the whole tensors of the network, which ZeRO divides among ranks",
            "DeepSpeed puts zero_to_fp32.py beside its checkpoints: python zero_to_fp32.py FOLDER OUT joins them.",
        )
    return None


def _inner(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a file's top and the dicts in it."""
    return [content, *(value for value in content.values() if isinstance(value, Mapping))]


def _files(stored: Mapping[InertObject, InertObject], wanted: set[str]) -> dict[str, dict[str, _Pieces]]:
    """Return file -> tensor -> its pieces there."""
    files: dict[str, dict[str, _Pieces]] = defaultdict(lambda: defaultdict(list))
    for index, place in stored.items():
        of, at = index.mapping, place.mapping
        if at.get("transform_descriptors"):
            raise WeightsError(f"'{of['fqn']}' is compressed ({at['transform_descriptors']}), which is not supported")
        pieces = files[str(at["relative_path"])]
        if of["fqn"] in wanted:
            pieces[of["fqn"]].append(([*map(int, of["offset"] or ())], int(at["offset"]), int(at["length"])))
    return files


def _read_pieces(path: Path, places: Mapping[str, _Pieces]) -> list[tuple[str, tuple[list[int], Any]]]:
    """Return the pieces in a file: name of the tensor, offsets in it and values."""
    found = []
    if sum(length for pieces in places.values() for _, _, length in pieces) > path.stat().st_size:
        raise WeightsError(f"{path} has fewer bytes than the pieces in it", "It is damaged: copy it again.")
    with path.open("rb") as file:
        for name, pieces in places.items():
            for offsets, start, length in pieces:
                if start < 0 or not 0 < length <= path.stat().st_size - start:
                    raise WeightsError(f"{path} ends before '{name}'", "It is damaged: copy it again.")
                file.seek(start)
                try:
                    value = torch_files.read_bytes(file.read(length), RestrictedPickle(length))
                except WeightsError as error:
                    raise WeightsError(f"{path}: '{name}': {error.message}", error.remedy) from error
                except Exception as error:
                    raise _damaged(path, error) from error
                found.append((name, (offsets, value)))
    return found


def _whole(pieces: list[tuple[list[int], Any]], size: list[int]) -> torch.Tensor | UnsupportedTensor:
    """Return the tensor that pieces fill."""
    unsupported = [piece for _, piece in pieces if isinstance(piece, UnsupportedTensor)]
    if unsupported:
        return unsupported[0]
    whole = shards.joined(pieces)
    if list(whole.shape) != size:
        raise ValueError(f"they make {tuple(whole.shape)}, not {tuple(size)}")
    return whole


def _put(content: dict[str, Any], steps: list[str], value: object) -> None:
    *outer, last = steps
    for step in outer:
        content = content.setdefault(step, {})
    content[last] = value


def _damaged(path: Path, error: Exception) -> WeightsError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return WeightsError(
        f"{path} cannot be read as part of a checkpoint of torch.distributed.checkpoint: {reason}",
        "It is damaged: copy the folder again.",
    )
