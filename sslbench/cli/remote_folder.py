"""Results at s3://, gs:// and other addresses of fsspec: a local folder that is kept equal to the remote one.

Records are read and written in the folder. Before a command it gets what is new at the address, so that finished
records are found; after it, also after an error, what was written goes to the address. Without a network the records
stay here, and go there after the next command.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sslbench import paths
from sslbench.errors import ResultError, UsageError
from sslbench.locks import lock

_STATES = ".remote.json"
_LOCK = ".remote.lock"
_KEYS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "updated", "created", "size")


def local_folder(place: str | Path) -> Path:
    """Return the folder of a place: itself, or the local one of an address.

    >>> local_folder("results")
    PosixPath('results')
    """
    if not is_address(place):
        return Path(place)
    digest = hashlib.sha256(_address(place).encode()).hexdigest()[:12]
    slug = re.sub(r"[^A-Za-z0-9]+", "-", _address(place)).strip("-")[-60:]
    return paths.cache_dir() / "results" / f"{slug}-{digest}"


def is_address(place: str | Path) -> bool:
    """Return whether a place is an address of fsspec; click may have made a path of it, s3:/bucket."""
    return re.match(r"[a-z][a-z0-9+.-]+:/", str(place)) is not None


@contextlib.contextmanager
def synchronised(place: str | Path) -> Iterator[Path]:
    """Yield the local folder of a place with what is there, and send what the block has written.

    Args:
        place: a folder, which is yielded as it is, or an address.

    Raises:
        UsageError: the scheme is unknown, or its package is missing.
        ResultError: the address cannot be reached.
    """
    folder = local_folder(place)
    if not is_address(place):
        yield folder
        return
    pull(place)
    try:
        yield folder
    finally:
        push(place)


def pull(place: str | Path) -> Path:
    """Copy what is new at an address into its local folder, and return that."""
    folder = local_folder(place)
    if not is_address(place):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    system, root = _system(place)
    with _errors(place), (folder / _LOCK).open("w") as handle:
        lock(handle)
        states = _states(folder)
        for name, state in _listed(system, root).items():
            file = _inside(folder, name)
            if states.get(name, [""])[0] != state or not file.is_file():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(system.cat_file(f"{root}/{name}"))
                states[name] = [state, file.stat().st_mtime_ns]
        _write_states(folder, states)
    return folder


def push(place: str | Path) -> None:
    """Copy files of the local folder of an address that are missing there, or were written since the last `pull`."""
    if not is_address(place):
        return
    folder = local_folder(place)
    system, root = _system(place)
    with _errors(place), (folder / _LOCK).open("w") as handle:
        lock(handle)
        there, states, sent = _listed(system, root), _states(folder), {}
        for file in (file for file in folder.rglob("*") if file.is_file() and not _is_own(file, folder)):
            name, written = file.relative_to(folder).as_posix(), file.stat().st_mtime_ns
            if name not in there or states.get(name, ["", 0])[1] != written:
                system.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
                system.pipe_file(f"{root}/{name}", file.read_bytes())
                sent[name] = written
        there = _listed(system, root) if sent else {}
        _write_states(folder, states | {name: [there[name], written] for name, written in sent.items()})


def _is_own(file: Path, folder: Path) -> bool:
    """Return true for files about this machine: locks, states, and the logs of jobs."""
    parts = file.relative_to(folder).parts
    return parts[0] == "slurm" or parts[-1].startswith(".")


def _address(place: str | Path) -> str:
    return re.sub(r":/+", "://", str(place), count=1).rstrip("/")


def _system(place: str | Path) -> tuple[Any, str]:
    import fsspec

    address = _address(place)
    try:
        system, root = fsspec.core.url_to_fs(address)
    except ImportError as error:
        raise UsageError(f"{address} needs a package: {error}", "pip install s3fs (s3://), gcsfs (gs://).") from error
    except ValueError as error:
        raise UsageError(f"{address}: {error}", "Write s3://BUCKET/FOLDER or gs://BUCKET/FOLDER.") from error
    system.invalidate_cache()
    return system, str(root).rstrip("/")


def _listed(system: Any, root: str) -> dict[str, str]:
    """Return name -> state of every file below an address."""
    if not system.exists(root):
        return {}
    found = system.find(root, detail=True)
    return {
        path.removeprefix(root).lstrip("/"): json.dumps([str(info.get(key)) for key in _KEYS])
        for path, info in found.items()
    }


def _inside(folder: Path, name: str) -> Path:
    """Return the local path of a remote name.

    Raises:
        ResultError: it would lie outside the folder.
    """
    if ".." in Path(name).parts or Path(name).is_absolute():
        raise ResultError(f"{name!r} is not the name of a result")
    return folder / name


def _states(folder: Path) -> dict[str, Any]:
    """Return name -> state of the remote file, time of the local one, both when they were equal."""
    try:
        found = json.loads((folder / _STATES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_states(folder: Path, states: dict[str, Any]) -> None:
    (folder / _STATES).write_text(json.dumps(states), encoding="utf-8")


@contextlib.contextmanager
def _errors(place: str | Path) -> Iterator[None]:
    """Say which address cannot be reached; packages of fsspec raise errors of all kinds."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        kept = f"What was computed is kept in {local_folder(place)}."
        raise ResultError(f"{_address(place)} cannot be reached: {error}", kept) from error
