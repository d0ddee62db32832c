"""VISSL checkpoints in several files: one per process (shards) or one per tensor (slices).

Shards hold pieces of flattened parameters of fairscale's FullyShardedDataParallel (0.4), and the metadata to join them;
fairscale itself is not needed.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

import torch
from torch import Tensor

from sslbench.errors import WeightsError

Read = Callable[[Path], Any]
_WRAPPERS = frozenset({"_fsdp_wrapped_module", "_fpw_module"})  # of fairscale, in the middle of names
_LISTS = ("shard_list", "slice_list")
_PARTS = {"shard": "_shard", "slice": "_layers"}


def joined(path: Path, loaded: Any, read: Read) -> Any:
    """Return the checkpoint in VISSL's single-file layout; `loaded` itself if it is complete already.

    Args:
        path: path of the file; the other files lie beside it or at the listed paths.
        loaded: content of the file.
        read: reader of another torch.save file.

    Raises:
        WeightsError: the file is one part of several, or a part is missing or does not match the others.
    """
    kind = loaded.get("type") if isinstance(loaded, Mapping) else None
    if isinstance(kind, str) and kind in _PARTS:
        raise WeightsError(
            f"{path} is one {kind} of a VISSL checkpoint, not the whole",
            f"Give the file that lists its parts: the one named without '{_PARTS[kind]}...'.",
        )
    if not isinstance(kind, str) or kind not in _LISTS:
        return loaded
    _refuse_repeated(path, loaded)
    try:
        trunk, heads = _join_shards(path, loaded, read) if kind == "shard_list" else _join_slices(path, loaded, read)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
        raise WeightsError(
            f"the parts of {path} cannot be put together: {reason}",
            "Consolidate them with VISSL: extra_scripts/convert_sharded_checkpoint.py.",
        ) from error
    return {"type": "consolidated", "classy_state_dict": {"base_model": {"model": {"trunk": trunk, "heads": heads}}}}


def _refuse_repeated(path: Path, loaded: Mapping[str, Any]) -> None:
    """Refuse shards listed twice: a short list could request the same large file any number of times."""
    shards = loaded.get("shards") or ()
    if len({str(name) for name in shards}) < len(shards):
        raise WeightsError(f"{path} lists a part of the checkpoint twice")


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

    Args:
        pieces: name -> tensor per process; a flattened parameter is cut into equal pieces, the last one padded.
        meta: fairscale's metadata per process: the parameters in each flattened one, and their shapes.

    Raises:
        KeyError, ValueError, RuntimeError: the pieces contradict `meta`.
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
