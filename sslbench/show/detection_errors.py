"""Error analysis of a record of detections: kinds of error, scores of each class, precision-recall curves."""

import io
import logging
import math
from collections.abc import Sequence

from PIL import Image

from sslbench.metrics.detection import Detections, Truth, keypoint_ap, oks
from sslbench.metrics.detection.difference import DEFINITIONS
from sslbench.metrics.detection.errors import KINDS, ErrorAnalysis, error_analysis
from sslbench.metrics.detection.files import read_objects, read_results
from sslbench.metrics.detection.keypoints import labelled
from sslbench.metrics.detection.per_class import CLASS_METRICS, CURVE_OVERLAPS, ClassCurve, class_curves, class_scores
from sslbench.metrics.intervals import Interval
from sslbench.results import Result, records
from sslbench.show.page import Section
from sslbench.show.pictures import Panel
from sslbench.text import csv_text

log = logging.getLogger("sslbench")

_DRAWN = 20  # classes in the picture, those of most objects; the CSV has all
_WIDTH = 1200
_RESAMPLES = 300
_OF_KEYPOINTS = ("AP", "AP50", "AP75", "AR")


def show_errors(result: Result) -> tuple[list[Section], dict[str, str]]:
    """Return the sections of the page and the tables errors.csv, classes.csv and precision-recall.csv.

    Where keypoints are scored there is keypoints.csv as well.

    Only files beside the record are read. Of several trainings the first is analysed.

    Args:
        result: record of detections.

    Raises:
        ResultError: files are gone or damaged.
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
    tables = {
        "classes.csv": csv_text(_class_rows(scores, counts)),
        "precision-recall.csv": csv_text(_curve_rows(curves)),
    }
    if objects.truth.skeleton is not None:
        tables["keypoints.csv"] = csv_text(_keypoint_rows(objects.truth, found, result.seed))
    most = sorted(counts, key=lambda name: -counts[name])[:_DRAWN]
    sections = []
    if errors is None:
        log.warning("no kinds of error: TIDE's do not know classes that were not looked for in an image, as in LVIS")
    else:
        tables["errors.csv"] = csv_text(_error_rows(errors))
        sections.append(Section("kinds of error", _error_text(errors), []))
    if curves:
        picture = _plot([curve for curve in curves if curve.name in most])
        which = "all" if len(most) == len(counts) else f"the {_DRAWN} most frequent"
        text = f"Of {which} classes. The values of all: precision-recall.csv."
        sections.append(Section("precision and recall", text, [("", [Panel(picture)])], _WIDTH))
    return sections, tables


def _error_text(errors: ErrorAnalysis) -> str:
    costs = sorted(KINDS, key=lambda kind: -errors.costs[kind][0])
    each = [f"{kind} {_points(errors.costs[kind])} ({errors.counts[kind]:,} errors)" for kind in costs]
    return (
        f"AP50 is {100 * errors.ap50:.1f}. It would gain, if all errors of a kind were mended (TIDE; with 95 % "
        f"interval over images): {'; '.join(each)}."
    )


def _points(cost: Interval) -> str:
    value, low, high = (100 * end for end in cost)
    return f"{value:+.1f}" if math.isnan(low) else f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def _error_rows(errors: ErrorAnalysis) -> list[list[object]]:
    rows: list[list[object]] = [["kind", "errors", "AP50 gain", "low", "high"]]
    return rows + [[kind, errors.counts[kind], *_cells(errors.costs[kind])] for kind in KINDS]


def _class_rows(scores: dict[str, dict[str, Interval]], counts: dict[str, int]) -> list[list[object]]:
    heads = [f"{metric}{end}" for metric in CLASS_METRICS for end in ("", " low", " high")]
    rows: list[list[object]] = [["class", "objects", *heads]]
    for name, own in scores.items():
        rows.append([name, counts[name], *(cell for metric in CLASS_METRICS for cell in _cells(own[metric]))])
    return rows


def _keypoint_rows(truth: Truth, found: Detections, seed: int) -> list[list[object]]:
    """Return the metrics of each keypoint, as if it alone were labelled."""
    names = () if truth.skeleton is None else truth.skeleton.names
    heads = [f"{metric}{end}" for metric in _OF_KEYPOINTS for end in ("", " low", " high")]
    rows: list[list[object]] = [["keypoint", "labelled", *heads]]
    for k, name in enumerate(names):
        alone = oks.with_one(truth, k)
        own = keypoint_ap(alone, found, seed=seed, resamples=_RESAMPLES).metrics
        number = 0 if alone.keypoints is None else int(labelled(alone.keypoints[~truth.crowd]).sum())
        rows.append([name, number, *(cell for metric in _OF_KEYPOINTS for cell in _cells(own[metric]))])
    return rows


def _cells(values: Interval) -> list[str]:
    """Return value, low and high end in percent; '' where there is none."""
    return ["" if math.isnan(value) else f"{100 * value:.3f}" for value in values]


def _curve_rows(curves: Sequence[ClassCurve]) -> list[list[object]]:
    rows: list[list[object]] = [["class", "overlap", "score", "precision", "recall"]]
    for curve in curves:
        for score, precision, recall in zip(curve.scores, curve.precision, curve.recall, strict=True):
            rows.append([curve.name, f"{curve.overlap:g}", f"{score:.6g}", f"{precision:.6g}", f"{recall:.6g}"])
    return rows


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
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100, metadata={"Software": None})
    return Image.open(buffer).convert("RGB")
