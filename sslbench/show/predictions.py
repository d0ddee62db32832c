"""Best, median and worst test images of a record of classes, numbers or label maps, with prediction and truth."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from sslbench.arrays import ByteArray, FloatArray
from sslbench.data.checks.sheets import thumbnails
from sslbench.data.maps.colours import class_colours, labelled
from sslbench.data.source import Source
from sslbench.errors import DataError, ResultError
from sslbench.evaluation.encode import encode_parts
from sslbench.evaluation.settings import RunSettings
from sslbench.metrics.answers import BestScores, ClassScores, softmax
from sslbench.metrics.catalog import find as find_metric
from sslbench.metrics.dense import segmentation
from sslbench.metrics.intervals import Units
from sslbench.protocols import segmentation_knn
from sslbench.protocols.knn import Settings as KnnSettings
from sslbench.results import Result, records
from sslbench.runtime.device import choose_device
from sslbench.runtime.progress import Progress
from sslbench.show.choices import AsTyped
from sslbench.show.page import Section
from sslbench.show.pictures import RIGHT, WRONG, Panel
from sslbench.show.record import ChosenImages, choose, reading, reopen, reopen_data, rows_of
from sslbench.solvers.neighbours import Scope, nearest
from sslbench.targets import kinds
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.none import Unlabelled
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import SeveralImages, Target

_NEIGHBOURS = 7
_FRAMES = 6  # first images of a sample of many
_WEIGHTS = 10_000_000  # in memory at a time
_SIDE = 160
_ORDERS: tuple[tuple[type[Target], str], ...] = (
    (Classes, "Ordered by the score of the true class less the largest of the others."),
    (MultiLabel, "Ordered by the average precision of the labels of an image."),
    (Numbers, "Ordered by the mean absolute error, in standard deviations of the labels."),
)
_MAP_SIDE = 224
_RIGHT_WRONG: ByteArray = np.array([(30, 30, 30), (255, 255, 255)], dtype=np.uint8)


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Text of a prediction, and whether it is right; None for numbers."""

    text: str
    right: bool | None


def quality(kind: type[Target], labels: np.ndarray, scores: ClassScores) -> FloatArray:
    """Return how good each prediction is, (N,), higher is better; NaN where no label counts.

    One class: the score of the true class less the largest of the others. Several labels: average precision of the
    labels of an image, ranked by score. Numbers: minus the mean absolute error in standard deviations of the labels.

    `scores`: (N, C).

    >>> quality(Classes, np.array([0, 1]), np.array([[0.75, 0.25], [1.0, 0.0]])).tolist()
    [0.5, -1.0]
    >>> quality(MultiLabel, np.array([[1, 0, -1], [0, 0, 0]]), np.array([[0.1, 0.9, 0.5], [0, 1, 2]])).tolist()
    [0.5, nan]
    """
    if issubclass(kind, Classes):
        best = BestScores.of(labels, scores, None, kept=2)
        others = np.where(best.places == 0, best.scores[:, :2][:, -1], best.scores[:, 0])
        return np.asarray(best.own.astype(np.float64) - others)
    values = np.asarray(scores, dtype=np.float64)
    if issubclass(kind, MultiLabel):
        precisions = []
        for row, score in zip(labels, values, strict=True):
            counted = row >= 0
            hits = row[counted][np.argsort(-score[counted], kind="stable")] == 1
            precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
            precisions.append(precision[hits].mean() if hits.any() else np.nan)
        return np.array(precisions)
    spread = labels.std(axis=0)
    return np.asarray(-(np.abs(values - labels) / np.where(spread > 0, spread, 1)).mean(axis=1))


