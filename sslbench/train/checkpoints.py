"""Checkpoints: written atomically, the last few kept, readable without unpickling code.

A checkpoint is a zip file, as `torch.save` writes it, with a checksum of each part. `torch.load` ignores the checksums;
`check` compares them. A sharded checkpoint is a folder of the same name, with the shards of each process and such a
file (`weights.reading.folders`).
"""

import dataclasses
import hashlib
import logging
import os
import shutil
import socket
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sslbench import paths
from sslbench.distributed.collectives import from_first, on_all, rank
from sslbench.errors import SslbenchError, UsageError, WeightsError
from sslbench.paths import new_file
from sslbench.weights.reading import folders
from sslbench.weights.reading.folders import CHECKPOINT, checkpoint_files, newest_checkpoint
from sslbench.weights.save import CHECKPOINT_FORMAT, write_torch

log = logging.getLogger("sslbench")

FORMAT = CHECKPOINT_FORMAT
VERSION = 1


class DamagedError(WeightsError):
    """Damaged checkpoint: the content differs from what was written."""


def write(folder: Path, step: int, content: dict[str, Any], *, keep: int) -> Path:
    """Write a checkpoint, then remove the oldest ones beyond `keep`."""
    path = _path(folder, step)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with new_file(path) as temporary:
            write_torch(temporary, {"format": FORMAT, "version": VERSION, "step": step, **content})
    except (OSError, SslbenchError) as error:
        message = error.message if isinstance(error, SslbenchError) else paths.not_written(path, error)
        raise not_written(folder, message) from error
    _remove_old(folder, keep)
    return path


def not_written(folder: Path, message: str) -> SslbenchError:
    """Return the error of a checkpoint that cannot be written; its remedy names the last one of the folder."""
    previous = newest_checkpoint(folder)
    remedy = f"The last complete checkpoint is {previous}." if previous else "No checkpoint was written yet."
    return SslbenchError(message, f"Free disk space. {remedy}")


def unfinished(folder: Path, step: int) -> Path:
    """Return the temporary folder for the shards of a checkpoint; `finish_sharded` makes it the checkpoint."""
    return folder / f".{_path(folder, step).name}.part.shards"


def finish_sharded(part: Path, files: Mapping[str, Mapping[str, int]], content: dict[str, Any], *, keep: int) -> Path:
    """Complete the folder of a sharded checkpoint, then remove the oldest checkpoints beyond `keep`."""
    folder, path = part.parent, _path(part.parent, content["step"])
    try:
        with new_file(part / folders.STATE) as temporary:
            write_torch(
                temporary,
                {
                    "format": FORMAT,
                    "version": VERSION,
                    **content,
                    "files": {name: dict(entry) for name, entry in files.items()},
                },
            )
        if path.exists():  # a run that continues from an earlier checkpoint has set later ones aside
            _remove(path)
        _sync_names(part)
        part.rename(path)
        _sync_names(folder)
    except OSError as error:
        raise not_written(folder, paths.not_written(path, error)) from error
    _remove_old(folder, keep)
    return path


def _path(folder: Path, step: int) -> Path:
    return folder / f"step_{step:09d}.ckpt"


