"""Results at s3://, gs:// and other addresses of fsspec: a local folder that is kept equal to the remote one.

Records are read and written in the folder. Before a command it gets what is new at the address, so that finished
records are found, and loses what was removed there; after it, also after an error, what was written goes to the
address. Without a network the records stay here, and go there after the next command.
"""

import contextlib
import hashlib
import io
import json
import logging
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sslbench import paths
from sslbench.data.wording import counted
from sslbench.errors import ResultError, SslbenchError, UsageError
from sslbench.locks import lock
from sslbench.names import did_you_mean
from sslbench.runtime.folders import file_url_path, is_address
from sslbench.text import without_secrets

log = logging.getLogger("sslbench")

_STATES = ".remote.json"
_LOCK = ".remote.lock"
_BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs")
"""Schemes whose first name is a bucket, which has to exist: s3fs would make one of a mistyped name."""
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
_KEYS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "updated", "created", "size")


def local_folder(place: str | Path) -> Path:
    """Return the folder of a place: itself, that of a file:// URL, or the local one of an address.

    Raises:
        UsageError: a file:// URL names another machine.

    >>> local_folder("results")
    PosixPath('results')
    >>> local_folder("file:///data/results")
    PosixPath('/data/results')
    """
    if not is_address(place):
        return file_url_path(place) or Path(place)
    digest = hashlib.sha256(_address(place).encode()).hexdigest()[:12]
    slug = re.sub(r"[^A-Za-z0-9]+", "-", without_secrets(_address(place))).strip("-")[-60:]
    return paths.cache_dir() / "results" / f"{slug}-{digest}"


@contextlib.contextmanager
def synchronised(place: str | Path) -> Iterator[Path]:
    """Yield the local folder of a place with what is there, and send what the block has written.

    Args:
        place: a folder, which is yielded as it is, or an address.

    Raises:
        UsageError: the scheme is unknown, its package is missing, or there is no such bucket.
        ResultError: the address cannot be reached.
    """
    folder = local_folder(place)
    if not is_address(place):
        yield folder
        return
    pull(place)
    try:
        yield folder
    except BaseException:
        try:
            push(place)
        except SslbenchError as error:  # the error of the block matters more
            log.warning(str(error))
        raise
    push(place)


def pull(place: str | Path) -> Path:
    """Copy what is new at an address into its local folder, remove what was removed there, and return the folder.

    A file that was written here since it was last equal to the remote one is kept, and `push` sends it. So is an intact
    file whose remote one is cut off.
    """
    from sslbench.results.records import replace_file

    folder = local_folder(place)
    if not is_address(place):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    system, root = _system(place)
    with _errors(place, "Check the address, the network and your credentials."), (folder / _LOCK).open("w") as handle:
        lock(handle)
        _check_bucket(place, system, root)
        states, there = _states(folder), _listed(system, root)
        for name, state in there.items():
            file = _inside(folder, name)
            known, written = states.get(name, ["", 0])
            if file.is_file() and (known == state or file.stat().st_mtime_ns != written):
                continue
            content = system.cat_file(f"{root}/{name}")
            if _is_whole(name, content):
                replace_file(file, content)
                states[name] = [state, file.stat().st_mtime_ns]
            else:
                then = "the copy of this machine is kept" if file.is_file() else "it is left out"
                log.warning(f"{_address(place)}/{name} is cut off: {then}")
                states.pop(name, None)  # the next `push` replaces it
        for name in states.keys() - there.keys():
            file = _inside(folder, name)
            if file.is_file() and file.stat().st_mtime_ns == states[name][1]:
                file.unlink()
            del states[name]
        _write_states(folder, states)
    return folder


def push(place: str | Path) -> None:
    """Copy files of the local folder of an address that are missing there, or were written since the last `pull`."""
    if not is_address(place):
        return
    folder = local_folder(place)
    system, root = _system(place)
    kept = f"What was computed is kept in {folder}, and goes there with the next command."
    with _errors(place, kept), (folder / _LOCK).open("w") as handle:
        lock(handle)
        there, states, sent = _listed(system, root), _states(folder), {}
        for file in (file for file in folder.rglob("*") if file.is_file() and not _is_own(file, folder)):
            name, written = file.relative_to(folder).as_posix(), file.stat().st_mtime_ns
            if name not in there or states.get(name, ["", 0])[1] != written:
                system.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
                system.pipe_file(f"{root}/{name}", file.read_bytes())
                sent[name] = written
        if sent:
            log.info(f"{counted(len(sent), 'file')} sent to {_address(place)}")
        there = _listed(system, root) if sent else {}
        _write_states(folder, states | {name: [there[name], written] for name, written in sent.items()})


def _is_whole(name: str, content: bytes) -> bool:
    """Return false for a record or archive that ends too early, as after an interrupted transfer."""
    if name.endswith((".npz", ".torch")):
        return zipfile.is_zipfile(io.BytesIO(content))
    if name.endswith(".json"):
        try:
            json.loads(content)
        except ValueError:
            return False
    return True


def _is_own(file: Path, folder: Path) -> bool:
    """Return true for files about this machine: locks, states, and the logs of jobs."""
    parts = file.relative_to(folder).parts
    return parts[0] == "slurm" or parts[-1].startswith(".")


def _address(place: str | Path) -> str:
    return re.sub(r":/+", "://", str(place), count=1).rstrip("/")


def _system(place: str | Path) -> tuple[Any, str]:
    import fsspec

    address = _address(place)
    scheme, known = address.partition("://")[0], sorted(fsspec.available_protocols())
    if scheme not in known:
        raise UsageError(f"'{scheme}://' is an unknown URL scheme", did_you_mean(scheme, known))
    try:
        system, root = fsspec.core.url_to_fs(address)
    except ImportError as error:
        package = _PACKAGES.get(scheme, str(getattr(error, "name", None) or f"fsspec[{scheme}]"))
        raise UsageError(f"{scheme}:// needs the package {package}", f"pip install {package}") from error
    except ValueError as error:
        raise UsageError(f"{address}: {error}", "Write s3://BUCKET/FOLDER or gs://BUCKET/FOLDER.") from error
    system.invalidate_cache()
    return system, str(root).rstrip("/")


def _check_bucket(place: str | Path, system: Any, root: str) -> None:
    """Refuse a bucket that does not exist, before anything is computed for it."""
    scheme, bucket = _address(place).partition("://")[0], root.lstrip("/").partition("/")[0]
    if scheme in _BUCKETS and not system.exists(root) and not system.exists(bucket):
        raise UsageError(f"there is no bucket {scheme}://{bucket}, or you may not list it", "Create it first.")


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
    """Return the local path of a remote name."""
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
    from sslbench.results.records import replace_file

    replace_file(folder / _STATES, json.dumps(states).encode())


@contextlib.contextmanager
def _errors(place: str | Path, remedy: str) -> Iterator[None]:
    """Say which address cannot be reached; errors of fsspec's packages have no base class in common."""
    try:
        yield
    except SslbenchError:
        raise
    except Exception as error:
        problem = str(error) or type(error).__name__
        raise ResultError(f"{_address(place)} cannot be reached: {problem}", remedy) from error
