"""Files beside a record: predictions and the confusion matrix, neighbours of queries, curves of corruptions."""

import dataclasses
import io
import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from sslbench.arrays import IntArray
from sslbench.backbones.backbone import Backbone
from sslbench.data.checks.sheets import Thumbnail, neighbour_sheet, text_thumbnail, thumbnails
from sslbench.data.decode.handlers import Reading
from sslbench.data.source import Source
from sslbench.data.splits import TrainTest
from sslbench.errors import ResultError
from sslbench.metrics.answers import ClassScores, highest, predicted_classes
from sslbench.paths import not_written
from sslbench.preprocessing import Preprocessing
from sslbench.results import MetricValue, Neighbours, Result, records
from sslbench.targets import kinds
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.text import csv_text
from sslbench.weights.save import save, save_probe

log = logging.getLogger("sslbench")

MOST_CLASSES = 1000
"""Largest number of classes of a confusion matrix."""
MOST_CELLS = 5_000_000
"""Largest number of scores of a table of several labels; it then has about 50 MB."""
_SIDE = 640  # of the matrix in the picture, in pixels
_LARGEST_CELL = 40
_MARGIN = 150  # for the names of the classes
_BLUE = (8, 48, 107)
CURVES = ".corruptions.png"
"""Suffix of the plot beside a record."""
_PART = re.compile(r"corruption_error\((\w+),(\d)\)")
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")  # Okabe and Ito
_STYLES = ("-", "--", ":")


def write_network(result: Result, scores: records.Scores, backbone: Backbone, out: Path) -> Result:
    """Write the trained network, or probe, beside the place of the record; return the record with the file's name.

    A module in memory has no name to load it by, so nothing is written.
    """
    network = scores.weights
    if network is None or backbone.kind.in_memory:
        return result
    path = records.path_of(result, out).with_suffix(records.WEIGHTS if network.tensors else records.PROBE)
    path.parent.mkdir(parents=True, exist_ok=True)
    classifier = {"classifier": json.dumps({"layer": result.layer, **network.classifier}, ensure_ascii=False)}
    metadata = {
        **network.metadata,
        **(classifier if network.classifier else {}),
        "preprocessing": json.dumps(backbone.preprocessing.record()),
        "init": result.weights.path or result.weights.name,
        "settings": result.protocol.settings,
        "record": result.id,
        "command": result.command,
    }
    if network.tensors:
        name, tensors = network.backbone, network.tensors
        save(path, tensors, backbone=name, metadata=metadata, heads=network.heads, overwrite=True)
    else:
        metadata = {"method": result.protocol.name, **metadata, "weights": result.weights.sha256}
        save_probe(path, network.heads, backbone=backbone.name, metadata=metadata)
    # A probe is small, and beside every record.
    level, what = (logging.INFO, "network with its classifier") if network.tensors else (logging.DEBUG, "probe")
    log.log(level, f"the {what}: {path}")
    return dataclasses.replace(result, weights_file=path.name)


def write_predicted(result: Result, scores: records.Scores) -> None:
    """Write predictions.csv of a record with labels; with one class per sample also confusion.csv and confusion.png.

    Of a protocol that averages draws of train, predictions.csv has a column `draw`, and the matrix counts the
    predictions of all draws; of the first alone where the file of scores has no others.

    There is no matrix of more than `MOST_CLASSES` classes, and no table of several labels with more than `MOST_CELLS`
    scores; the file of scores has them all.
    """
    if result.file is None or 0 in scores.scores.shape:
        return
    files: dict[str, bytes] = {}
    kind = kinds()[result.data.labels]
    one_each = scores.scores.shape == scores.labels.shape  # a score and a label of each class
    draws, several = scores.draws or (scores.scores,), result.protocol.settings.get("draws", 1) > 1
    if issubclass(kind, Classes) and "top1" in result.metrics:
        files = _of_single_labels(scores, draws, several_draws=several)
    elif issubclass(kind, MultiLabel) and one_each and scores.labels.size * len(draws) <= MOST_CELLS:
        # No class is called predicted: the protocols rank samples by each class, and have no threshold.
        table = [
            ["id", "labels", "unknown", *(f"score:{name}" for name in scores.classes), *(["draw"] if several else [])]
        ]
        for number, own in enumerate(draws, start=1):
            for sample, labels, row in zip(scores.ids, scores.labels, np.asarray(own).tolist(), strict=True):
                named = [";".join(scores.classes[i] for i in np.flatnonzero(labels == mark)) for mark in (1, -1)]
                # A class without a classifier has an empty cell.
                cells = ["" if np.isnan(score) else f"{score:.6g}" for score in row]
                table.append([sample, *named, *cells, *([str(number)] if several else [])])
        files = {records.PREDICTIONS_CSV: csv_text(table).encode()}
    try:
        for suffix, content in files.items():
            file = result.file.with_suffix(suffix)
            records.replace_file(file, content)
    except OSError as error:
        raise ResultError(not_written(file, error)) from error


