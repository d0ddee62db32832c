"""Checkpoints in several files: folders of torch.distributed.checkpoint, and VISSL's shards and slices.

`.metadata` of a folder is a pickle with the size of every tensor and the file and offset of each of its pieces; a piece
is a tensor of torch.save. VISSL's shards hold pieces of flattened parameters of fairscale's FullyShardedDataParallel
(0.4), and the metadata to join them; neither torch.distributed nor fairscale is needed.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

import torch
from torch import Tensor

from sslbench.errors import WeightsError
from sslbench.weights.reading import folders, torch_files
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


Read = Callable[[Path], Any]
_WRAPPERS = frozenset({"_fsdp_wrapped_module", "_fpw_module"})  # of fairscale, in the middle of names
_LISTS = ("shard_list", "slice_list")
_PARTS = {"shard": "_shard", "slice": "_layers"}


def read(folder: Path) -> tuple[dict[str, Any], str]:
    """Return the nested dicts of tensors in a checkpoint, and the SHA-256 of its files; optimizers are left out."""
    path = folder / folders.METADATA
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
        # A name with a folder in it could lead anywhere on the disk.
        if Path(name).name != name or not (folder / name).is_file():
            raise WeightsError(
                f"{path} names {name}, which is missing", f"Copy all files of the checkpoint to {folder}."
            )
        folders.crc32(folder / name, digest.update)
        for tensor, piece in _read_pieces(folder / name, places):
            pieces[tensor].append(piece)
    content: dict[str, Any] = {}
    try:
        for name in sizes:
            if name in wanted:
                inner = content
                *outer, last = keys[name]
                for step in outer:
                    inner = inner.setdefault(step, {})
                inner[last] = _whole(pieces[name], sizes[name])
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        raise WeightsError(f"{folder}: the pieces of '{name}' do not fit together: {error}") from error
    return content, digest.hexdigest()


def file_of_a_rank(path: Path, content: Mapping[str, Any], classes: Sequence[str]) -> WeightsError | None:
    """Return the error for a file of FSDP or DeepSpeed without the whole tensors of a network; None for other files."""
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
    # A short file could ask for the same bytes any number of times.
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
    whole = folders.joined(pieces)
    if list(whole.shape) != size:
        raise ValueError(f"they make {tuple(whole.shape)}, not {tuple(size)}")
    return whole


def _damaged(path: Path, error: Exception) -> WeightsError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return WeightsError(
        f"{path} cannot be read as part of a checkpoint of torch.distributed.checkpoint: {reason}",
        "It is damaged: copy the folder again.",
    )


def joined(path: Path, loaded: Any, read: Read) -> Any:
    """Return the checkpoint in VISSL's single-file layout; `loaded` itself if it is complete already."""
    kind = loaded.get("type") if isinstance(loaded, Mapping) else None
    if isinstance(kind, str) and kind in _PARTS:
        raise WeightsError(
            f"{path} is one {kind} of a VISSL checkpoint, not the whole",
            f"Give the file that lists its parts: the one named without '{_PARTS[kind]}...'.",
        )
    if not isinstance(kind, str) or kind not in _LISTS:
        return loaded
    # A short list could request the same large file any number of times.
    shards = loaded.get("shards") or ()
    if len({str(name) for name in shards}) < len(shards):
        raise WeightsError(f"{path} lists a part of the checkpoint twice")
    try:
        trunk, heads = _join_shards(path, loaded, read) if kind == "shard_list" else _join_slices(path, loaded, read)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
        raise WeightsError(
            f"the parts of {path} cannot be put together: {reason}",
            "Consolidate them with VISSL: extra_scripts/convert_sharded_checkpoint.py.",
        ) from error
    return {"type": "consolidated", "classy_state_dict": {"base_model": {"model": {"trunk": trunk, "heads": heads}}}}


def _part_path(path: Path, name: object) -> Path:
    """Return the path of a listed part: as listed, or beside the list if the checkpoint was copied."""
    listed = Path(str(name))
    beside = PureWindowsPath(str(name)).name  # the file name after either kind of slash
    for candidate in (path.parent / listed, path.parent / beside, path.parent / listed.parent.name / beside):
        if candidate.is_file():
            return candidate
    raise WeightsError(
        f"{path} lists '{name}', which exists neither at that path nor beside it", "Copy all parts of the checkpoint."
    )


def _join_slices(path: Path, loaded: Mapping[str, Any], read: Read) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    model = loaded["classy_state_dict"]["base_model"]["model"]

    def tensors(listed: Mapping[str, str]) -> dict[str, Tensor]:
        return {_clean(name): read(_part_path(path, file))["weight"] for name, file in listed.items()}

    return tensors(model["trunk"]), tensors(model.get("heads") or {})


def _join_shards(path: Path, loaded: Mapping[str, Any], read: Read) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    shards = [read(_part_path(path, name))["classy_state_dict"]["base_model"] for name in loaded["shards"]]
    if not shards:
        raise ValueError("the list of parts is empty")
    trunk = consolidate([s["model"]["trunk"] for s in shards], [s["meta"]["trunk"] for s in shards])
    heads: dict[str, Tensor] = {}
    for number in range(len(shards[0]["meta"].get("heads") or ())):
        pieces = [shard["model"]["heads"][number] for shard in shards]
        joint = consolidate(pieces, [shard["meta"]["heads"][number] for shard in shards])
        heads |= {f"{number}.{name}": tensor for name, tensor in joint.items()}
    return trunk, heads


def consolidate(pieces: Sequence[Mapping[str, Tensor]], meta: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Join the tensors from the pieces of all processes, in the order of their ranks.

    pieces: name -> tensor per process; a flattened parameter is cut into equal pieces, the last one padded.
    """
    whole: dict[str, Tensor] = {}
    pieces = [{_clean(name): tensor for name, tensor in piece.items()} for piece in pieces]
    for number, entry in enumerate(meta[0]["param_metadata"]):
        path = entry["fsdp_path"]
        for flat_name, info in entry["params"].items():
            key = _clean(_dotted(path, flat_name))
            ranks = range(1 if entry.get("no_broadcast_optim_state") else len(pieces))
            pads = [meta[rank]["param_metadata"][number]["params"][flat_name]["padding"] for rank in ranks]
            cut = [pieces[rank][key].flatten() for rank in ranks]
            flat = torch.cat([c[: len(c) - pad] if pad else c for c, pad in zip(cut, pads, strict=True)])
            parts = torch.split(flat, list(info["numels"]))
            for name, part, shape in zip(info["names"], parts, info["shapes"], strict=True):
                whole[_clean(_dotted(path, name))] = part.reshape(tuple(shape))
        for source, target in entry["shared_param_info"]:  # one parameter under two names
            whole[_clean(target)] = whole[_clean(source)]
    for name in meta[0]["buffer_names"]:
        whole[_clean(name)] = pieces[0][_clean(name)]
    return whole


def _dotted(*path: str) -> str:
    return ".".join(step for step in path if step)


def _clean(name: str) -> str:
    return ".".join(step for step in name.split(".") if step not in _WRAPPERS)
