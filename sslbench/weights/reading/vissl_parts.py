"""VISSL checkpoints in several files: one per process (shards) or one per tensor (slices).

Shards hold pieces of flattened parameters, as fairscale's FullyShardedDataParallel (0.4) keeps them, and say how to put
them together; fairscale itself is not needed.
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
    """The checkpoint as VISSL would write it into one file; `loaded` itself if it is whole already.

    Args:
        path: of the file that was read; the other files lie beside it, or where the list says.
        loaded: its content.
        read: reads another file of torch.save.

    Raises:
        WeightsError: it is one part of several, or a part is missing or does not fit the others.
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
    """Refuse shards listed twice: a short list could ask for the same large file without end."""
    shards = loaded.get("shards") or ()
    if len({str(name) for name in shards}) < len(shards):
        raise WeightsError(f"{path} lists a part of the checkpoint twice")


def _part(path: Path, name: object) -> Path:
    """Where a part lies: where the list says, else beside the list (checkpoints are copied)."""
    given = Path(str(name))
    beside = PureWindowsPath(str(name)).name  # its last step, whichever slashes it has
    for candidate in (path.parent / given, path.parent / beside, path.parent / given.parent.name / beside):
        if candidate.is_file():
            return candidate
    raise WeightsError(f"{path} lists '{name}', which is neither there nor beside it", "Copy all parts of it.")


def _join_slices(path: Path, loaded: Mapping[str, Any], read: Read) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    model = loaded["classy_state_dict"]["base_model"]["model"]

    def tensors(listed: Mapping[str, str]) -> dict[str, Tensor]:
        return {_clean(name): read(_part(path, file))["weight"] for name, file in listed.items()}

    return tensors(model["trunk"]), tensors(model.get("heads") or {})


def _join_shards(path: Path, loaded: Mapping[str, Any], read: Read) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    shards = [read(_part(path, name))["classy_state_dict"]["base_model"] for name in loaded["shards"]]
    if not shards:
        raise ValueError("it lists no parts")
    trunk = consolidate([s["model"]["trunk"] for s in shards], [s["meta"]["trunk"] for s in shards])
    heads: dict[str, Tensor] = {}
    for number in range(len(shards[0]["meta"].get("heads") or ())):
        pieces = [shard["model"]["heads"][number] for shard in shards]
        joint = consolidate(pieces, [shard["meta"]["heads"][number] for shard in shards])
        heads |= {f"{number}.{name}": tensor for name, tensor in joint.items()}
    return trunk, heads


def consolidate(pieces: Sequence[Mapping[str, Tensor]], meta: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Whole tensors from the pieces of all processes, in the order of their ranks.

    Args:
        pieces: name -> tensor; a flattened parameter is cut into equal pieces, the last one padded.
        meta: what fairscale recorded beside them: which parameters are in a flattened one, in which shapes.

    Raises:
        KeyError, ValueError, RuntimeError: the pieces are not what `meta` says.
    """
    whole: dict[str, Tensor] = {}
    pieces = [{_clean(name): tensor for name, tensor in piece.items()} for piece in pieces]
    for number, entry in enumerate(meta[0]["param_metadata"]):
        path = entry["fsdp_path"]
        for flat_name, info in entry["params"].items():
            key = _clean(_at(path, flat_name))
            ranks = range(1 if entry.get("no_broadcast_optim_state") else len(pieces))
            pads = [meta[rank]["param_metadata"][number]["params"][flat_name]["padding"] for rank in ranks]
            cut = [pieces[rank][key].flatten() for rank in ranks]
            flat = torch.cat([c[: len(c) - pad] if pad else c for c, pad in zip(cut, pads, strict=True)])
            parts = torch.split(flat, list(info["numels"]))
            for name, part, shape in zip(info["names"], parts, info["shapes"], strict=True):
                whole[_clean(_at(path, name))] = part.reshape(tuple(shape))
        for source, target in entry["shared_param_info"]:  # one parameter under two names
            whole[_clean(target)] = whole[_clean(source)]
    for name in meta[0]["buffer_names"]:
        whole[_clean(name)] = pieces[0][_clean(name)]
    return whole


def _at(*path: str) -> str:
    return ".".join(step for step in path if step)


def _clean(name: str) -> str:
    return ".".join(step for step in name.split(".") if step not in _WRAPPERS)
