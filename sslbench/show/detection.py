"""Record of detections: best, median and worst images with boxes, and the analysis of errors."""

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from sslbench.arrays import BoolArray, FloatArray
from sslbench.data.objects import ObjectSource
from sslbench.data.splits.objects import split_objects
from sslbench.detection.batches import read
from sslbench.detection.pictures import draw_pair
from sslbench.errors import DataError, ResultError, UsageError
from sslbench.evaluation.scored import PROTOCOL, parts_to_score
from sslbench.metrics.detection import Detections, Truth, keypoint_ap, oks
from sslbench.metrics.detection.average_precision import (
    CLASS_METRICS,
    CURVE_OVERLAPS,
    DEFINITIONS,
    ClassCurve,
    class_curves,
    class_scores,
)
from sslbench.metrics.detection.errors import KINDS, ErrorAnalysis, error_analysis
from sslbench.metrics.detection.files import read_objects, read_results
from sslbench.metrics.detection.keypoints import labelled
from sslbench.metrics.detection.matches import box_overlap
from sslbench.metrics.intervals import Interval
from sslbench.results import Result, records
from sslbench.show.choices import AsTyped
from sslbench.show.page import Section
from sslbench.show.pictures import Panel, drawn
from sslbench.show.record import choose, locations, reading, split_seed
from sslbench.text import csv_text

_SCORE, _OVERLAP = 0.5, 0.5
_PAGE_SIDE = 640  # of both pictures together
log = logging.getLogger("sslbench")
_DRAWN = 20  # classes in the picture, those of most objects; the CSV has all
_WIDTH = 1200
_RESAMPLES = 300
_OF_KEYPOINTS = ("AP", "AP50", "AP75", "AR")


def show_detection(result: Result, typed: AsTyped, test_fraction: float, each: int) -> list[Section]:
    """Return the worst, median and best test images with true (left) and predicted boxes (right)."""
    test = _test_part(result, typed, test_fraction)
    found = read_results(_predictions_path(result), test.target.numbers, test.target.class_numbers, test.target.sizes)
    masks = found.masks is not None and test.target.has_masks
    truth = test.truth(masks=masks, skeleton=None if found.keypoints is None else test.target.skeleton)
    sections = []
    for group in reversed(choose(image_f1(truth, found), each)):  # the worst images first
        rows = []
        for row in group.rows:
            image = np.ascontiguousarray(read(test, row).permute(1, 2, 0).numpy())
            pair = draw_pair(image, row, test.ids[row], truth, found, _SCORE)
            rows.append(("", [Panel(pair)]))
        text = (
            f"Ordered by the F-score of the boxes of an image, of scores from {_SCORE:g} on, matched at an overlap of "
            f"{_OVERLAP:g}. Left the truth, dashed where it does not count; right the predictions."
        )
        sections.append(Section(group.title, text, rows, _PAGE_SIDE))
    return sections


def _predictions_path(result: Result) -> Path:
    """Return the file of detections of a record; of several trainings that of the first."""
    paths = list(records.predictions_paths(result).values())
    if not paths:
        raise ResultError("a record that was not read from a file has no predictions beside it")
    return paths[0]


def _test_part(result: Result, typed: AsTyped, test_fraction: float) -> ObjectSource:
    data, test_data = locations(result, typed)
    total = max(1, result.data.train.n + result.data.test.n)
    for fraction in dict.fromkeys((test_fraction, result.data.test.n / total)):
        try:
            if result.protocol.name == PROTOCOL:
                _, part = parts_to_score(data, test_data)
            else:
                part = split_objects(data, test_data, seed=split_seed(result), test_fraction=fraction).test
        except (DataError, UsageError) as error:
            raise type(error)(
                f"the data of {result.file} cannot be used: {error.message}",
                "Give their location with --data and --test-data.",
            ) from error
        if part.objects_fingerprint() == result.data.test.fingerprint:
            return dataclasses.replace(part, reading=reading(result, typed))
    raise ResultError(
        f"{data} is not the data of {result.file}: images or objects have changed, or it is another set",
        f"Give its data with --data and --test-data. The record was made by: {result.command}",
    )


def image_f1(truth: Truth, found: Detections) -> FloatArray:
    """Return the F-score of the boxes of each image, (N,): 2 TP / (2 TP + FP + FN); 1 with nothing to find."""
    # Detections with scores from 0.5 on are matched in falling order of score, each to the object of its class that it
    # overlaps most, by 0.5 or more. Crowds and difficult objects count neither as found nor as missed.
    values = np.ones(truth.n_images)
    ignored = truth.crowd | truth.difficult
    for image in range(truth.n_images):
        there = np.flatnonzero(truth.images == image)
        here = np.flatnonzero((found.images == image) & (found.scores >= _SCORE))
        here = here[np.argsort(-found.scores[here], kind="stable")]
        found_boxes, true_boxes = found.boxes[here].astype(np.float64), truth.boxes[there].astype(np.float64)
        with np.errstate(invalid="ignore"):  # two boxes without an area
            overlap = np.nan_to_num(box_overlap(found_boxes, true_boxes, 0))
        overlap[found.labels[here][:, None] != truth.labels[there][None]] = 0
        right, wrong = _matches(overlap, ignored[there])
        missed = int((~ignored[there]).sum()) - right
        total = 2 * right + wrong + missed
        values[image] = 2 * right / total if total else 1.0
    return values


def _matches(overlap: FloatArray, ignored: BoolArray) -> tuple[int, int]:
    """Return the numbers of right and wrong detections, for overlaps (D, T) in falling order of score."""
    taken, right, wrong = np.zeros(len(ignored), dtype=np.bool_), 0, 0
    for row in overlap:
        free = np.where(taken | ignored, 0, row)
        if len(free) and free.max() >= _OVERLAP:
            taken[free.argmax()] = True
            right += 1
        elif not (len(row) and np.where(ignored, row, 0).max() >= _OVERLAP):
            wrong += 1
    return right, wrong


