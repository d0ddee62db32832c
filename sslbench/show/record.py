"""Data of a result record, opened again, and test images chosen by their scores."""

import dataclasses
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.backbones.layer_spec import split_layers
from sslbench.config import convert
from sslbench.data.decode.handlers import Reading
from sslbench.data.source import Source
from sslbench.data.splits import TrainTest
from sslbench.errors import DataError, ResultError, SslbenchError, UsageError
from sslbench.evaluation.preparation import Prepared, as_imbalanced, one_part, open_checked, prepare
from sslbench.evaluation.request import Request, Task, make_task
from sslbench.evaluation.settings import RunSettings
from sslbench.names import from_file, refuse_location
from sslbench.preprocessing import MAX_PIXELS
from sslbench.protocols import find as find_protocol
from sslbench.results import Result, records
from sslbench.show.choices import AsTyped
from sslbench.targets.imbalanced import Imbalanced

Opened = TypeVar("Opened")


@dataclasses.dataclass(frozen=True)
class ChosenImages:
    """Test images of one group.

    Attributes:
        rows: positions among the scored test images, the first first.
    """

    title: str
    rows: tuple[int, ...]


def choose(quality: FloatArray, each: int) -> list[ChosenImages]:
    """Return the test images of highest, middle and lowest quality, none twice; images without quality are left out.

    `quality`: (N,), higher is better; NaN for none.

    >>> [(group.title, group.rows) for group in choose(np.array([3.0, 1.0, 2.0, np.nan]), 1)]
    [('best', (0,)), ('median', (2,)), ('worst', (1,))]
    """
    order = np.argsort(-quality, kind="stable")
    order = order[~np.isnan(quality[order])]
    best, rest = order[:each], order[each:]
    worst = rest[::-1][:each]
    middle = rest[: len(rest) - len(worst)]
    start = min(max(0, len(order) // 2 - len(best) - each // 2), max(0, len(middle) - each))
    groups = (("best", best), ("median", middle[start : start + each]), ("worst", worst))
    return [ChosenImages(title, tuple(rows.tolist())) for title, rows in groups if len(rows)]


def scores_of(result: Result) -> records.Scores:
    """Return the scores of each test image of a record."""
    path = records.scores_path(result)
    if path is None:
        raise ResultError(
            f"{result.file} has no file of scores beside it",
            "Copy RECORD.scores.npz with the record, or run that evaluation again.",
        )
    return records.read_scores(path)


def location(name: str) -> str:
    """Return the location of a part of data by its name in a record.

    >>> location("photos/ (train, 80 %), 12 of 500"), location("sklearn:digits (test)"), location("photos/")
    ('photos/', 'sklearn:digits', 'photos/')
    """
    return re.sub(r" \([^()]*\)$", "", re.sub(r", \d+ of \d+$", "", name))


def locations(result: Result, typed: AsTyped) -> tuple[str, str | None]:
    """Return the location of the data of a record, and that of the test part where it is another."""
    if typed.data is not None or typed.test_data is not None:
        return typed.data or _recorded(result)[0], typed.test_data
    train, test = _recorded(result)
    for name in (train, test):
        refuse_location(name, f"{result.file}: data")
    return train, None if test == train else test


def _recorded(result: Result) -> tuple[str, str]:
    """Return the locations of both parts as they were asked for, with options; of older records by their names."""
    asked = result.request or {}
    if data := asked.get("data"):
        return data, asked.get("test_data") or data
    return location(result.data.train.name), location(result.data.test.name)


def reopen_data(result: Result, typed: AsTyped, run: RunSettings) -> TrainTest:
    """Return the data of a record, checked against its fingerprints; no weights are read."""
    protocol = _protocol(result, typed)
    kind, settings = find_protocol(protocol), dict[str, Any]()
    if not kind.kind.needs_images:
        # Which part is used follows from them. Contents of files, such as those of texts, are no settings.
        known = {field.name for field in dataclasses.fields(kind.settings)}
        settings = {name: value for name, value in result.protocol.settings.items() if name in known}
    request, run = _requested(result, typed, run, make_task(protocol, settings), {"weights": "pixels"})
    return _as_recorded(result, request, run, lambda each: (open_checked(request, each)[0], None))[0]


def reopen(result: Result, typed: AsTyped, run: RunSettings) -> Prepared:
    """Return the evaluation of a record, its data and weights checked against the record."""
    task = make_task(_protocol(result, typed), result.protocol.settings)
    request, run = _requested(result, typed, run, task, _network(result, typed))

    def opened(run: RunSettings) -> tuple[TrainTest, Prepared]:
        prepared = prepare(request, run)
        return prepared.data, prepared

    data, prepared = _as_recorded(result, request, run, opened)
    if prepared.backbone.weights_sha256 != result.weights.sha256:
        raise ResultError(
            f"{result.weights.path} holds other weights than those of {result.file}: "
            f"digest {prepared.backbone.weights_sha256[:16]}, the record has {result.weights.sha256[:16]}",
            "Run the evaluation again.",
        )
    return dataclasses.replace(prepared, data=data)


def _protocol(result: Result, typed: AsTyped) -> str:
    """Return the protocol of a record whose images can be shown."""
    if result.weights.format == "features":
        raise ResultError(f"{result.file} is of features made elsewhere, so there are no images to show")
    return typed.protocol or from_file(
        result.protocol.name, f"{result.file}: protocol.name", f"sslbench show {{}} {result.file}"
    )


def _requested(
    result: Result, typed: AsTyped, run: RunSettings, task: Task, network: Mapping[str, Any]
) -> tuple[Request, RunSettings]:
    """Return the request of a record and its settings of the run."""
    hints = typing.get_type_hints(RunSettings)
    own = {name: convert(getattr(result, name), hints[name], name) for name in ("precision", "feature_dtype")}
    own["seed"] = split_seed(result)
    skip: dict[str, Any] = {"on_error": "skip"} if result.data.unreadable else {}
    # The decoder is among the values of the preprocessing.
    run = dataclasses.replace(run, **own, **skip, decoder=("reference",), floors=False, overlaps=False)
    data, test_data = locations(result, typed)
    asked = result.request or {}
    request = Request(
        data=data,
        test_data=test_data,
        image_column=typed.image_column or asked.get("image_column"),
        label_column=typed.label_column or asked.get("label_column"),
        value_columns=() if typed.label_column else tuple(asked.get("value_columns", ())),
        tasks=(task,),
        limit=max(result.data.train.n, result.data.test.n),
        **network,
    )
    return request, run


def _as_recorded(
    result: Result, request: Request, run: RunSettings, opened: Callable[[RunSettings], tuple[TrainTest, Opened]]
) -> tuple[TrainTest, Opened]:
    """Return the data of a record, and what was opened with them: one part in the place of both if it took one."""
    fractions = [run.test_fraction]
    if " of " not in result.data.test.name and " of " not in result.data.train.name:
        fractions.append(result.data.test.n / max(1, result.data.train.n + result.data.test.n))
    different: SslbenchError | None = None
    for fraction in dict.fromkeys(fractions):
        try:
            data, more = opened(dataclasses.replace(run, test_fraction=fraction))
        except (DataError, UsageError) as error:
            raise type(error)(
                f"the data or weights of {result.file} cannot be used: {error.message}",
                " ".join(filter(None, (error.remedy, "Data in another place: --data, --test-data, --label-col."))),
            ) from error
        data = as_imbalanced(data) if result.data.labels == Imbalanced.name else data
        data = one_part(data, request.tasks[0].part)
        different = _difference(result, data)
        if different is None:
            return data, more
    raise different or ResultError(f"{result.file}: no data")


def _difference(result: Result, data: TrainTest) -> SslbenchError | None:
    """Return the error for data that are not those of a record; None where they are."""
    for used, part in ((result.data.test, data.test), (result.data.train, data.train)):
        found = part.fingerprint()
        if found != used.fingerprint and not result.data.label_noise:
            return ResultError(
                f"{part.name} is not the data of {result.file}: images or labels have changed, or it is another set "
                f"({len(part):,} images, fingerprint {found[:16]}; the record has {used.n:,}, {used.fingerprint[:16]})",
                f"Give its data with --data, --test-data, --label-col. The record was made by: {result.command}",
            )
    return None


def _network(result: Result, typed: AsTyped) -> dict[str, Any]:
    """Return the fields of a `Request` for the weights, layer and preprocessing of a record."""
    used = result.weights
    if used.path is None and not used.untrained and used.format != "pixels":
        raise ResultError(f"{result.file}: its network was in memory, so its predictions cannot be computed again")
    values = {key: value for key, value in result.preprocessing.items() if key not in ("origin", "space")}
    values["decoder"] = reading(result, typed).decoder
    named = re.sub(r",img_size=\d+$", "", used.backbone)
    backbone = typed.backbone or from_file(named, f"{result.file}: weights.backbone", "--backbone {}")
    layer = re.sub(r":(grid[a-z+]*)\(\d+,\d+\)", r":\1", result.layer)
    return {
        "weights": used.path or ("random" if used.untrained else used.backbone),
        "backbone": backbone if used.path or used.untrained else None,
        "format": used.format if used.path else None,
        "allow_partial": used.partial,
        "layers": tuple(split_layers(layer)),
        "preprocessing": values,
    }


def split_seed(result: Result) -> int:
    """Return the seed that the data of a record were split with."""
    return result.seed if result.data.split_seed is None else result.data.split_seed


def reading(result: Result, typed: AsTyped) -> Reading:
    """Return the settings of the decoding of a record; code that it names runs only if the user names it."""
    values: Mapping[str, Any] = result.preprocessing
    recorded = [name.partition("@")[0] for name in values.get("decoder", ("reference",))]
    decoder = typed.decoder or from_file(recorded, f"{result.file}: preprocessing.decoder", "--decoder {}")
    return Reading(tuple(decoder), int(values.get("max_pixels", MAX_PIXELS)))


def rows_of(source: Source, ids: Sequence[str]) -> list[int]:
    """Return the positions of ids in a source."""
    place = {name: i for i, name in enumerate(source.ids)}
    if missing := [name for name in ids if name not in place]:
        raise ResultError(f"the scores are of other images than {source.name}: '{missing[0]}' is not among them")
    return [place[name] for name in ids]