def prediction(result: Result, labels: Target, scores: ClassScores, row: int) -> Prediction:
    """Return truth and prediction of a test image in words."""
    if isinstance(labels, Classes):
        truth = int(labels.values[row])
        answer = BestScores.of(labels.values[[row]], scores[row : row + 1], result.probabilities, kept=1)
        best, own = int(answer.classes[0, 0]), answer.probabilities(answer.own[:, None])[0, 0]
        first = _score(result, answer.probabilities(answer.scores)[0, 0])
        text = f"true: {labels.classes[truth]}\nfound: {labels.classes[best]} {first}"
        return Prediction(text if truth == best else f"{text}\ntrue class: {_score(result, own)}", truth == best)
    values = np.asarray(scores)[row].astype(np.float64)
    if isinstance(labels, Numbers):
        pairs = zip(labels.classes, labels.values[row].tolist(), values.tolist(), strict=True)
        return Prediction(
            "\n".join(f"{name}: {truth:.4g}, predicted {found:.4g}" for name, truth, found in pairs), None
        )
    true = labels.values[row] == 1
    ranked = np.argsort(-values, kind="stable")[: max(1, int(true.sum()))]
    values = softmax(values[None])[0] if result.probabilities == "softmax" else values
    found = ", ".join(f"{labels.classes[c]} {_score(result, values[c])}" for c in ranked.tolist())
    return Prediction(f"true: {labels.text(row) or 'none'}\nfirst: {found}", bool(true[ranked].all()))


def _score(result: Result, value: float) -> str:
    """Return a probability as it is, another score with its sign."""
    return f"{value:.2f}" if result.probabilities else f"({value:+.2f})"


def show_predictions(
    result: Result,
    scores: records.Scores,
    typed: AsTyped,
    run: RunSettings,
    each: int,
    *,
    store: Path,
    progress: Progress | None = None,
) -> list[Section]:
    """Return the best, median and worst test images; of kNN with their neighbours, from features computed again."""
    prepared = reopen(result, typed, run) if result.protocol.name == "knn" else None
    test = (prepared.data if prepared else reopen_data(result, typed, run)).test
    rows = rows_of(test, scores.ids)
    labels = kinds()[result.data.labels].from_values(scores.classes, scores.labels)
    groups = choose(quality(type(labels), labels.values, scores.scores), each)
    draw = _pictures(result, typed, test)
    if prepared is None:
        return [_section(result, labels, scores, group, lambda row: draw(rows[row])) for group in groups]
    settings: KnnSettings = prepared.request.tasks[0].settings
    encoded = encode_parts(prepared.backbone, prepared.data, prepared.layers, prepared.run, store, progress)
    layer = prepared.layers[0].text
    train, found = encoded.train[layer], encoded.test[layer]
    chosen = np.array(sorted(row for group in groups for row in group.rows), dtype=np.int64)
    at = {name: i for i, name in enumerate(found.ids)}
    queries = np.array([at[scores.ids[row]] for row in chosen], dtype=np.int64)
    scope = Scope(test_rows=queries)
    if settings.leave_one_out:
        own = train.groups is None
        scope = Scope(test_rows=queries, without_self=own, apart=None if own else train.groups)
    k = min(_NEIGHBOURS, len(train) - scope.refused)
    similarity, neighbours = nearest(
        train.x, found.x, k, metric=settings.metric, max_memory=settings.max_memory, scope=scope
    )
    place = {row: i for i, row in enumerate(chosen.tolist())}
    of_train = _pictures(result, typed, prepared.data.train)
    in_train = rows_of(prepared.data.train, train.ids)
    sections = []
    for group in groups:
        lines = []
        for row in group.rows:
            said = prediction(result, labels, scores.scores, row)
            panels = [dataclasses.replace(draw(rows[row]), caption=said.text, frame=_frame(said))]
            for value, neighbour in zip(similarity[place[row]].tolist(), neighbours[place[row]].tolist(), strict=True):
                same = _share_a_class(labels, row, train.target, neighbour)
                text = f"{train.target.text(neighbour)}\n{value:.3f}"
                frame = None if same is None else RIGHT if same else WRONG
                panels.append(dataclasses.replace(of_train(in_train[neighbour]), caption=text, frame=frame))
            lines.append((scores.ids[row], panels))
        text = f"{_order(labels)} Beside each image its nearest training images by {settings.metric}."
        sections.append(Section(group.title, text, lines, _SIDE))
    return sections


