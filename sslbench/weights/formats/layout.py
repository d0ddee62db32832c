"""Layout of written files: container, place of the state dict, entries beside it."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from sslbench.errors import UsageError, WeightsError
from sslbench.weights import save
from sslbench.weights.formats.tables import FormatTable

NOTE = "sslbench"  # key of the provenance, in layouts with entries beside the state dict


def check_layout(path: Path, table: FormatTable) -> None:
    """Raise if files of the format do not exist in the container that the suffix of `path` selects.

    Raises:
        UsageError: there are no such files.
    """
    suffix = path.suffix.lower()
    if suffix == ".safetensors" and (table.file.marker or "" not in table.file.state_dict):
        raise UsageError(
            f"format {table.name} cannot be a .safetensors file: it has entries beside its tensors",
            "Give OUT another suffix, such as .pth.",
        )
    if suffix == ".pkl" and table.file.write.pickle is None:
        raise UsageError(
            f"format {table.name} has no .pkl files (pickles of numpy arrays)",
            "Give OUT another suffix, such as .pth.",
        )
    if suffix in (".npz", ".npy"):
        raise UsageError(f"{suffix} files can be read but not written", "Give OUT another suffix, such as .pth.")


def write(
    path: Path,
    table: FormatTable,
    tensors: Mapping[str, Tensor],
    *,
    heads_beside: Mapping[str, Tensor],
    backbone: str,
    note: Mapping[str, Any],
) -> None:
    """Write tensors that already have the format's keys.

    Args:
        path: output file; its suffix selects the container.
        table: table of the format.
        tensors: key -> tensor.
        heads_beside: key -> tensor of heads stored in a dict of their own (`heads_at`).
        backbone: name of the architecture, for sslbench's own files.
        note: provenance: text and numbers.

    Raises:
        WeightsError: the container cannot hold a tensor.
    """
    suffix = path.suffix.lower()
    if table.name == save.FORMAT:
        content = save.own_content(tensors, backbone=backbone, metadata=note)
        save.write_torch(path, content)
    elif suffix == ".safetensors":
        flat = {key: tensor.contiguous() for key, tensor in _with_own_storage(tensors).items()}
        metadata = {"format": "pt", **{key: str(value) for key, value in note.items()}}
        path.write_bytes(safetensors_bytes(flat, metadata))
    elif suffix == ".pkl":
        arrays = {key: _array(key, tensor) for key, tensor in tensors.items()}
        content = _nested(table, arrays, {}, {**(table.file.write.pickle or {}), NOTE: dict(note)})
        path.write_bytes(pickle.dumps(content, protocol=4))
    else:
        beside = {**(table.file.marker or {}), **table.file.write.torch, NOTE: dict(note)}
        content = _nested(table, _with_own_storage(tensors), _with_own_storage(heads_beside), beside)
        save.write_torch(path, content)


def _nested(
    table: FormatTable, tensors: Mapping[str, Any], heads: Mapping[str, Any], beside: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of a file, with `tensors` at the first `state_dict` place of the table.

    A file that is itself the state dict holds neither heads nor other entries beside it.
    """
    place = table.file.state_dict[0]
    if place == "":
        return dict(tensors)
    content = dict(beside)
    _put(content, place, dict(tensors))
    for where in table.file.heads_at:
        _put(content, where, dict(heads))  # empty without heads: VISSL's reader asks for it
    return content


def _put(content: dict[str, Any], where: str, value: dict[str, Any]) -> None:
    *steps, last = where.split(".")
    for step in steps:
        content = content.setdefault(step, {})
    content[last] = value


def _with_own_storage(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy views of larger tensors, because torch.save writes the whole storage behind a view."""
    return {
        key: tensor if tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size() else tensor.clone()
        for key, tensor in tensors.items()
    }


def _array(key: str, tensor: Tensor) -> np.ndarray[Any, Any]:
    try:
        return np.ascontiguousarray(tensor.numpy()).reshape(tuple(tensor.shape))
    except TypeError as error:
        raise WeightsError(f"a .pkl of numpy arrays cannot hold '{key}': {error}", "Write a .pth file.") from error
