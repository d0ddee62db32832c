"""Suites: weights x benchmarks, each cell written when done; a failed cell is a hole with its reason."""

import dataclasses
import itertools
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer
from sslbench.distributed import this_process
from sslbench.errors import ResultError, SslbenchError
from sslbench.evaluation import floors
from sslbench.evaluation.encode import encode_together
from sslbench.evaluation.estimate import announce_together
from sslbench.evaluation.file_classifier import with_classifier
from sslbench.evaluation.preparation import (
    Prepared,
    as_scored,
    for_request,
    has_own_classes,
    load,
    one_part,
    prepare,
    shared_part,
)
from sslbench.evaluation.record import Encoded, asked, describe, measurement, weights_at
from sslbench.evaluation.request import Request
from sslbench.evaluation.run import evaluate
from sslbench.evaluation.score import row_subjects
from sslbench.evaluation.settings import RunSettings
from sslbench.features.extract import TOGETHER_BYTES, parameter_bytes
from sslbench.identity import digest, record_id
from sslbench.locks import lock
from sslbench.protocols import ImageSet
from sslbench.results import Result, records
from sslbench.results import holes as holes_file
from sslbench.results.holes import Hole
from sslbench.runtime.progress import Progress
from sslbench.steps import Advance

log = logging.getLogger("sslbench")

_OF_THE_MACHINE = re.compile(r"memory|CUDA|cuDNN|cuBLAS|NCCL|MPS|space left|disk|worker", re.IGNORECASE)
"""Words of torch's errors of memory, GPUs, disks and killed workers, which are RuntimeErrors as its bugs are."""


_Key = tuple[str, str, int]
"""Weights, benchmark, and position of the request among those of the cell."""


@dataclasses.dataclass(frozen=True)
class SuiteCell:
    """One pair of weights and benchmark.

    Attributes:
        weights: as the user gave them.
        benchmark: its name; the protocols where no benchmark was named.
        requests: evaluations of the cell, mostly one.
        problem: why there is nothing to evaluate: the data are not on this machine.
    """

    weights: str
    benchmark: str
    requests: tuple[Request, ...] = ()
    problem: SslbenchError | None = None

    def hole(self, error: Exception) -> Hole:
        """Return the hole that an error leaves; alike for all benchmarks that lack the same data."""
        # Some errors, such as MemoryError, have no text.
        reason, remedy = f"{type(error).__name__}: {_one_line(str(error))}".rstrip(": "), ""
        if isinstance(error, SslbenchError):
            reason, remedy = _one_line(error.message), _one_line(error.remedy or "")
        name = self.benchmark.partition(" ")[0]  # settings stand behind it
        return Hole(
            self.weights, self.benchmark, reason.removeprefix(f"{name} ").removeprefix(f"{self.weights}: "), remedy
        )


@dataclasses.dataclass
class _Loaded:
    """Backbone in memory, or the error of loading it."""

    backbone: Backbone | None = None
    problem: SslbenchError | None = None