def _order(labels: Target) -> str:
    """Return how test images are ordered, for kinds that extend others too."""
    return next(text for kind, text in _ORDERS if isinstance(labels, kind))


def _share_a_class(labels: Target, row: int, train: Target, neighbour: int) -> bool | None:
    """Return whether a training image has the class, or one of the labels, of a test image; None for numbers."""
    if isinstance(labels, Numbers):
        return None
    if isinstance(labels, Classes):
        return bool(labels.classes[labels.values[row]] == train.classes[train.values[neighbour]])
    return bool(((labels.values[row] == 1) & (train.values[neighbour] == 1)).any())


def _frame(said: Prediction) -> tuple[int, int, int] | None:
    return None if said.right is None else RIGHT if said.right else WRONG


def _section(
    result: Result, labels: Target, scores: records.Scores, group: ChosenImages, draw: Callable[[int], Panel]
) -> Section:
    """Return the images of one group, six in a row."""
    panels = []
    for row in group.rows:
        said = prediction(result, labels, scores.scores, row)
        caption = f"{scores.ids[row]}\n{said.text}"
        panels.append(dataclasses.replace(draw(row), caption=caption, frame=_frame(said)))
    lines: Sequence[tuple[str, Sequence[Panel]]] = [("", panels[i : i + 6]) for i in range(0, len(panels), 6)]
    return Section(group.title, _order(labels), lines, _SIDE)


def _pictures(result: Result, typed: AsTyped, source: Source) -> Callable[[int], Panel]:
    """Return a function from a position in a source to its picture."""

    def draw(row: int) -> Panel:
        found = thumbnails(source, {"": [row]}, reading=reading(result, typed), side=2 * _SIDE)[""]
        if not found:
            raise DataError(f"{source.images.path(row)} cannot be read")
        return Panel(found[0].picture)

    return draw


def show_several(result: Result, scores: records.Scores, typed: AsTyped, run: RunSettings, each: int) -> list[Section]:
    """Return the best, median and worst samples of several images: pairs, triplets, videos."""
    test = reopen_data(result, typed, run).test
    target, rows = SeveralImages.of(test.target), rows_of(test, scores.ids)
    number, given = len(target.images), np.asarray(scores.scores)
    images = Source(test.name, tuple(map(str, range(number))), Unlabelled(number), target.images)
    draw, sections = _pictures(result, typed, images), []
    for group in choose(influence(type(target), result.headline, scores.labels, given), each):
        lines = []
        for row in group.rows:
            found = zip(type(target).columns(target.classes), given[row].tolist(), strict=False)
            text = ", ".join([target.text(rows[row]), *(f"{name} {value:.3g}" for name, value in found)][:5])
            lines.append((f"{scores.ids[row]}: {text}", [draw(place) for place in target.rows(rows[row])[:_FRAMES]]))
        sections.append(Section(group.title, f"Ordered by what each does to {result.headline}.", lines, _SIDE))
    return sections