def _of_single_labels(scores: records.Scores, draws: Sequence[ClassScores], *, several_draws: bool) -> dict[str, bytes]:
    """Return the contents of the files of a record with one class per sample, by their suffixes."""
    classes = scores.classes
    table = [["id", "label", "predicted", "correct", "score", *(["draw"] if several_draws else [])]]
    counts = np.zeros((len(classes), len(classes)), np.int64) if len(classes) <= MOST_CLASSES else None
    for number, own in enumerate(draws, start=1):
        predicted, best = predicted_classes(own), highest(own, 1)[:, 0]
        last = [str(number)] if several_draws else []
        for row, (sample, label, found) in enumerate(zip(scores.ids, scores.labels, predicted, strict=True)):
            right = str(int(label == found))
            name = classes[found] if found >= 0 else ""
            table.append([sample, classes[int(label)], name, right, f"{best[row]:.6g}", *last])
        if counts is not None:
            counts += confusion(scores.labels.astype(np.int64), predicted, len(classes))
    files = {records.PREDICTIONS_CSV: csv_text(table).encode()}
    if counts is not None:
        lines = [[name, *row] for name, row in zip(classes, counts.tolist(), strict=True)]
        files[records.CONFUSION_CSV] = csv_text([["label \\ predicted", *classes], *lines]).encode()
        files[records.CONFUSION_PNG] = picture(counts, classes, len(draws))
    return files


