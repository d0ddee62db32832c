"""The folder of a run: what lies where, which run it belongs to, and what is left of one that was interrupted."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from sslbench.data.training import RawBatch
from sslbench.errors import UsageError
from sslbench.pretraining.settings import PretrainRequest, differences, plain
from sslbench.train import checkpoints
from sslbench.weights.save import new_file, write_torch

log = logging.getLogger("sslbench")


def identity(request: PretrainRequest, weights: Mapping[str, float]) -> dict[str, Any]:
    """What makes a run another one; a checkpoint holds it.

    Args:
        request: see there.
        weights: of the sources, where there are several; see `Source.weights`.
    """
    mixture = {"weights": dict(weights)} if weights else {}
    return {**plain(request.settings), "data": request.data, "limit": request.limit, **mixture}


def checkpoint_to_resume(request: PretrainRequest, weights: Mapping[str, float]) -> tuple[Path, dict[str, Any]] | None:
    """The checkpoint that the run continues from, read, or None for a new run.

    Args:
        request: see there.
        weights: as for `identity`.

    Raises:
        UsageError: the folder belongs to another run, or there is no such checkpoint.
        WeightsError: the checkpoint cannot be read.
    """
    folder = request.out / "checkpoints"
    if request.resume == "never":
        if checkpoints.newest(folder) or (request.out / "weights.torch").exists():
            raise UsageError(f"{request.out} holds a run already", "Give another --out, or leave out --no-resume.")
        return None
    path = checkpoints.newest(folder) if request.resume == "auto" else Path(request.resume)
    if path is None:
        return None
    if not path.is_file():
        raise UsageError(f"there is no checkpoint {path}", "Leave out --resume-from to continue what lies in --out.")
    content = checkpoints.read(path)
    _same_run(request, weights, path, content)
    return path, content


def _same_run(request: PretrainRequest, weights: Mapping[str, float], path: Path, content: dict[str, Any]) -> None:
    now = identity(request, weights)
    before = content["settings"]
    name, other = request.settings.method.get("name"), before["method"].get("name")
    if name != other:
        raise UsageError(f"{path} is a checkpoint of the method {other}, this run is {name}", "Give another --out.")
    if changed := differences(before, now):
        shown = "; ".join(changed[:5]) + (f"; and {len(changed) - 5} more" if len(changed) > 5 else "")
        raise UsageError(
            f"{path} belongs to a run with other settings: {shown}",
            "Give another --out to start anew, or the same settings to continue.",
        )


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