def influence(kind: type[Target], metric: str, values: np.ndarray, scores: np.ndarray) -> FloatArray:
    """Return by how much each sample betters a metric, (N,): the metric of all less that without the sample.

    >>> from sslbench.targets.triplets import Triplets
    >>> influence(Triplets, "choice_accuracy", np.array([0, 1]), np.array([[-0.5], [-0.1]])).tolist()
    [0.5, -0.5]
    """
    measures = kind.measures(values, scores, Units.of(len(scores), None))
    measure = next(one for one in measures if metric in one.names)
    column, size = measure.names.index(metric), max(1, _WEIGHTS // len(scores))
    whole = measure.statistic(np.ones((1, len(scores))))[0, column]
    without = [
        measure.statistic(1 - np.eye(min(size, len(scores) - start), len(scores), start))[:, column]
        for start in range(0, len(scores), size)
    ]
    return np.asarray(find_metric(metric).sign * (whole - np.concatenate(without)))


def image_quality(areas: np.ndarray) -> FloatArray:
    """Return the mean IoU of each image over the classes that it shows or that are predicted, (N,).

    `areas`: (N, 3 * C), see `metrics.dense.segmentation.class_areas`.
    """
    shaped = np.asarray(areas, dtype=np.float64).reshape(len(areas), 3, -1)
    return np.asarray(segmentation.segmentation_values(shaped)[:, 0])


def show_segmentation(
    result: Result,
    scores: records.Scores,
    typed: AsTyped,
    run: RunSettings,
    each: int,
    *,
    store: Path,
    progress: Progress | None = None,
) -> list[Section]:
    """Return the best, median and worst test images with their maps, predicted again from features computed again."""
    prepared = reopen(result, typed, run)
    encoded = encode_parts(prepared.backbone, prepared.data, prepared.layers, prepared.run, store, progress)
    layer = prepared.layers[0].text
    train, test = encoded.train[layer], encoded.test[layer]
    settings: segmentation_knn.Settings = prepared.request.tasks[0].settings
    groups = choose(image_quality(scores.whole), each)
    chosen = np.array(sorted(row for group in groups for row in group.rows), dtype=np.int64)
    memory = segmentation_knn.patch_memory(train, settings.memory, result.seed)
    device = str(choose_device(prepared.run.device))
    names = result.data.test.classes
    colours = class_colours(len(names))
    iou = image_quality(scores.whole)
    source, rows = prepared.data.test, rows_of(prepared.data.test, scores.ids)
    drawn: dict[int, list[Panel]] = {}
    seen: set[int] = set()
    at = {name: i for i, name in enumerate(test.ids)}
    queries = np.array([at[scores.ids[row]] for row in chosen], dtype=np.int64)
    maps = segmentation_knn.predicted_maps(memory, test.select(queries), settings, device)
    for row, (predicted, label) in zip(chosen.tolist(), maps, strict=True):
        areas = segmentation.class_areas(predicted, label, len(names), ignore=(-1,))
        if not np.array_equal(areas.ravel().astype(np.float32), scores.whole[row]):
            raise ResultError(
                f"{result.file}: the map of {scores.ids[row]} computed now is not the one of the record",
                "The network, a library or the protocol has changed: run the evaluation again.",
            )
        thumbnail = thumbnails(source, {"": [rows[row]]}, reading=reading(result, typed), side=2 * _MAP_SIDE)[""]
        if not thumbnail:
            raise DataError(f"{source.images.path(rows[row])} cannot be read")
        seen |= set(np.unique(predicted).tolist()) | set(np.unique(label).tolist())
        wrong = np.where(label < 0, 2, predicted != label)
        drawn[row] = [
            Panel(thumbnail[0].picture, f"IoU {100 * iou[row]:.1f} %"),
            _map(Image.fromarray(labelled(label, colours)), "truth"),
            _map(Image.fromarray(labelled(predicted, colours)), "prediction"),
            _map(
                Image.fromarray(labelled(wrong, _RIGHT_WRONG)),
                f"wrong: {100 * (wrong == 1).sum() / max(1, (wrong < 2).sum()):.1f} %",
            ),
        ]
    legend = [(names[c], tuple(colours[c].tolist())) for c in sorted(seen) if c >= 0]
    text = (
        "Ordered by the mean IoU of the image over its classes and the predicted ones. Grey pixels are ignored; in the "
        "last map wrong pixels are white."
    )
    return [
        Section(group.title, text, [(scores.ids[row], drawn[row]) for row in group.rows], _MAP_SIDE, legend)
        for group in groups
    ]


def _map(picture: Image.Image, caption: str) -> Panel:
    """Return the panel of a map, made smaller without mixing colours where it is large."""
    factor = 2 * _MAP_SIDE / max(picture.size)
    if factor < 1:
        size = max(1, round(picture.width * factor)), max(1, round(picture.height * factor))
        picture = picture.resize(size, Image.Resampling.NEAREST)
    return dataclasses.replace(Panel(picture, caption), blocky=True)
