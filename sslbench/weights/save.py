"""sslbench's own weights file: one backbone under canonical names, with its architecture and provenance."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import torch
from torch import Tensor

from sslbench.config import build
from sslbench.errors import SslbenchError, WeightsError
from sslbench.paths import new_file
from sslbench.text import without_secrets
from sslbench.weights.format_name import check_target

if TYPE_CHECKING:
    from sslbench.weights.reading.files import WeightsFile

T = TypeVar("T")

FORMAT = "sslbench"
# Value of 'format' in training checkpoints; those of pretraining contain the network as sslbench's own files do.
CHECKPOINT_FORMAT = "sslbench checkpoint"
# Heads trained on a frozen backbone, which the file does not have.
PROBE_FORMAT = "sslbench probe"
VERSION = 1


def save(
    path: str | Path,
    tensors: Mapping[str, Tensor],
    *,
    backbone: str,
    metadata: Mapping[str, Any],
    heads: Mapping[str, Tensor] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write sslbench's own weights file; it appears complete or not at all.

    tensors: canonical name -> tensor.
    heads: name -> tensor of the heads (a classifier, a projection), kept apart from the backbone.
    """
    path = Path(path).expanduser()
    check_target(path, overwrite=overwrite)
    if not tensors:
        raise WeightsError(f"there are no tensors to write to {path}")
    content = own_content(tensors, backbone=backbone, metadata=metadata, heads=heads)
    with new_file(path) as temporary:
        write_torch(temporary, content)
    return path


def save_probe(path: Path, heads: Mapping[str, Any], *, backbone: str, metadata: Mapping[str, Any]) -> None:
    """Write the tensors, or arrays, of heads that were trained on a frozen backbone; a file that exists is replaced."""
    tensors = {name: torch.as_tensor(values) for name, values in heads.items()}
    content = own_content({}, backbone=backbone, metadata=metadata, heads=tensors)
    with new_file(path) as temporary:
        write_torch(temporary, {**content, "format": PROBE_FORMAT})


def write_torch(path: Path, content: Any) -> None:
    """Write a file with torch.save."""
    with path.open("wb") as file:
        # torch hides a failed write, and Ctrl-C during one, behind a RuntimeError about its archive.
        recording = _ErrorRecordingFile(file)
        try:
            torch.save(content, cast(IO[bytes], recording))
        except RuntimeError as error:
            if recording.error is None:
                raise
            raise recording.error from error


class _ErrorRecordingFile:
    """Writable file that records the error of a failed write, and Ctrl-C or SIGTERM during one."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.error: OSError | KeyboardInterrupt | None = None

    def write(self, data: Any) -> int:
        try:
            return self.file.write(data)
        except (OSError, KeyboardInterrupt) as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def own_content(
    tensors: Mapping[str, Tensor],
    *,
    backbone: str,
    metadata: Mapping[str, Any],
    heads: Mapping[str, Tensor] | None = None,
) -> dict[str, Any]:
    """Return the content of sslbench's own file; it has an entry 'heads' only if there are some."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "backbone": backbone,
        "state_dict": _with_own_storage(tensors),
        "metadata": _plain(metadata, "metadata"),
        **({"heads": _with_own_storage(heads)} if heads else {}),
    }


def _with_own_storage(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies on the CPU: torch.save writes the whole storage behind a view."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


@contextlib.contextmanager
def of_file(where: str = "") -> Iterator[None]:
    """Raise messages about what a file says as errors of the file; `where`: its place, before the message."""
    try:
        yield
    except SslbenchError as error:
        raise WeightsError(f"{where}: {error.message}" if where else error.message, error.remedy) from error


def entry(file: "WeightsFile", key: str, kind: type[T]) -> T | None:
    """Return an entry of the metadata of sslbench's own file that is a dataclass as JSON; None if it is not there.

    Raises:
        WeightsError: it is something else.
    """
    metadata = file.content.get("metadata")
    own = file.content.get("format") in (FORMAT, CHECKPOINT_FORMAT, PROBE_FORMAT) and isinstance(metadata, Mapping)
    text = metadata.get(key) if own and metadata else None
    if text is None:
        return None
    where = f"{file.path}: metadata.{key}"
    try:
        with of_file():
            return build(kind, json.loads(text), where)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{where} should be JSON: {' '.join(str(error).split())[:200]}") from error


def _plain(value: Any, where: str) -> Any:
    """Return the value in plain Python types, which torch.load(weights_only=True) accepts, without secrets of URLs."""
    # The exact types: numpy's float64 is a float too, and torch.load(weights_only=True) refuses it.
    if value is None or type(value) in (int, float, bool):
        return value
    if type(value) is str:
        return without_secrets(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(entry, f"{where}.{key}") for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry, where) for entry in value]
    raise WeightsError(f"{where} should hold numbers and text, not {type(value).__name__}")