def show_errors(result: Result) -> tuple[list[Section], dict[str, str]]:
    """Return the sections of the page and the tables errors.csv, classes.csv and precision-recall.csv.

    Where keypoints are scored there is keypoints.csv as well.

    Only files beside the record are read. Of several trainings the first is analysed.
    """
    if result.file is None or result.objects_file is None:
        log.warning(
            f"no error analysis: {result.file} was written by an older sslbench, without the objects of its test part; "
            "run that evaluation again, which trains nothing"
        )
        return [], {}
    objects = read_objects(result.file.with_name(result.objects_file))
    path = next(iter(records.predictions_paths(result).values()))
    found = read_results(path, objects.image_numbers, objects.class_numbers, objects.sizes)
    definition = DEFINITIONS[result.protocol.settings["metric"]]
    errors = None if definition == "lvis" else error_analysis(objects.truth, found, seed=result.seed)
    scores = class_scores(objects.truth, found, definition, seed=result.seed)
    curves = class_curves(objects.truth, found, definition)
    counts = {name: int((objects.truth.labels == c).sum()) for c, name in enumerate(objects.truth.classes)}
    rows = [["class", "objects", *_heads(CLASS_METRICS)]]
    rows += [[name, counts[name], *_cells(own, CLASS_METRICS)] for name, own in scores.items()]
    points: list[list[object]] = [["class", "overlap", "score", "precision", "recall"]]
    for curve in curves:
        for values in zip(curve.scores, curve.precision, curve.recall, strict=True):
            points.append([curve.name, f"{curve.overlap:g}", *(f"{value:.6g}" for value in values)])
    tables = {"classes.csv": csv_text(rows), "precision-recall.csv": csv_text(points)}
    if objects.truth.skeleton is not None:
        tables["keypoints.csv"] = csv_text(_keypoint_rows(objects.truth, found, result.seed))
    most = sorted(counts, key=lambda name: -counts[name])[:_DRAWN]
    sections = []
    if errors is None:
        log.warning("no kinds of error: TIDE's do not know classes that were not looked for in an image, as in LVIS")
    else:
        gains = [[kind, errors.counts[kind], *_percent(errors.costs[kind])] for kind in KINDS]
        tables["errors.csv"] = csv_text([["kind", "errors", "AP50 gain", "low", "high"], *gains])
        sections.append(Section("kinds of error", _error_text(errors), []))
    if curves:
        picture = _plot([curve for curve in curves if curve.name in most])
        which = "all" if len(most) == len(counts) else f"the {_DRAWN} most frequent"
        text = f"Of {which} classes. The values of all: precision-recall.csv."
        sections.append(Section("precision and recall", text, [("", [Panel(picture)])], _WIDTH))
    return sections, tables


def _error_text(errors: ErrorAnalysis) -> str:
    each = []
    for kind in sorted(KINDS, key=lambda kind: -errors.costs[kind][0]):
        value, low, high = (100 * end for end in errors.costs[kind])
        interval = "" if math.isnan(low) else f" [{low:+.1f}, {high:+.1f}]"
        each.append(f"{kind} {value:+.1f}{interval} ({errors.counts[kind]:,} errors)")
    return (
        f"AP50 is {100 * errors.ap50:.1f}. It would gain, if all errors of a kind were mended (TIDE; with 95 % "
        f"interval over images): {'; '.join(each)}."
    )


def _keypoint_rows(truth: Truth, found: Detections, seed: int) -> list[list[object]]:
    """Return the metrics of each keypoint, as if it alone were labelled."""
    names = () if truth.skeleton is None else truth.skeleton.names
    rows: list[list[object]] = [["keypoint", "labelled", *_heads(_OF_KEYPOINTS)]]
    for k, name in enumerate(names):
        alone = oks.with_one(truth, k)
        own = keypoint_ap(alone, found, seed=seed, resamples=_RESAMPLES).metrics
        number = 0 if alone.keypoints is None else int(labelled(alone.keypoints[~truth.crowd]).sum())
        rows.append([name, number, *_cells(own, _OF_KEYPOINTS)])
    return rows


def _heads(metrics: Sequence[str]) -> list[object]:
    return [f"{metric}{end}" for metric in metrics for end in ("", " low", " high")]


def _cells(values: Mapping[str, Interval], metrics: Sequence[str]) -> list[str]:
    return [cell for metric in metrics for cell in _percent(values[metric])]


def _percent(values: Interval) -> list[str]:
    """Return value, low and high end in percent; '' where there is none."""
    return ["" if math.isnan(value) else f"{100 * value:.3f}" for value in values]


def _plot(curves: Sequence[ClassCurve]) -> Image.Image:
    """Return a picture with a panel for each overlap and a line for each class."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    FigureCanvasAgg(figure)
    names = list(dict.fromkeys(curve.name for curve in curves))
    palette = colormaps["tab10" if len(names) <= 10 else "tab20"]
    for axis, overlap in zip(figure.subplots(1, len(CURVE_OVERLAPS), sharey=True), CURVE_OVERLAPS, strict=True):
        for curve in (curve for curve in curves if curve.overlap == overlap):
            colour = palette(names.index(curve.name))
            axis.plot([0, *curve.recall], [1, *curve.precision], color=colour, linewidth=1.5, label=curve.name)
        axis.set(xlim=(0, 1.01), ylim=(0, 1.03), xlabel="recall", ylabel="precision", title=f"overlap {overlap:g}")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    return drawn(figure, dpi=100)
