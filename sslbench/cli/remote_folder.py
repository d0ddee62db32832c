"""Results at s3://, gs:// and other addresses of fsspec.

Commands read and write records in a local folder. Before a command, new records of the address are downloaded into it,
so that finished runs are not computed again; what was written is uploaded when the command ends, also after an error.
"""

import contextlib
import hashlib
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sslbench import paths
from sslbench.data.remote.urls import file_system, state_of
from sslbench.data.wording import counted
from sslbench.errors import ResultError, SslbenchError, UsageError
from sslbench.locks import lock
from sslbench.paths import file_url_path
from sslbench.runtime.folders import is_address
from sslbench.text import without_secrets

log = logging.getLogger("sslbench")

_STATES = ".remote.json"
# Schemes whose first name is a bucket, which has to exist: s3fs would make one of a mistyped name.
_BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs")


def local_folder(place: str | Path) -> Path:
    """Return the folder of a place: itself, that of a file:// URL, or the local one of an address.

    >>> local_folder("results")
    PosixPath('results')
    >>> local_folder("file:///data/results")
    PosixPath('/data/results')
    """
    if not is_address(place):
        return file_url_path(place) or Path(place)
    digest = hashlib.sha256(_address(place).encode()).hexdigest()[:12]
    # For the eye only: the digest tells addresses apart.
    slug = re.sub(r"[^A-Za-z0-9]+", "-", without_secrets(_address(place))).strip("-")[-60:]
    return paths.cache_dir() / "results" / f"{slug}-{digest}"


@contextlib.contextmanager
def synchronised(place: str | Path) -> Iterator[Path]:
    """Yield the local folder of a place with what is there, and upload what the block has written."""
    folder = pull(place)
    try:
        yield folder
    # Ctrl-C too: what is finished must not stay on this machine alone.
    except BaseException:
        try:
            _push(place)
        except SslbenchError as error:  # the error of the block matters more
            log.warning(str(error))
        raise
    _push(place)


def pull(place: str | Path) -> Path:
    """Make the local folder of an address equal to it, and return the folder; files that were never sent stay."""
    folder = local_folder(place)
    if not is_address(place):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with _connected(place, "Check the address, the network and your credentials.") as (system, root):
        scheme, bucket = _address(place).partition("://")[0], root.lstrip("/").partition("/")[0]
        if scheme in _BUCKETS and not system.exists(root) and not system.exists(bucket):
            raise UsageError(f"there is no bucket {scheme}://{bucket}, or you may not list it", "Create it first.")
        states, remote_states = _states(folder), _listed(system, root)
        for name, state in remote_states.items():
            file = _inside(folder, name)
            if file.is_file() and (_is_unsent(file, states.get(name)) or states[name][0] == state):
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            with paths.temporary_beside(file) as new:
                system.get_file(f"{root}/{name}", str(new))
                new.replace(file)
            states[name] = [state, file.stat().st_mtime_ns]
        for name in states.keys() - remote_states.keys():
            file = _inside(folder, name)
            if file.is_file() and not _is_unsent(file, states[name]):
                file.unlink()  # it was removed at the address
            del states[name]
        _write_states(folder, states)
    return folder


def _push(place: str | Path) -> None:
    """Upload the files of the local folder that were written since they were last equal to those of the address."""
    if not is_address(place):
        return
    folder = local_folder(place)
    with _connected(place, f"What was computed is kept in {folder}, and goes there with the next command.") as (
        system,
        root,
    ):
        states, sent = _states(folder), {}
        for file in paths.files_below(folder, ""):
            name = file.relative_to(folder).as_posix()
            if not name.startswith("slurm/") and _is_unsent(file, states.get(name)):  # logs of jobs stay here
                # Noted before it is sent: what is written meanwhile is sent the next time.
                sent[name] = file.stat().st_mtime_ns
                system.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
                system.put_file(str(file), f"{root}/{name}")
        if sent:
            log.info(f"{counted(len(sent), 'file')} sent to {_address(place)}")
            remote_states = _listed(system, root)
            _write_states(folder, states | {name: [remote_states[name], written] for name, written in sent.items()})


def _is_unsent(file: Path, state: Any) -> bool:
    """Return whether a file was written here since it was last equal to the one at the address."""
    return state is None or file.stat().st_mtime_ns != state[1]


def _address(place: str | Path) -> str:
    return re.sub(r":/+", "://", str(place), count=1).rstrip("/")  # click's paths make s3:/ of s3://


def _listed(system: Any, root: str) -> dict[str, str]:
    """Return name -> state of every file below an address."""
    files = system.find(root, detail=True) if system.exists(root) else {}
    return {path.removeprefix(root).lstrip("/"): state_of(info) for path, info in files.items()}


def _inside(folder: Path, name: str) -> Path:
    """Return the local path of a remote name."""
    if ".." in Path(name).parts or Path(name).is_absolute():
        raise ResultError(f"{name!r} is not the name of a result")
    return folder / name


def _states(folder: Path) -> dict[str, Any]:
    """Return name -> state of the remote file, time of the local one, both when they were equal."""
    try:
        states = json.loads((folder / _STATES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return states if isinstance(states, dict) else {}


def _write_states(folder: Path, states: dict[str, Any]) -> None:
    with paths.temporary_beside(folder / _STATES) as new:
        new.write_text(json.dumps(states), encoding="utf-8")
        new.replace(folder / _STATES)


@contextlib.contextmanager
def _connected(place: str | Path, remedy: str) -> Iterator[tuple[Any, str]]:
    """Yield the file system of an address and the path in it, one command of this machine at a time."""
    try:
        system, root = file_system(_address(place))
        # fsspec hands out one object per address and process, with the listings of before.
        system.invalidate_cache()
        with (local_folder(place) / ".remote.lock").open("w") as handle:
            lock(handle)
            yield system, root.rstrip("/")
    except SslbenchError:
        raise
    except Exception as error:  # errors of fsspec's packages have no base class in common
        raise ResultError(f"{_address(place)} cannot be reached: {error or type(error).__name__}", remedy) from error
