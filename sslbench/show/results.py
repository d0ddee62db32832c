"""Pictures of the test images of a result record."""

import dataclasses
from pathlib import Path

from PIL import Image

from sslbench.errors import ResultError, UsageError
from sslbench.evaluation.beside import CURVES
from sslbench.evaluation.settings import RunSettings
from sslbench.results import Result, records
from sslbench.runtime.progress import Progress
from sslbench.show.choices import AsTyped
from sslbench.show.detection import show_detection, show_errors
from sslbench.show.page import Section, open_folder, page
from sslbench.show.pictures import Panel, sheet
from sslbench.show.predictions import show_predictions, show_segmentation, show_several
from sslbench.show.record import scores_of
from sslbench.targets import kinds
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import OfClasses, SeveralImages

DETECTIONS = ("detection", "detections")
"""Protocols with boxes beside their records: of detectors trained here, and of others."""
WHOLE = ("geometry", "transferability")
"""Protocols whose scores are of all features together."""


@dataclasses.dataclass(frozen=True)
class RecordPictures:
    """Choice of pictures of a record.

    Attributes:
        typed: words of the user, in place of those of the record.
        each: number of images per group: best, median, worst.
    """

    typed: AsTyped
    each: int
    store: Path


def show_record(
    path: Path, chosen: RecordPictures, run: RunSettings, out: Path, *, command: str, progress: Progress | None = None
) -> list[Path]:
    """Write sheets of the best, median and worst test images of a record, index.html and show.json."""
    result = records.read(path)
    protocol = chosen.typed.protocol
    if protocol is not None and protocol != result.protocol.name:
        raise UsageError(f"{path} is a record of {result.protocol.name}, not of {protocol}")
    sections = _sections(result, chosen, run, progress)
    tables: dict[str, str] = {}
    if result.protocol.name in DETECTIONS:
        errors, tables = show_errors(result)
        sections = [*errors, *sections]
    folder = open_folder(out)
    for name, text in tables.items():
        folder.write_text(name, text)
    for section in (section for section in sections if section.rows):
        folder.write_sheet(section.title, sheet(section.rows, side=section.side, legend=section.legend))
    value = result.metrics[result.headline].value
    about = {
        "record": str(path),
        "weights": f"{result.weights.name} ({result.weights.backbone}, sha256 {result.weights.sha256[:16]})",
        "protocol": f"{result.protocol.name}, layer {result.layer}",
        "data": result.data.test.name,
        result.headline: "n/a" if value is None else f"{value:.2f}",
    }
    description = {
        "command": command,
        "created": records.now(),
        "record": path.resolve(),
        "id": result.id,
        "weights": result.weights,
        "layers": [result.layer],
        "preprocessing": result.preprocessing,
        "data": result.data.test,
        "seed": result.seed,
        "versions": records.versions(),
    }
    folder.finish(page(f"{result.protocol.name}: {result.weights.name}", about, sections), description)
    return [folder.path / name for name in folder.files]


def _sections(result: Result, chosen: RecordPictures, run: RunSettings, progress: Progress | None) -> list[Section]:
    name = result.protocol.name
    if name in DETECTIONS:
        return show_detection(result, chosen.typed, run.test_fraction, chosen.each)
    curves = result.file.with_suffix(CURVES) if result.file is not None else None
    if curves is not None and curves.is_file():
        title, text = "errors by severity", "Error of each corruption over its severity, as the evaluation drew it."
        return [_of_file(curves, title, text)]
    scores = scores_of(result)
    if name == "segmentation-knn":
        return show_segmentation(result, scores, chosen.typed, run, chosen.each, store=chosen.store, progress=progress)
    kind, of_samples = kinds()[result.data.labels], bool(scores.scores.shape[1])
    drawn = (records.picture_path(result), records.neighbours_path(result))
    if issubclass(kind, SeveralImages) and of_samples and not any(path and path.is_file() for path in drawn):
        return show_several(result, scores, chosen.typed, run, chosen.each)
    if not issubclass(kind, OfClasses | Numbers) or not of_samples:
        return [_stored_picture(result)]
    return show_predictions(result, scores, chosen.typed, run, chosen.each, store=chosen.store, progress=progress)


def _stored_picture(result: Result) -> Section:
    """Return the picture beside a record, which the evaluation drew."""
    path, what = records.picture_path(result), "images"
    text = "Images with the best, median and worst scores"
    if path is None or not path.is_file():
        path, what = records.neighbours_path(result), "queries"
        text = "Queries, from the worst to the best, and their first answers"
    if path is None or not path.is_file():
        if result.protocol.name in WHOLE:
            raise ResultError(
                f"{result.file}: {result.protocol.name} scores all features together, and no image by itself",
                "Draw the features: sslbench show features --weights WEIGHTS --data DATA",
            )
        raise ResultError(
            f"{result.file}: predictions of {result.protocol.name} are not stored, and no picture lies beside it",
            "The evaluation draws best, median and worst images: run it again.",
        )
    return _of_file(path, f"best, median and worst {what}", f"{text}, as the evaluation drew them.")


def _of_file(path: Path, title: str, text: str) -> Section:
    """Return a section with a picture beside a record."""
    try:
        with Image.open(path) as file:
            picture = file.convert("RGB")
    except (OSError, ValueError) as error:
        raise ResultError(f"{path} is no picture: {error}") from error
    return Section(title, text, [("", [Panel(picture)])], max(picture.size))
