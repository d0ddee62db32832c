"""The folder of a run: what lies where, which run it belongs to, and what is left of one that was interrupted."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from sslbench.data.loading.pretraining import RawBatch
from sslbench.data.source import Source
from sslbench.distributed.collectives import from_first, gather_objects
from sslbench.errors import UsageError
from sslbench.pretraining.settings import FREE, ROUNDING, PretrainRequest, differences, plain
from sslbench.train import checkpoints
from sslbench.train.resume import newest_whole
from sslbench.weights.save import new_file, write_torch

log = logging.getLogger("sslbench")


def identity(request: PretrainRequest, source: Source, init_sha256: str | None) -> dict[str, Any]:
    """Return what makes a run another one; a checkpoint holds it.

    Of the images it is their names and labels. Their content is not read: that would take hours before the first
    update.

    Args:
        request: see there.
        source: the images that are trained on.
        init_sha256: of the tensors that training starts from; None: random ones, which follow from the settings.
    """
    labels = hashlib.sha256("\n".join((source.labels.kind, *source.labels.classes)).encode())
    labels.update(np.ascontiguousarray(source.labels.values).tobytes())
    return {
        **plain(request.settings),
        "data": request.data,
        "limit": request.limit,
        "images": len(source),
        "image_names": hashlib.sha256("\n".join(source.ids).encode()).hexdigest()[:16],
        "classes": len(source.labels.classes),
        "labels": labels.hexdigest()[:16],
        "init": init_sha256,
        **({"weights": dict(source.weights)} if source.weights else {}),
    }


def refuse_different(own: Mapping[str, Any]) -> None:
    """Compare what the processes of a run are about to train; every process calls this.

    Args:
        own: the identity of the run as this process sees it.

    Raises:
        UsageError: a process has other data or settings than the first.
    """
    first, *others = gather_objects(dict(own))
    for number, other in enumerate(others, start=1):
        if changed := differences(first, other, free=()):
            raise UsageError(
                f"process {number} is about to train something else than the first process: {_listed(changed)}",
                "All processes need the same command, data and weights.",
            )


def check_resume(request: PretrainRequest) -> None:
    """Refuse what can be refused before the folder is touched; every process calls this.

    Raises:
        UsageError: there is a run in the folder that is not to be continued, or the checkpoint is not there.
    """

    def check() -> None:
        used = checkpoints.newest(request.out / "checkpoints") or (request.out / "weights.torch").exists()
        if request.resume == "never" and used:
            raise UsageError(f"{request.out} holds a run already", "Give another --out, or leave out --no-resume.")
        if request.resume not in ("auto", "never") and not Path(request.resume).is_file():
            raise UsageError(
                f"there is no checkpoint {request.resume}", "Leave out --resume-from to continue what lies in --out."
            )

    from_first(check)


def checkpoint_to_resume(request: PretrainRequest, now: Mapping[str, Any]) -> tuple[Path, dict[str, Any]] | None:
    """Return the checkpoint that the run continues from, read, or None for a new run; every process calls this.

    Args:
        request: see there.
        now: the identity of the run.

    Raises:
        UsageError: the folder belongs to another run.
        WeightsError: the checkpoint cannot be read, or not by all processes.
    """
    folder = request.out / "checkpoints"
    if request.resume == "never":
        return None
    found = newest_whole(folder, given=None if request.resume == "auto" else Path(request.resume))
    if found is not None:
        _same_run(*found, now)
    return found


def _same_run(path: Path, content: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    before = content["settings"]
    name, other = now["method"].get("name"), before["method"].get("name")
    if name != other:
        raise UsageError(f"{path} is a checkpoint of the method {other}, this run is {name}", "Give another --out.")
    if "image_names" not in before:
        raise UsageError(
            f"{path} was written by an earlier version of sslbench, which did not record what it was trained on",
            "Finish that run with the earlier version, or begin anew in another --out.",
        )
    if changed := differences(before, now, free=FREE):
        raise UsageError(
            f"{path} belongs to a run with other settings, data or weights: {_listed(changed)}",
            "Give another --out to start anew, or the same as then to continue.",
        )
    if rounded := differences({key: before[key] for key in ROUNDING}, {key: now[key] for key in ROUNDING}, free=()):
        log.warning(f"continuing with {'; '.join(rounded)}: sums are rounded in another way from here on")


def _listed(changed: Sequence[str]) -> str:
    return "; ".join(changed[:5]) + (f"; and {len(changed) - 5} more" if len(changed) > 5 else "")


def write_config(request: PretrainRequest, command: str, changes: Mapping[str, str]) -> None:
    """The effective settings, as configs/pretrain.yaml would hold them; on top where they differ from the recipe."""
    head = f"# {command}\n# data: {request.data}\n" + (f"# init: {request.init}\n" if request.init else "")
    head += "".join(f"# {key}: {text}\n" for key, text in changes.items())
    text = head + yaml.safe_dump(plain(request.settings), sort_keys=False, allow_unicode=True)
    with new_file(request.out / "config.yaml") as temporary:
        temporary.write_text(text, encoding="utf-8")


def keep_failed(folder: Path, raw: RawBatch, ids: tuple[str, ...], *, step: int, rank: int) -> Path:
    """The batch whose loss was not finite: views, labels, and the ids of its images."""
    path = folder / f"failed_batch_step{step + 1}_process{rank}.pt"
    content = {"views": list(raw.views), "labels": raw.labels, "indices": raw.indices, "ids": list(ids)}
    with new_file(path) as temporary:
        write_torch(temporary, content)
    return path