def confusion(labels: IntArray, predicted: IntArray, classes: int) -> IntArray:
    """Return the number of samples of each class (row) for each predicted class (column), (C, C); -1 is none.

    >>> confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    # A number for each pair of label and prediction. -1 would count for the last class in the row above.
    counts = np.bincount((labels * classes + predicted)[predicted >= 0], minlength=classes * classes)
    return counts.reshape(classes, classes).astype(np.int64)


def picture(counts: IntArray, classes: tuple[str, ...], draws: int = 1) -> bytes:
    """Return the matrix as a PNG: the share of each row, white 0 and dark blue 1; names and counts where they fit."""
    n = len(counts)
    cell = max(1, min(_LARGEST_CELL, _SIDE // n))
    # A class without test samples has an empty row: 0 / 1 in place of 0 / 0.
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    colours = 255 + shares[:, :, None] * (np.array(_BLUE) - 255)
    matrix = np.rint(colours).astype(np.uint8).repeat(cell, axis=0).repeat(cell, axis=1)
    named = cell >= 10
    left, top = (_MARGIN, _MARGIN) if named else (24, 24)
    image = Image.new("RGB", (left + n * cell + 8, top + n * cell + 8), "white")
    image.paste(Image.fromarray(matrix), (left, top))
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(10)
    draw.rectangle((left - 1, top - 1, left + n * cell, top + n * cell), outline="grey")
    if not named:
        draw.text((left, 6), f"predicted, {n} classes", fill="black", font=font)
        return _png(image)
    over = f", {draws} draws" if draws > 1 else ""
    draw.text((4, 4), f"label (row), predicted (column){over}", fill="black", font=font)
    for i, name in enumerate(classes):
        text = "".join(character if character.isprintable() else "?" for character in name[:60])
        while font.getlength(text) > _MARGIN - 30:
            text = text[:-2] + "\N{HORIZONTAL ELLIPSIS}"
        draw.text((left - 6, top + (i + 0.5) * cell), text, fill="black", font=font, anchor="rm")
        # Pillow draws no text at an angle, so the name is drawn on a strip of its own, which is turned.
        upright = Image.new("RGB", (_MARGIN - 24, 14), "white")
        ImageDraw.Draw(upright).text((2, 7), text, fill="black", font=font, anchor="lm")
        image.paste(
            upright.rotate(90, expand=True).crop((0, 0, min(14, cell), _MARGIN - 24)),
            (left + i * cell + max(0, cell - 14) // 2, 20),
        )
    if cell >= 24:
        for i, j in np.argwhere(counts):
            colour = "white" if shares[i, j] > 0.5 else "black"
            place = (left + (j + 0.5) * cell, top + (i + 0.5) * cell)
            draw.text(place, str(counts[i, j]), fill=colour, font=font, anchor="mm")
    return _png(image)


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def write_sheet(
    result: Result, neighbours: Sequence[Neighbours], data: TrainTest, preprocessing: Preprocessing
) -> None:
    """Write the sheet beside a record; a sheet that cannot be written costs a warning only."""
    path = records.neighbours_path(result)
    if not neighbours or path is None:
        return
    reading = Reading(decoder=preprocessing.decoder, max_pixels=preprocessing.max_pixels)
    database = data.train if neighbours[0].part == "train" else data.test
    queries = _thumbnails(data.test, [each.query for each in neighbours], reading)
    found = [name for each in neighbours for name, _ in each.found]
    of_texts = neighbours[0].part == "texts"
    images = {text: text_thumbnail(text) for text in found} if of_texts else _thumbnails(database, found, reading)
    rows = [
        (queries[each.query], [(images[image], right) for image, right in each.found if image in images])
        for each in neighbours
        if each.query in queries
    ]
    try:
        neighbour_sheet(rows, path)
    except OSError as error:
        log.warning(f"the sheet of neighbours cannot be written to {path}: {error.strerror or error}")


def _thumbnails(source: Source, ids: Sequence[str], reading: Reading) -> Mapping[str, Thumbnail]:
    row = {sample: i for i, sample in enumerate(source.ids)}
    found = thumbnails(source, {sample: [row[sample]] for sample in ids}, reading=reading)
    return {sample: pictures[0] for sample, pictures in found.items() if pictures}


def errors_by_severity(result: Result) -> dict[str, dict[int, MetricValue]]:
    """Return corruption -> severity -> error of a record; {} of a record without corruptions."""
    found: dict[str, dict[int, MetricValue]] = {}
    for name, value in result.metrics.items():
        if part := _PART.fullmatch(name):
            found.setdefault(part[1], {})[int(part[2])] = value
    return found


def write_curves(result: Result, out: Path) -> None:
    """Draw error over severity, a line per corruption with its 95 % interval, beside the record."""
    found = errors_by_severity(result)
    if not found:
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    # Without pyplot, which asks for a display and keeps every figure until it is closed.
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    severities: set[int] = set()
    for i, (name, values) in enumerate(found.items()):
        drawn = [(at, each) for at, each in sorted(values.items()) if each.value is not None]
        places, colour = [at for at, _ in drawn], _COLOURS[i % len(_COLOURS)]
        style = _STYLES[i // len(_COLOURS) % len(_STYLES)]
        axes.plot(places, [each.value or 0.0 for _, each in drawn], style, marker="o", color=colour, label=name)
        low, high = ([getattr(each, end) for _, each in drawn] for end in ("low", "high"))
        axes.fill_between(places, low, high, color=colour, alpha=0.12, linewidth=0)
        severities |= set(places)
    top1 = result.metrics["top1"].value
    if top1 is not None:
        axes.axhline(100 - top1, color="#666666", linestyle="--", linewidth=1, label="no corruption")
    axes.set_xticks(sorted(severities))
    axes.set_ylim(0, 100)
    axes.set_xlabel("severity")
    axes.set_ylabel("top-1 error (%)")
    axes.set_title(f"{result.weights.name}, {result.layer}", fontsize="medium")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", fontsize="small", frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    path = records.path_of(result, out).with_suffix(CURVES)
    try:
        records.replace_file(path, picture.getvalue())
    except OSError as error:
        raise ResultError(not_written(path, error)) from error
