"""sslbench's own weights file: one backbone under canonical names, with its architecture and where it comes from."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sslbench.errors import UsageError, WeightsError

FORMAT = "sslbench"
VERSION = 1


def save(
    path: str | Path,
    tensors: Mapping[str, Tensor],
    *,
    backbone: str,
    metadata: Mapping[str, Any],
    overwrite: bool = False,
) -> Path:
    """Write a file that every command reads; it appears whole or not at all.

    Args:
        path: where to.
        tensors: canonical name -> tensor.
        backbone: name of the architecture, for instance 'resnet50'.
        metadata: numbers and text, possibly in dicts and lists: where the weights come from.
        overwrite: whether a file that is there may be replaced.

    Raises:
        UsageError: the file is there already, or its folder is not.
        WeightsError: there are no tensors, or the metadata holds something else than numbers and text.
    """
    path = Path(path).expanduser()
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists already", "Give another name, or say that it may be overwritten.")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: the folder {path.parent} does not exist")
    if not tensors:
        raise WeightsError(f"there are no tensors to write to {path}")
    content = {
        "format": FORMAT,
        "version": VERSION,
        "backbone": backbone,
        # A view of a larger tensor would be written with all of its storage.
        "state_dict": {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()},
        "metadata": _plain(metadata, "metadata"),
    }
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)  # mkstemp gives it to the owner only
        Path(temporary).replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        Path(temporary).unlink(missing_ok=True)
    return path


def _plain(value: Any, where: str) -> Any:
    """The same in plain Python types, which torch's safe reader accepts."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(entry, f"{where}.{key}") for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry, where) for entry in value]
    raise WeightsError(f"{where} should hold numbers and text, not {type(value).__name__}")
