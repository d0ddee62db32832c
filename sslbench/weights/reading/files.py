"""Safe reading of weights files: no code in them is run."""

import dataclasses
import hashlib
import logging
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch

from sslbench.errors import WeightsError
from sslbench.weights.reading import distributed, folders, haiku, other, torch_files
from sslbench.weights.reading.model_config import NO_CONFIG, ModelConfig
from sslbench.weights.reading.pickled import READABLE, Budget, InertObject, UnsupportedTensor
from sslbench.weights.reading.sniff import Container, refuse_path, sniff
from sslbench.weights.reading.unpickle import RestrictedPickle

_READERS = {
    "pickle": other.read_pickle,
    "npy": other.read_npy,
    "npz": other.read_npz,
    "torch tar": other.read_tar,
    "torch zip": torch_files.read_zip,
    "torch legacy": torch_files.read_legacy,
    "torchscript": torch_files.read_torchscript,
}

_READABLE_ARRAYS = frozenset(map(np.dtype, "b1 u1 i1 i2 i4 i8 f2 f4 f8 c8 c16".split()))

log = logging.getLogger("sslbench")


@dataclasses.dataclass(frozen=True)
class WeightsFile:
    """Content of a weights file.

    Attributes:
        sha256: SHA-256 of the file's bytes, 64 hex digits.
        content: nested dicts of tensors (on the CPU, possibly memory-mapped: do not write to them), numbers and text;
            other objects are left out.
        metadata: metadata of a safetensors file; else empty.
        stubbed: classes named in the file, replaced by inert objects.
        suspicious: functions named in the file but not called.
        unreadable: names of tensors of unsupported kinds, which are left out: 'queue (sparse)'.
        config: configuration beside the weights of a model on the Hugging Face Hub.
    """

    path: Path
    sha256: str
    content: dict[str, Any]
    container: Container
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    stubbed: tuple[str, ...] = ()
    suspicious: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    config: ModelConfig = NO_CONFIG

    @property
    def size(self) -> int:
        """Bytes of the file, or of all files of a sharded checkpoint."""
        files = self.path.iterdir() if self.path.is_dir() else [self.path]
        files = folders.shards_of(self.path) if folders.is_index(self.path) else files
        return sum(file.stat().st_size for file in files)


def read(path: str | Path, *, trust_pickle: bool = False) -> WeightsFile:
    """Read a file of torch.save or torch.jit.save, safetensors, a pickle, .npy or .npz without running its code.

    A VISSL checkpoint in several files (shards, slices) is returned as if it were in one, and so is the folder of a
    sharded checkpoint, and the shards of a model on the Hugging Face Hub.
    """
    path = Path(path).expanduser()
    try:
        refuse_path(path)
        if folders.is_sharded(path):
            return _read_sharded(path)
        if folders.is_distributed(path):
            return _read_distributed(path)
        path = (folders.weights_file(path) if path.is_dir() else None) or path
        file = _read_shards if folders.is_index(path) else _read_file
        return dataclasses.replace(file(path, trust_pickle=trust_pickle), config=folders.read_config(path))
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror or error}") from error


