"""Folder of a run: its files, the identity of the run, and the checkpoint to continue from."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from sslbench.data.source import Source
from sslbench.distributed.collectives import from_first, gather_objects
from sslbench.errors import UsageError
from sslbench.library.recipes import RUN_INPUTS
from sslbench.pretraining.settings import FREE, ROUNDING, PretrainRequest, differences, plain
from sslbench.text import without_secrets
from sslbench.train import checkpoints
from sslbench.train.checkpoint_files import no_checkpoint
from sslbench.train.resume import newest_whole
from sslbench.weights.save import new_file

log = logging.getLogger("sslbench")


def identity(request: PretrainRequest, source: Source, init_sha256: str | None, code: str) -> dict[str, Any]:
    """Return the identity of a run, which its checkpoints contain: settings, data, initial weights and the user's code.

    Images are identified by names and labels, since reading their content would take hours before the first update.

    Args:
        request: the run.
        source: training images.
        init_sha256: hash of the initial weights; None for random ones, which follow from the settings.
        code: digest of the user's own backbone, method and decoders; empty if all are sslbench's or of libraries.
    """
    labels = hashlib.sha256("\n".join((source.target.name, *source.target.classes)).encode())
    labels.update(np.ascontiguousarray(source.target.values).tobytes())
    return {
        **plain(request.settings),
        "data": without_secrets(request.data),
        "limit": request.limit,
        "images": len(source),
        "image_names": hashlib.sha256("\n".join(source.ids).encode()).hexdigest()[:16],
        "classes": len(source.target.classes),
        "labels": labels.hexdigest()[:16],
        "init": init_sha256,
        "code": code,
        **({"weights": dict(source.weights)} if source.weights else {}),
    }


def refuse_different(own: Mapping[str, Any]) -> None:
    """Compare the identity of the run on all processes; every process calls this.

    Args:
        own: identity of the run on this process.

    Raises:
        UsageError: a process has other data or settings than the first.
    """
    first, *others = gather_objects(dict(own))
    for number, other in enumerate(others, start=1):
        if changed := differences(first, other, free=()):
            raise UsageError(
                f"process {number} has other settings, data or weights than the first process: {_listed(changed)}",
                "All processes need the same command, data and weights.",
            )


def check_resume(request: PretrainRequest) -> None:
    """Check --resume-from and --no-resume before anything is written; every process calls this.

    Raises:
        UsageError: the folder holds a run that must not be continued, or the named checkpoint does not exist.
    """

    def check() -> None:
        used = checkpoints.newest(request.out / "checkpoints") or (request.out / "weights.torch").exists()
        if request.resume == "never" and used:
            raise UsageError(f"{request.out} already contains a run", "Give another --out, or leave out --no-resume.")
        if request.resume not in ("auto", "never") and not Path(request.resume).exists():
            raise no_checkpoint(request.resume)

    from_first(check)


def checkpoint_to_resume(request: PretrainRequest, now: Mapping[str, Any]) -> tuple[Path, dict[str, Any]] | None:
    """Return the checkpoint to continue from and its content, or None for a new run; every process calls this.

    Args:
        request: the run.
        now: identity of the run.

    Raises:
        UsageError: the folder belongs to another run.
        WeightsError: a process cannot read the checkpoint.
    """
    folder = request.out / "checkpoints"
    if request.resume == "never":
        return None
    found = newest_whole(folder, given=None if request.resume == "auto" else Path(request.resume))
    if found is not None:
        _same_run(*found, now, named=request.resume != "auto")
    return found


def _same_run(path: Path, content: Mapping[str, Any], now: Mapping[str, Any], *, named: bool) -> None:
    """Refuse a checkpoint of another run; warn if the run continues with other rounding, or other code.

    A checkpoint that the user names continues with changed code: that is how a run goes on after a mistake in it.
    """
    before = content["settings"]
    name, other = now["method"].get("name"), before["method"].get("name")
    if name != other:
        raise UsageError(f"{path} is a checkpoint of the method {other}, this run is {name}", "Give another --out.")
    if "image_names" not in before:
        raise UsageError(
            f"{path} was written by an earlier version of sslbench, which did not record what it was trained on",
            "Finish that run with the earlier version, or start a new run in another --out.",
        )
    before = {"code": now["code"], **before}  # earlier versions did not record it
    if before["code"] != now["code"]:
        if not named:
            raise UsageError(
                f"the code of your own backbone, method or decoder has changed since {path} was written",
                f"Give another --out for a new run, or --resume-from {path} to continue with the changed code.",
            )
        log.warning("continuing with changed code of your own backbone, method or decoder")
    if changed := differences(before, now, free=(*FREE, "code")):
        raise UsageError(
            f"{path} belongs to a run with other settings, data or weights: {_listed(changed)}",
            "Give another --out for a new run, or the same settings, data and weights to continue.",
        )
    keys = [key for key in ROUNDING if key in before]  # earlier versions have fewer
    if rounded := differences({key: before[key] for key in keys}, {key: now[key] for key in keys}, free=()):
        log.warning(f"continuing with {'; '.join(rounded)}: rounding differs from here on")


def _listed(changed: Sequence[str]) -> str:
    return "; ".join(changed[:5]) + (f"; and {len(changed) - 5} more" if len(changed) > 5 else "")


def write_config(request: PretrainRequest, command: str, changes: Mapping[str, str]) -> None:
    """Write config.yaml: the data and first weights, then the effective settings; changes to the recipe as comments."""
    head = f"# {command}\n" + "".join(f"# {key}: {text}\n" for key, text in changes.items())
    inputs = {name: value for name in RUN_INPUTS if (value := without_secrets(getattr(request, name))) is not None}
    content = {"run": inputs, **plain(request.settings)}
    text = without_secrets(head) + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    with new_file(request.out / "config.yaml") as temporary:
        temporary.write_text(text, encoding="utf-8")