def run_cells(
    cells: Sequence[SuiteCell],
    run: RunSettings,
    *,
    store: Path,
    out: Path,
    command: str,
    progress: Progress | None = None,
    done: Advance = lambda cells: None,
) -> tuple[dict[str, list[Result]], list[Hole]]:
    """Evaluate every cell; one that fails leaves a hole, and the others go on. `done` is called after each.

    A cell whose records are in `out`, by `identity.record_id` and with all that is asked for, is not computed again.
    Processes that run the same cells into one folder divide them. The holes stand in `holes.csv` beside the records
    from the moment they are found.
    """
    loaded: dict[tuple[str, bool], _Loaded] = {}
    told: dict[_Key, bool] = {}
    prepared: Prepared | None = None
    others: dict[_Key, Prepared] = {}
    results: dict[str, list[Result]] = {cell.weights: [] for cell in cells}
    holes: list[Hole] = []
    _write(out, cells, holes)
    for left in _claimed(cells, run, out):
        cell = left[0]
        log.debug(f"{len(left)} left: {cell.weights} on {cell.benchmark}")
        # Records are found by their identity, the end of their names, before anything is loaded.
        before = {path.stem.rpartition("-")[2]: path for path in sorted(out.glob("*/*.json"))}
        try:
            if cell.problem is not None:
                raise cell.problem
            for position, request in enumerate(cell.requests):
                if _file_of(request) not in loaded:
                    # The last weights are released before the next are read.
                    loaded, prepared, others, own = {}, None, {}, _Loaded()
                    loaded, told = _load_together(left, run), {}
                own = loaded[_file_of(request)]
                if own.problem is not None:
                    raise own.problem
                prepared = prepare(request, run, backbone=own.backbone)
                found = _existing_results(prepared, before)
                if found is None:
                    key = cell.weights, cell.benchmark, position
                    if key not in told:
                        others = _others(prepared, key, left, loaded, before)
                        told |= dict.fromkeys((key, *others), bool(others))
                        _ahead([prepared, *others.values()], store, out, progress)
                    common: dict[str, Any] = {"store": store, "out": out, "command": command, "progress": progress}
                    found = evaluate(prepared, **common, told=told[key])
                else:
                    log.debug(f"already computed: {', '.join(str(result.file) for result in found)}")
                    log.info("already computed: the records there (-v names them)")
                results[cell.weights] += found
        # Memory, disk or GPU errors concern this cell only; a bug of sslbench stops the suite.
        except (SslbenchError, OSError, MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not _OF_THE_MACHINE.search(f"{type(error).__name__} {error}"):
                raise
            holes.append(cell.hole(error))
            # Weights that cannot be loaded fail everywhere in the same way.
            everywhere = any(each.problem is error for each in loaded.values())
            name = cell.weights if everywhere else f"{cell.weights} on {cell.benchmark}"
            # Data that are missing are told of before the first evaluation, and reasons at the end.
            known = cell.problem is error or holes[-1].reason in {hole.reason for hole in holes[:-1]}
            place = out / holes_file.HOLES
            text = f"{name} cannot be evaluated (reason: {place}); continuing with the next"
            log.log(logging.DEBUG if known else logging.WARNING, text)
            _write(out, cells, holes)
        done(1)
    return results, holes


def _claimed(cells: Sequence[SuiteCell], run: RunSettings, out: Path) -> Iterator[list[SuiteCell]]:
    """Yield the cells that are left, first of them one that no other process works at; those of others come last."""
    if this_process().world > 1:
        yield from (list(cells[number:]) for number in range(len(cells)))
        return
    out.mkdir(parents=True, exist_ok=True)
    order = list(cells)
    for number, cell in enumerate(order):
        file = out / f".{digest([cell.weights, cell.benchmark, repr(cell.requests), repr(run)])}.lock"
        with file.open("w") as handle:
            if lock(handle, wait=number >= len(cells)) is False:
                order.append(cell)
                continue
            yield order[number:]
            file.unlink(missing_ok=True)


def _file_of(request: Request) -> tuple[str, bool]:
    """Return what names a backbone in memory: the weights, and whether the protocols say the order of its colours."""
    return request.weights, request.as_stored


def _load_together(cells: Sequence[SuiteCell], run: RunSettings) -> dict[tuple[str, bool], _Loaded]:
    """Load the weights of the first cell, and those of the next ones as far as `TOGETHER_BYTES` go, each once."""
    found: dict[tuple[str, bool], _Loaded] = {}
    size = 0
    for cell in cells:
        for request in cell.requests if cell.problem is None else ():
            if _file_of(request) in found:
                continue
            # Encoding together needs one process; beyond the bound the networks would fill the memory.
            if found and (this_process().world > 1 or size > TOGETHER_BYTES):
                return found
            own = found[_file_of(request)] = _Loaded()
            try:
                own.backbone = load(request, run)
                size += parameter_bytes(own.backbone)
            except SslbenchError as error:
                own.problem = error
    return found


def _others(
    prepared: Prepared,
    key: _Key,
    cells: Sequence[SuiteCell],
    loaded: Mapping[tuple[str, bool], _Loaded],
    before: dict[str, Path],
) -> dict[_Key, Prepared]:
    """Return the evaluations of the same images by the weights that are loaded that have no records yet.

    `key`: of the evaluation itself; `cells`: its cell and the following ones.
    """
    found: dict[_Key, Prepared] = {}
    every = ((cell, position, request) for cell in cells for position, request in enumerate(cell.requests))
    for cell, position, request in every:
        own_key = cell.weights, cell.benchmark, position
        backbone = loaded.get(_file_of(request), _Loaded()).backbone
        if own_key == key or backbone is None:
            continue
        try:
            if not _of_same_images(prepared.request, request):
                continue
            own = likewise(prepared, request, backbone)
            found |= {own_key: own} if _existing_results(own, before) is None else {}
        except SslbenchError as error:
            log.debug(f"{cell.weights} on {cell.benchmark} is encoded alone: {error}")
    return found


def _of_same_images(one: Request, other: Request) -> bool:
    """Return whether requests differ in nothing but the weights, and protocols that see the data alike."""
    seen = []
    for request in (one, other):
        kinds = [task.kind for task in request.tasks]
        # What opens further data, or labels these by a classifier, is like itself alone.
        alone = any(kind.several_sets or kind.on_objects for kind in kinds) or has_own_classes(request.tasks)
        tasks = _asked(request) if alone else []
        labels = any(kind.needs_labels for kind in kinds)
        seen.append((dataclasses.replace(request, weights="", backbone=None, tasks=()), tasks, labels, request.view))
    return seen[0] == seen[1]


def _ahead(several: Sequence[Prepared], store: Path, out: Path, progress: Progress | None) -> None:
    """Tell how long several evaluations take, and encode the images for all of them where protocols take features."""
    if len(several) > 1 and this_process().rank == 0:
        announce_together(several, store, out)
    encoded = [each for each in several if all(task.kind.on_features for task in each.request.tasks)]
    # Ahead of protocols that encode images in no way of their own, in one process.
    if (
        len({each.request.weights for each in encoded}) > 1
        and this_process().world == 1
        and not several[0].run.on_the_fly
    ):
        encode_ahead(encoded, store=store, progress=progress)


def _existing_results(prepared: Prepared, before: dict[str, Path]) -> list[Result] | None:
    """Return the records of the whole request if all of them exist."""
    found = []
    if prepared.object_tasks:
        return None  # they read what is finished by themselves
    for each, share in itertools.product(prepared.request.tasks, (0.0, *prepared.request.noise)):
        seen, task = as_scored(prepared, each, share)
        seen = dataclasses.replace(seen, data=one_part(seen.data, each.part))
        # Compares only ids and counts of samples; the counts are not part of a measurement's identity.
        train, test = ({"": cast(Any, part)} for part in (seen.data.train, seen.data.test))
        subject = describe(seen, seen.backbone, "", Encoded(train, test, (), 0.0, 0), "")
        for row in task.row_names(seen.backbone, seen.layers, seen.data.train, seen.run.seed):
            used = dataclasses.replace(subject.weights, code=seen.backbone.identity)
            used = with_classifier(weights_at(row, seen.backbone, used), seen.classifier)
            subject = dataclasses.replace(subject, layer=row, weights=used)
            for own, own_task in row_subjects(subject, task, prepared.sets_of(each)).values():
                path = before.get(record_id(measurement(own, own_task)))
                result = None if path is None else _read(path)
                if result is None or result.asked != asked(own, own_task):
                    return None
                found.append(result)
    return found


def _read(path: Path) -> Result | None:
    """Return a record with its scores; None if it is damaged, so that it is made again."""
    try:
        result = records.read_intact(path)
        if result.scores_file is not None:
            records.read_scores(path)
    except ResultError as error:
        log.warning(f"computed again: {error.message}")
        return None
    return result


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _write(out: Path, cells: Sequence[SuiteCell], holes: Sequence[Hole]) -> None:
    if this_process().rank == 0:
        holes_file.write(out, [(cell.weights, cell.benchmark) for cell in cells], holes)


def likewise(prepared: Prepared, request: Request, loaded: Backbone) -> Prepared:
    """Return the evaluation of other weights on the data of an evaluation that is prepared."""
    backbone, _ = for_request(loaded, request, prepared.run)
    sets: tuple[Mapping[str, ImageSet], ...] = ({},) * len(request.tasks)
    if _asked(request) == _asked(prepared.request):
        # `prepare` has compared their benchmarks with these data.
        request, sets = dataclasses.replace(request, tasks=prepared.request.tasks), prepared.sets
    layers = request.view.layers(backbone, request.layers)
    return dataclasses.replace(prepared, request=request, loaded=loaded, backbone=backbone, layers=layers, sets=sets)


def _asked(request: Request) -> list[tuple[str, object]]:
    return [(task.protocol, task.settings) for task in request.tasks]


def encode_ahead(several: Sequence[Prepared], *, store: Path, progress: Progress | None) -> None:
    """Store the features of several weights and of their untrained copies, in one pass where they are decoded alike."""
    first = several[0]
    data = one_part(first.data, shared_part([task for each in several for task in each.request.tasks]))
    wanted: dict[str, tuple[Backbone, tuple[Layer, ...]]] = {}
    for each in several:
        networks = [each.backbone]
        if each.run.floors:
            beside = floors.floor_backbones(each.backbone, is_floor=each.request.weights == "random")
            networks += beside.found.get("untrained", ())
        # Weights of one architecture have the same untrained copies.
        wanted |= {
            digest([found.weights_sha256, found.preprocessing.values(), [layer.text for layer in each.layers]]): (
                found,
                each.layers,
            )
            for found in networks
            if not found.kind.pixels
        }
    encode_together([*wanted.values()], data, first.run, store, progress)
