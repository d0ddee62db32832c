"""Opening of the data of a request: locations, or data in memory."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from sslbench.data.objects import with_objects
from sslbench.data.open import open_as, open_data, refuse_targets_of_pixels
from sslbench.data.source import Source
from sslbench.data.splits import TrainTest, choose_test, choose_train, limit, train_test, train_test_of
from sslbench.data.splits.objects import split_objects
from sslbench.distributed.collectives import process_group_if_known
from sslbench.errors import UsageError
from sslbench.evaluation.request import Request, Task, refuse_different_labels
from sslbench.evaluation.settings import RunSettings
from sslbench.runtime.device import choose_device
from sslbench.targets.objects import Boxes
from sslbench.targets.target import Target

InMemoryData = Mapping[str, Mapping[str, Source]]
"""Data in memory: the name in `Request.data` or `Request.test_data` -> split -> source."""


def open_train_test(request: Request, run: RunSettings, in_memory: InMemoryData | None = None) -> TrainTest:
    """Return the train and test part of the data, limited if that was asked for; every process calls this."""
    with process_group_if_known(choose_device(run.device)):  # the first process lists the files of a folder
        data = _opened(request, run, in_memory)
    if request.limit is None:
        return data
    if request.limit >= max(len(data.train), len(data.test)):
        return data
    if data.train is data.test:
        scored = limit(data.test, request.limit, run.seed)
        return TrainTest(scored, scored, f"{data.how}; limited to {len(scored)} samples")
    train, test = (limit(part, request.limit, run.seed) for part in (data.train, data.test))
    description = f"{data.how}; limited to {len(train)} train and {len(test)} test samples"
    return dataclasses.replace(data, train=train, test=test, how=description, whole=None)


def _opened(request: Request, run: RunSettings, in_memory: InMemoryData | None) -> TrainTest:
    if kinds := kinds_of_places(request.tasks):
        if in_memory:
            raise UsageError(f"{request.tasks[0].protocol} needs a location of {kinds[0].title}, not images in memory")
        if any(task.kind.on_objects for task in request.tasks):
            return _objects(request, run)
        return _of_kinds(kinds, request, run)
    if in_memory:
        opener = functools.partial(open_parts, request, run, in_memory=in_memory)
        fraction = run.test_fraction
        return train_test_of(opener, request.data, request.test_data, seed=run.seed, test_fraction=fraction)
    refuse_targets_of_pixels(request.data)
    return train_test(
        request.data,
        request.test_data,
        seed=run.seed,
        test_fraction=run.test_fraction,
        decoder=run.decoder,
        **_columns(request),
    )


def _objects(request: Request, run: RunSettings) -> TrainTest:
    """Return the parts for a detector: images without objects stay, and every class is in both parts."""
    plain = Request(request.weights, request.data, request.tasks)
    for name in ("layers", "image_column", "label_column", "limit", "test_classes", "groups", "value_columns", "noise"):
        if getattr(request, name) != getattr(plain, name):
            raise UsageError(f"{name} has no effect on {request.tasks[0].protocol}", "Leave it out.")
    if request.preprocessing:
        named = ", ".join(request.preprocessing)
        raise UsageError(
            f"{named} has no effect on {request.tasks[0].protocol}, whose recipe prepares the images", "Leave it out."
        )
    if run.on_error != "stop":
        raise UsageError(
            f"{request.tasks[0].protocol} reads all images first and stops if one is unreadable",
            f"Leave on_error={run.on_error} out.",
        )
    return split_objects(request.data, request.test_data, seed=run.seed, test_fraction=run.test_fraction)


def open_parts(
    request: Request, run: RunSettings, place: str, in_memory: InMemoryData | None = None
) -> Mapping[str, Source]:
    """Return split -> source of a location of a request, or of data in memory under this name."""
    if in_memory and place in in_memory:
        return in_memory[place]
    return open_data(place, **_columns(request), together=True, decoder=run.decoder)


def _columns(request: Request) -> dict[str, Any]:
    """Return the columns that a request names, as arguments of the functions that open data."""
    return {
        "image_column": request.image_column,
        "label_column": request.label_column,
        "attribute_columns": request.groups,
        "value_columns": request.value_columns,
    }


def kinds_of_places(tasks: Sequence[Task]) -> tuple[type[Target], ...]:
    """Return the kinds of target that protocols take, where formats read these; () of labelled images."""
    refuse_different_labels(task.protocol for task in tasks)
    return next((task.kind.takes for task in tasks if task.kind.takes[0].default[0]), ())


def _of_kinds(kinds: tuple[type[Target], ...], request: Request, run: RunSettings) -> TrainTest:
    """Return train and test images with targets that are not labels, whose data have no columns."""
    kind = kinds[0]

    def opened(place: str) -> Mapping[str, Source]:
        sources = open_as(place, *kinds)
        return with_objects(sources) if kind is Boxes else sources

    named = [flag for flag in ("image_column", "label_column", "groups", "value_columns") if getattr(request, flag)]
    if named:
        raise UsageError(f"{request.data} has {kind.title} and no columns, so {named[0]} has no effect")
    parts = {task.part for task in request.tasks}
    if len(parts) == 1 and (part := parts.pop()) is not None:
        # The usual location stands in `data` where the user gave none.
        if part == "test" and request.test_data and request.data not in (request.test_data, kind.default[0]):
            name = request.tasks[0].protocol
            raise UsageError(f"--data has no effect beside --test-data: {name} trains nothing", "Leave it out.")
        place = request.data if part == "train" else request.test_data or request.data
        choose = choose_train if part == "train" else choose_test
        scored = choose(place, opened(place))
        return TrainTest(scored, scored, f"{scored.name} alone")
    return train_test_of(opened, request.data, request.test_data, seed=run.seed, test_fraction=run.test_fraction)