def _read_file(path: Path, *, trust_pickle: bool = False) -> WeightsFile:
    """Read a single file."""
    container = sniff(path)
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if container == "safetensors":
        try:
            with safetensors.safe_open(path, framework="pt", device="cpu") as tensors:
                content = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
                metadata = dict(tensors.metadata() or {})
        except (safetensors.SafetensorError, OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
            raise WeightsError(
                f"{path} is a damaged safetensors file: {error}", "Download or copy the file again."
            ) from error
        converter = _PlainConverter(path, Budget(path.stat().st_size))
        return WeightsFile(
            path,
            sha256,
            converter.convert(content),
            container,
            converter.convert(metadata),
            unreadable=converter.left_out(),
        )
    loaded, pickled = _read_pickled(path, container, trust_pickle=trust_pickle)
    if container.startswith("torch "):
        loaded = distributed.joined(path, loaded, lambda part: _read_part(part, trust_pickle=trust_pickle))
    stubbed, suspicious = tuple(sorted(pickled.stubbed)), tuple(sorted(pickled.suspicious))
    if not _holds_dicts(loaded):
        if stubbed and isinstance(loaded, InertObject):
            raise WeightsError(
                f"{path} holds a whole pickled object ({', '.join(stubbed[:3])}), not a dict of tensors",
                "Save model.state_dict() instead of the model. --trust-pickle reads it as it is, if you trust its "
                "author.",
            )
        raise WeightsError(f"{path} holds a {type(loaded).__name__}, not a dict of tensors", "Save model.state_dict().")
    converter = _PlainConverter(path, pickled.budget)  # the budget goes on: it bounds all that a file makes
    try:
        content = haiku.flattened(converter.convert(loaded))
    except (RecursionError, ValueError) as error:
        raise _damaged(path, error) from error
    return WeightsFile(path, sha256, content, container, {}, stubbed, suspicious, converter.left_out())


def _read_shards(index: Path, *, trust_pickle: bool) -> WeightsFile:
    """Read the shards of a model on the Hugging Face Hub as one file."""
    parts = [_read_file(path, trust_pickle=trust_pickle) for path in folders.shards_of(index)]
    content: dict[str, Any] = {}
    for part in parts:
        if both := content.keys() & part.content.keys():
            raise WeightsError(f"{index}: two of its shards have a tensor '{min(both)}'", "Copy them again.")
        content |= part.content
    if lost := [name for name in folders.weight_map(index) if name not in content]:
        raise WeightsError(
            f"{index} names {len(lost)} tensors that its shards do not hold, such as '{lost[0]}'",
            f"It is of other shards: copy the whole folder of the model to {index.parent}.",
        )
    return WeightsFile(
        index,
        hashlib.sha256("".join(part.sha256 for part in parts).encode()).hexdigest(),
        content,
        parts[0].container,
        parts[0].metadata,
        tuple(dict.fromkeys(name for part in parts for name in part.stubbed)),
        tuple(dict.fromkeys(name for part in parts for name in part.suspicious)),
        tuple(dict.fromkeys(name for part in parts for name in part.unreadable)),
    )


def _read_sharded(folder: Path) -> WeightsFile:
    """Read a sharded checkpoint: the network and its heads, whole; the rest of the training state is left out."""
    state, digest = _read_file(folder / folders.STATE), hashlib.sha256()
    digest.update(bytes.fromhex(state.sha256))
    files, parts = state.content.get("files"), state.content.get("parts")
    if problem := folders.damage(folder, state.content.get("files"), also=digest.update):
        raise WeightsError(f"{folder} is damaged: {problem}", "Use another checkpoint.")
    if not isinstance(parts, Mapping) or not all(isinstance(part, Mapping) for part in parts.values()):
        raise WeightsError(f"{folder / folders.STATE} does not say which tensors are the network")
    wanted = [str(name) for part in parts.values() for name in part.values()]
    tensors = folders.whole_tensors(folder, files or (), wanted)
    whole = {key: {own: tensors[str(name)] for own, name in part.items()} for key, part in parts.items()}
    left_out = ("files", "parts", "processes", "optimizer", "scaler")
    content = {key: value for key, value in state.content.items() if key not in left_out}
    return dataclasses.replace(
        state, path=folder, sha256=digest.hexdigest(), content={**content, **whole}, container="sharded checkpoint"
    )


def _holds_dicts(value: object) -> bool:
    """Return whether a value is a dict, an object with attributes, or a list with one of them."""
    if isinstance(value, list | tuple):
        return any(_holds_dicts(entry) for entry in value if not isinstance(entry, list | tuple))
    return isinstance(value, Mapping | torch.nn.Module) or (isinstance(value, InertObject) and bool(value.mapping))


def _read_distributed(folder: Path) -> WeightsFile:
    """Read the folder of a checkpoint of torch.distributed.checkpoint; optimizers are left out."""
    content, sha256 = distributed.read(folder)
    converter = _PlainConverter(folder, Budget(0))
    try:
        plain = converter.convert(content)
    except RecursionError as error:
        raise _damaged(folder, error) from error
    return WeightsFile(folder, sha256, plain, "distributed checkpoint", unreadable=converter.left_out())


def _read_part(path: Path, *, trust_pickle: bool) -> Any:
    """Read another torch.save file of the same checkpoint."""
    container = sniff(path)
    if not container.startswith("torch "):
        raise WeightsError(f"{path} should be a file of torch.save, not {container}")
    return _read_pickled(path, container, trust_pickle=trust_pickle)[0]


def _read_pickled(path: Path, container: Container, *, trust_pickle: bool) -> tuple[Any, RestrictedPickle]:
    restricted = RestrictedPickle(path.stat().st_size)
    try:
        loaded = _READERS[container](path, restricted)
        if trust_pickle and container.startswith("torch ") and (restricted.stubbed or restricted.suspicious):
            return _run_pickle(path), restricted  # real objects instead of the inert ones
        return loaded, restricted
    except WeightsError as error:
        if (rank := distributed.file_of_a_rank(path, {}, sorted(restricted.stubbed))) is not None:
            raise rank from error
        if trust_pickle and restricted.suspicious and (container == "pickle" or container.startswith("torch ")):
            return _run_pickle(path, plain=container == "pickle"), restricted
        where = "" if str(path) in error.message else f"{path}: "
        raise WeightsError(f"{where}{error.message}", error.remedy) from error
    except Exception as error:
        raise _damaged(path, error, container) from error


def _run_pickle(path: Path, *, plain: bool = False) -> Any:
    """Unpickle without restrictions, which may run any code: the only place that does so."""
    log.warning(f"--trust-pickle: running the code that {path} refers to")
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
    return WeightsError(f"{path} cannot be read as {kind}: {reason}", "It is damaged: download or copy it again.")


class _PlainConverter:
    """Converter of a file's content to plain dicts; each object is visited once, since a file may share dicts."""

    def __init__(self, path: Path, budget: Budget) -> None:
        self.path, self.budget = path, budget
        self.done: dict[int, Any] = {}
        self.lists: dict[int, dict[int, Any]] = {}
        self.unreadable: dict[str, None] = {}

    def left_out(self) -> tuple[str, ...]:
        """Return the names of unsupported tensors, each with its kind, and warn about them."""
        names = tuple(self.unreadable)
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            log.warning(f"{self.path}: left out tensors of unsupported kinds: {', '.join(names[:3])}{more}")
        return names

    def convert(self, value: Any) -> Any:
        """Return dicts with text keys, also for lists of dicts, tensors, numbers and text; None for other objects."""
        if isinstance(value, InertObject):
            if value.is_module:  # kept, as `done` knows mappings by their address
                value.mapping, value.is_module = dict(torch_files.module_tensors(value, self.budget)), False
            value = value.mapping
        if isinstance(value, torch.nn.Module):  # only a trusted pickle holds one
            value = value.state_dict()
        if isinstance(value, list | tuple) and _holds_dicts(value):
            value = self.lists.setdefault(id(value), dict(enumerate(value)))  # kept, as `done` knows addresses
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray):
            return _tensor(value)
        if isinstance(value, str):
            return _printable(value)
        if isinstance(value, int):
            return value if value.bit_length() <= 64 else None  # Python refuses to print much larger ones
        return value if isinstance(value, float | UnsupportedTensor) else None

    def _tensor(self, value: torch.Tensor) -> torch.Tensor | UnsupportedTensor:
        if value.is_nested or value.layout != torch.strided:
            return UnsupportedTensor("nested" if value.is_nested else "sparse")
        if value.dtype not in READABLE:
            return UnsupportedTensor(str(value.dtype).removeprefix("torch."))
        if value.is_meta:
            return UnsupportedTensor("meta")
        # The bytes of a lazily conjugated or negated tensor are not its values.
        return value.detach().resolve_conj().resolve_neg()

    def _mapping(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        if id(value) not in self.done:
            # Noted before it is filled: a dict may hold itself.
            plain = self.done[id(value)] = dict[str, Any]()
            for key, entry in value.items():
                name = _printable(key if isinstance(key, str) else f"{key!s:.100}")
                converted = self.convert(entry)
                if isinstance(converted, UnsupportedTensor) and converted.kind == "meta":
                    raise WeightsError(f"{self.path} was saved from the meta device: its tensors have no values")
                if isinstance(converted, UnsupportedTensor):
                    self.unreadable[f"'{name}' ({converted.kind})"] = None
                elif converted is not None:
                    plain[name] = converted
        found: dict[str, Any] = self.done[id(value)]
        return found


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor | UnsupportedTensor | None:
    """Convert a numpy array to a tensor; None for arrays of text or objects."""
    if array.dtype.kind not in "biufc":
        return None
    if array.dtype.newbyteorder("=") not in _READABLE_ARRAYS:
        return UnsupportedTensor(str(array.dtype))
    # torch takes arrays in the machine's own byte order only.
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(native.copy(order="C"))  # arrays read by numpy may be read-only
