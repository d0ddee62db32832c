"""Reading a weights file without running anything that is in it."""

import dataclasses
import hashlib
import logging
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch

from sslbench.errors import WeightsError
from sslbench.weights import haiku, other_files, torchscript, vissl_parts
from sslbench.weights.sniff import Container, refuse_path, sniff
from sslbench.weights.unpickle import Inert, RestrictedPickle

_OTHER_READERS = {
    "pickle": other_files.read_pickle,
    "npy": other_files.read_npy,
    "npz": other_files.read_npz,
    "torch tar": other_files.read_tar,
    "torchscript": torchscript.read_torchscript,
}

log = logging.getLogger("sslbench")


@dataclasses.dataclass(frozen=True)
class WeightsFile:
    """What is in a weights file.

    Attributes:
        path: where it lies.
        sha256: of the file's bytes, 64 hex digits.
        content: dicts in dicts with tensors (on the CPU, possibly memory-mapped: do not write into them), numbers and
            text. Objects that are none of these are left out.
        container: how the tensors are stored.
        metadata: of a safetensors file; else empty.
        stubbed: classes that the file names and that became inert.
        suspicious: functions that the file names without calling them.
    """

    path: Path
    sha256: str
    content: dict[str, Any]
    container: Container
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    stubbed: tuple[str, ...] = ()
    suspicious: tuple[str, ...] = ()


def read(path: str | Path, *, trust_pickle: bool = False) -> WeightsFile:
    """Open a file of torch.save or torch.jit.save, safetensors, a pickle, .npy or .npz; no code in it is run.

    A VISSL checkpoint in several files (shards, slices) comes back as if it were in one.

    Args:
        path: where it lies.
        trust_pickle: if the file asks for more than data, run what it asks for: only for files whose maker is trusted.

    Raises:
        WeightsError: there is no such file, it is something else, damaged, or wants to call something.
    """
    path = Path(path).expanduser()
    try:
        refuse_path(path)
        container = sniff(path)
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror or error}") from error
    if container == "safetensors":
        content, metadata = _read_safetensors(path)
        return WeightsFile(path, sha256, content, container, metadata)
    if container in _OTHER_READERS:
        loaded, pickled = _read_other(path, container, trust_pickle=trust_pickle)
    else:
        loaded, pickled = _read_torch(path, mmap=container == "torch zip", trust_pickle=trust_pickle)
        loaded = vissl_parts.joined(path, loaded, lambda part: _read_part(part, trust_pickle=trust_pickle))
    stubbed, suspicious = tuple(sorted(pickled.stubbed)), tuple(sorted(pickled.suspicious))
    if not isinstance(loaded, Mapping | torch.nn.Module) and not (isinstance(loaded, Inert) and loaded.mapping):
        raise _no_dict(path, loaded, stubbed)
    try:
        content = haiku.flattened(_Plainer(path).plain(loaded))
    except RecursionError as error:
        raise _damaged(path, error) from error
    return WeightsFile(path, sha256, content, container, {}, stubbed, suspicious)


def _read_safetensors(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        raise WeightsError(f"{path} is a damaged safetensors file: {error}", "Get the file again.") from error


def _read_torch(path: Path, *, mmap: bool, trust_pickle: bool) -> tuple[Any, RestrictedPickle]:
    """First by the safe reader of torch, which knows tensors and plain containers; then by the restricted one."""
    restricted = RestrictedPickle()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the age of a file's format: nothing the user can mend
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap), restricted
        except pickle.UnpicklingError:
            pass
        except Exception as error:
            raise _damaged(path, error) from error
        if trust_pickle:
            return _run_pickle(path), restricted
        try:
            with path.open("rb") as file:
                loaded = torch.load(
                    file,
                    map_location="cpu",
                    weights_only=False,
                    pickle_module=restricted.as_module(),
                    encoding="latin1",
                )
        except WeightsError as error:
            raise WeightsError(f"{path}: {error.message}", error.remedy) from error
        except Exception as error:
            raise _damaged(path, error) from error
    return loaded, restricted


def _read_part(path: Path, *, trust_pickle: bool) -> Any:
    """Another file of torch.save, which belongs to the one that is being read."""
    container = sniff(path)
    if not container.startswith("torch "):
        raise WeightsError(f"{path} should be a file of torch.save, not {container}")
    return _read_torch(path, mmap=container == "torch zip", trust_pickle=trust_pickle)[0]


def _read_other(path: Path, container: Container, *, trust_pickle: bool) -> tuple[Any, RestrictedPickle]:
    restricted = RestrictedPickle()
    try:
        return _OTHER_READERS[container](path, restricted), restricted
    except WeightsError as error:
        if trust_pickle and restricted.suspicious and container == "pickle":
            return _run_pickle(path, plain=True), restricted
        where = "" if str(path) in error.message else f"{path}: "
        raise WeightsError(f"{where}{error.message}", error.remedy) from error
    except Exception as error:
        raise _damaged(path, error, container) from error


def _run_pickle(path: Path, *, plain: bool = False) -> Any:
    """Unpickle with everything that the file asks for, which may be any program: the only place that does so."""
    log.warning(f"--trust-pickle: running whatever {path} asks for")
    try:
        if plain:
            with path.open("rb") as file:
                return pickle.load(file, encoding="latin1")  # noqa: S301
        return torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:  # the file's own code may raise anything
        reason = " ".join(str(error).split())[:200]
        raise WeightsError(f"unpickling {path} failed: {type(error).__name__}: {reason}") from error


def _damaged(path: Path, error: Exception, container: Container = "torch zip") -> WeightsError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    kind = "a file of torch.save" if container.startswith("torch ") else f"a {container} file"
    return WeightsError(f"{path} cannot be read as {kind}: {reason}", "It is damaged: get it again.")


def _no_dict(path: Path, loaded: object, stubbed: tuple[str, ...]) -> WeightsError:
    if stubbed and isinstance(loaded, Inert):
        return WeightsError(
            f"{path} holds a whole pickled object ({', '.join(stubbed[:3])}), not a dict of tensors",
            "Save model.state_dict() instead of the model.",
        )
    return WeightsError(f"{path} holds a {type(loaded).__name__}, not a dict of tensors", "Save model.state_dict().")


class _Plainer:
    """Makes plain dicts of what a file holds. Each object is visited once: a file may hold the same dict many times."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: dict[int, Any] = {}

    def plain(self, value: Any) -> Any:
        """Dicts with text keys, tensors, numbers and text; None for everything else."""
        if isinstance(value, Inert):
            value = value.mapping
        if isinstance(value, torch.nn.Module):  # only a trusted pickle holds one
            value = value.state_dict()
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, torch.Tensor):
            if value.is_meta:
                raise WeightsError(f"{self.path} was saved from the meta device: its tensors have no values")
            return value.detach()
        if isinstance(value, np.ndarray):
            return _tensor(value)
        if isinstance(value, np.generic):
            return value.item()
        return value if isinstance(value, str | int | float | bool) else None

    def _mapping(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        if id(value) not in self.done:
            plain = self.done[id(value)] = dict[str, Any]()
            for key, entry in value.items():
                made = self.plain(entry)
                if made is not None:
                    plain[str(key)] = made
        found: dict[str, Any] = self.done[id(value)]
        return found


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor | None:
    """The same numbers; None for text and objects."""
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        return None
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(native.copy(order="C"))  # what numpy read may be read-only