def _sync_names(folder: Path) -> None:
    """Write the names in a folder to the disk, where the system can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove_old(folder: Path, keep: int) -> None:
    """Remove the oldest checkpoints beyond `keep`; one that cannot be removed is told, and training goes on."""
    for old in checkpoint_files(folder)[: -max(keep, 1)]:
        try:
            _remove(old)
        except OSError as error:
            log.warning(
                f"the old checkpoint {old} cannot be removed: {error.strerror or error}; the new one is complete"
            )


def _remove(path: Path) -> None:
    """Remove a checkpoint, of a link only the link."""
    # A folder is renamed first, so that no half of it looks like a checkpoint.
    if path.is_dir() and not path.is_symlink():
        hidden = path.with_name(f".{path.name}.part.removed")
        shutil.rmtree(hidden, ignore_errors=True)
        path = path.rename(hidden)
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@dataclasses.dataclass(frozen=True)
class Position:
    """Position of a checkpoint in its run: updates done, and epochs; None for files that do not record them."""

    step: int
    epoch: float | None


def position(path: Path) -> Position:
    """Return the position of a checkpoint in its run; its tensors are not read."""
    step = int(path.stem.removeprefix("step_"))
    try:
        content = torch.load(_zip(path), map_location="cpu", weights_only=True, mmap=True)
        return Position(step, float(content["metadata"]["epochs"]))
    except Exception:  # noqa: BLE001  a damaged file is reported where its tensors are read
        return Position(step, None)


def run_name(folder: Path) -> str:
    """Return the name of the run that a folder of checkpoints belongs to.

    >>> run_name(Path("runs/a/checkpoints")), run_name(Path("copied"))
    ('a', 'copied')
    """
    whole = folder.absolute()
    return whole.parent.name if whole.name == "checkpoints" else whole.name


def refuse_other_folder(path: Path) -> None:
    """Refuse a folder that is no checkpoint, such as that of a run, and a single shard; name checkpoints near it."""
    if CHECKPOINT.fullmatch(path.name) or not path.is_dir():
        if path.suffix == ".safetensors" and folders.is_sharded(path.parent):
            raise UsageError(f"{path} is one of the shards of a checkpoint", f"Name the folder: {path.parent}.")
        return
    if not folders.is_sharded(path):
        inside = newest_checkpoint(path) or newest_checkpoint(path / "checkpoints")
        remedy = f"Name one of its checkpoints, such as {inside}." if inside else "It has no checkpoints in it."
        raise UsageError(f"{path} is a folder, but not a checkpoint", remedy)


def check(path: Path, *, contents: bool = True) -> str:
    """Compare every part of a checkpoint with its checksum, and return a digest of the whole."""
    if path.is_dir() and not folders.is_sharded(path):
        raise DamagedError(f"{path} is damaged: it has no {folders.STATE}", "Remove it to use the previous one.")
    try:
        with zipfile.ZipFile(_zip(path)) as archive:
            wrong = archive.testzip()
            parts = [f"{part.filename} {part.file_size} {part.CRC}" for part in archive.infolist()]
        problem = None if wrong is None else f"the checksum of {wrong} is wrong"
        if problem is None and path.is_dir():
            problem = folders.damage(path, read(path).get("files"), contents=contents)
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # a flipped byte makes zipfile raise many kinds
        raise DamagedError(f"{path} is damaged: {error}", "Remove it to use the previous one.") from error
    if problem is not None:
        raise DamagedError(f"{path} is damaged: {problem}", "Remove it to use the previous one.")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _zip(path: Path) -> Path:
    """Return the zip file of a checkpoint: itself, or the one in its folder."""
    return path / folders.STATE if path.is_dir() else path


def read(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint, without shards; use `check` first to find damage."""
    try:
        content = torch.load(_zip(path), map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        raise WeightsError(f"{path} cannot be read as a checkpoint: {error}") from error
    except Exception as error:
        if type(error).__name__ != "UnpicklingError":
            raise
        raise WeightsError(
            f"{path} is not a checkpoint of sslbench", "It holds more than tensors and numbers."
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise WeightsError(f"{path} is not a checkpoint of sslbench", "Pass weights with --init.")
    if content["version"] != VERSION:
        raise WeightsError(
            f"{path} was written by another version of sslbench (format {content['version']}, not {VERSION})",
            "Continue with that version, or start a new run in another --out.",
        )
    return content


def set_aside(folder: Path, *, after: int) -> list[Path]:
    """Rename the checkpoints of later updates, so that no run continues from them."""
    later = [path for path in checkpoint_files(folder) if int(path.stem.removeprefix("step_")) > after]
    aside = [path.with_name(f"{path.name}.set-aside") for path in later]
    for earlier in aside:
        if earlier.is_dir():  # of an earlier rewind; a file is replaced
            shutil.rmtree(earlier)
    return [path.replace(new) for path, new in zip(later, aside, strict=True)]


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files and folders of a process that was killed while writing."""
    for leftover in folder.glob(".*.part.*"):  # as paths.new_file and `unfinished` name them
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def newest_whole(folder: Path, *, given: Path | None = None) -> tuple[Path, dict[str, Any]] | None:
    """Return the checkpoint to continue from and its content, or None if there is none; every process calls this.

    Damaged checkpoints are skipped with a warning, and half-written files of earlier processes are removed. Call
    `continue_from` as soon as it is certain that training continues from the returned checkpoint.

    `given`: checkpoint named by the user; None for the newest undamaged one of the folder.
    """
    choice = from_first(lambda: _choose(folder, given))
    if choice is None:
        return None
    path, digest = choice
    return path, on_all(lambda: _read_same(path, digest))


def continue_from(folder: Path, path: Path, step: int) -> None:
    """Set later checkpoints aside and log where training continues; every process calls this."""
    for later in from_first(lambda: set_aside(folder, after=step)):
        log.info(f"renamed to {later}: training continues from an earlier checkpoint")
    log.info(f"continuing from {path} after update {step}")


def _choose(folder: Path, given: Path | None) -> tuple[Path, str] | None:
    """Return the checkpoint to continue from and its digest, on the first process."""
    remove_leftovers(folder)
    if given is not None:
        refuse_other_folder(given)
        return given, check(given)
    damaged = []
    # A run killed while it wrote, or a full disk, damages the newest one only.
    for path in reversed(checkpoint_files(folder)):
        try:
            digest = check(path)
        except DamagedError as error:
            log.warning(f"{error.message}; trying the previous one")
            damaged.append(path.name)
        else:
            return path, digest
    if damaged:
        raise WeightsError(
            f"every checkpoint in {folder} is damaged: {', '.join(damaged)}",
            "Check the disk; remove them to start again.",
        )
    return None


def _read_same(path: Path, digest: str) -> dict[str, Any]:
    """Return the content of a checkpoint, if its digest is that of the first process."""
    remedy = "All processes must see the same --out, on a file system shared by their machines."
    process = f"process {rank()} on {socket.gethostname()}"
    try:
        own = digest if rank() == 0 else check(path, contents=False)
    except WeightsError as error:
        raise WeightsError(f"{process}: {error.message}", remedy) from error
    if own != digest:
        raise WeightsError(f"{path} differs between {process} and the first process", remedy)
    return read(path)
