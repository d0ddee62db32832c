"""Classes of images by the classifier of a weights file, maps by the head of a dense protocol; their export."""

import copy
import csv
import dataclasses
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from sslbench.arithmetic import arithmetic
from sslbench.backbones import named
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.classifier import Classifier, find_classifier, has_classifier, read_classifier
from sslbench.backbones.export import ExportReport, export, export_module
from sslbench.backbones.layers import resolve_layers
from sslbench.backbones.load import recorded_preprocessing
from sslbench.backbones.speed import prepare
from sslbench.data.clips import sampling_of, views_of
from sslbench.data.decode.transforms import normalise
from sslbench.data.labels import NO_CLASS_FOLDERS
from sslbench.data.loading import loader
from sslbench.data.open import open_data, refuse_targets_of_pixels
from sslbench.data.sharded import by_shard
from sslbench.data.source import Source
from sslbench.data.splits import limit
from sslbench.errors import DataError, UsageError, WeightsError
from sslbench.evaluation.file_classifier import read_with_heads
from sslbench.evaluation.predicted_maps import MapFiles, new_folder, open_images
from sslbench.evaluation.preparation import extract_settings, for_request, load
from sslbench.evaluation.request import Request, Task
from sslbench.evaluation.settings import RunSettings
from sslbench.features.extract import check_clips
from sslbench.features.job import check_first
from sslbench.paths import file_url_path, new_file
from sslbench.protocols._parts.dense.saved import ExportedHead, SavedHead, TrainedHead, is_dense
from sslbench.protocols._parts.views import over_views
from sslbench.runtime.folders import refuse_filled_folder, refuse_missing_folder
from sslbench.runtime.progress import Progress, stage_progress
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.numbers import Numbers
from sslbench.text import spreadsheet_cell
from sslbench.weights.format_name import EXPORTS
from sslbench.weights.reading import files
from sslbench.weights.save import PROBE_FORMAT

log = logging.getLogger("sslbench")

FloatArray = npt.NDArray[np.float32]
_Row = tuple[str, Sequence[object], str]  # id, cells between it and the error, and the error
_IN_WORDS = {"single": "one class per image", "multi": "several labels per image", "value": "numbers"}


@dataclasses.dataclass(frozen=True)
class PredictedBatch:
    """Outputs for consecutive images.

    Attributes:
        values: float32 (n, C): probabilities of the classes, or predicted numbers.
        unreadable: (id, reason) of the images that cannot be read.
    """

    ids: tuple[str, ...]
    values: FloatArray
    unreadable: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class PredictionCounts:
    """Numbers of images with a prediction, and of unreadable ones."""

    predicted: int
    unreadable: int


def load_with_classifier(
    request: Request, run: RunSettings, classes: Sequence[str] | None = None, probe: files.WeightsFile | None = None
) -> tuple[Backbone, Classifier]:
    """Return the backbone and the classifier of a weights file, or of a probe that was trained on its features."""
    if probe is not None:
        if classes is not None:
            raise UsageError(f"{probe.path} names its classes itself", "Leave --classes out.")
        return load_with_probe(request, run, probe)
    absent = not named.is_named(request.weights) and not Path(request.weights).exists()
    if absent and (request.weights in ("random", "pixels") or ":" in request.weights):
        raise UsageError(f"'{request.weights}' has no classifier", "Give a weights file.")
    if request.weights.endswith(EXPORTS):
        raise UsageError(
            f"{request.weights} is a network for other programs, as sslbench export writes them",
            "Give the weights file that it was exported from.",
        )
    file, backbone = load_with_heads(request, run)
    classifier = find_classifier(file, backbone, classes)
    log.info(f"{request.weights}: classifier of {len(classifier.info.classes):,} outputs on {classifier.layer.text}")
    return backbone, classifier


def read_probe(path: Path) -> files.WeightsFile:
    """Return the file of a probe.

    Raises:
        WeightsError: the file is no probe.
    """
    file = files.read(path)
    if file.content.get("format") != PROBE_FORMAT or not isinstance(file.content.get("metadata"), Mapping):
        raise WeightsError(
            f"{path} is no probe",
            "Such as linear, linear-online and segmentation write: NAME-ID.probe.torch beside their records.",
        )
    return file


def load_for_probe(request: Request, run: RunSettings, probe: files.WeightsFile) -> Backbone:
    """Return a backbone with the preprocessing of a probe.

    Raises:
        WeightsError: the probe was trained on features of another network.
    """
    metadata = probe.content["metadata"]
    backbone = load(request, run)
    preprocessing = recorded_preprocessing(probe)
    if preprocessing is not None:
        backbone = dataclasses.replace(backbone, preprocessing=preprocessing)
    backbone = for_request(backbone, request, run)[0]
    # Networks of one architecture's tensors may still differ: number of heads, or none at all (pixels).
    trained_on, name = metadata.get("weights"), probe.content.get("backbone")
    if (trained_on, name) != (backbone.weights_sha256, backbone.name):
        differ = "the tensors differ" if trained_on != backbone.weights_sha256 else f"it was read as {backbone.name}"
        raise WeightsError(
            f"{probe.path} was not trained on features of {request.weights}: {differ}",
            f"It belongs to {metadata.get('init')}, a {name}.",
        )
    return backbone


def load_with_probe(request: Request, run: RunSettings, probe: files.WeightsFile) -> tuple[Backbone, Classifier]:
    """Return a backbone with the preprocessing of its probe, and the probe, a classifier."""
    backbone = load_for_probe(request, run, probe)
    classifier = read_classifier(probe, backbone)
    if classifier is None:
        raise WeightsError(f"{probe.path} names no classifier: it has no metadata.classifier")
    log.info(f"{probe.path}: classifier of {len(classifier.info.classes):,} outputs on {classifier.layer.text}")
    return backbone, classifier


def load_with_head(
    request: Request, run: RunSettings, probe: files.WeightsFile, progress: Progress | None = None
) -> TrainedHead:
    """Return the head for maps in the file of a probe, on its backbone."""
    if request.preprocessing:
        raise UsageError(
            f"{probe.path} fixes the preprocessing of its images; {', '.join(request.preprocessing)} would change it",
            "Leave it out, or train a head with it.",
        )
    saved = SavedHead.of(probe)
    # As the protocol reads images: their sizes are by its settings.
    request = dataclasses.replace(request, tasks=(Task(saved.protocol, saved.settings, {}),))
    log.info(f"{probe.path}: head of {saved.protocol} on {saved.info.row}")
    return saved.on(load_for_probe(request, run, probe), extract_settings(run), progress)


def load_with_heads(request: Request, run: RunSettings) -> tuple[files.WeightsFile, Backbone]:
    """Return a weights file and its backbone with the file's heads, as a request asks for it."""
    file, loaded = read_with_heads(request)
    if loaded.report is not None:
        log.info(f"{request.weights}: {loaded.name}, {loaded.report.line()}")
    return file, for_request(loaded, request, run)[0]


def predictions(
    backbone: Backbone, classifier: Classifier, source: Source, run: RunSettings, progress: Progress | None = None
) -> Iterator[PredictedBatch]:
    """Yield the classifier's outputs for every image of a source, batch by batch."""
    check_clips(backbone, source)
    engine, videos = extract_settings(run), views_of(source.images)
    encode = prepare(backbone, (classifier.layer,), device=engine.device, precision=engine.precision)
    # `to` moves a module in place; the caller's stays where it is.
    head = copy.deepcopy(classifier.head).to(engine.device)
    report, done = stage_progress(progress, f"{backbone.title} on {source.name}"), 0
    for batch in loader.batches(
        source,
        by_shard(source.images, np.arange(len(source))),
        backbone.preprocessing,
        batch_size=engine.batch_size,
        workers=engine.workers,
        start_method=engine.start_method,
    ):
        if done == 0:
            check_first(batch, backbone)
        values = np.zeros((0, len(classifier.info.classes)), dtype=np.float32)
        if len(batch.indices):
            images = normalise(batch.images.to(encode.device), backbone.preprocessing, encode.dtype)
            with torch.inference_mode(), arithmetic(encode.device):
                scores = head(encode(videos.by_view(images))[classifier.layer.text]).float()
                if classifier.info.labels == Numbers.name:
                    scores = scores.reshape(-1, videos.views, *scores.shape[1:]).mean(1)
                else:  # probabilities of the classes
                    scores = over_views(scores, videos.views, single=classifier.info.labels == Classes.name)
                    scores = scores.sigmoid() if classifier.info.labels == MultiLabel.name else scores.softmax(1)
                values = scores.cpu().numpy()
        yield PredictedBatch(
            tuple(source.ids[i] for i in batch.indices.tolist()),
            values,
            tuple((source.ids[i], reason) for i, _, reason in batch.unreadable),
        )
        done += len(batch.indices) + len(batch.unreadable)
        if report is not None:
            report(done, len(source))


def predict(  # noqa: PLR0913  every choice of a prediction
    request: Request,
    run: RunSettings,
    out: Path,
    *,
    probe: Path | None = None,
    maps: Path | None = None,
    classes: Sequence[str] | None = None,
    top_k: int = 1,
    threshold: float | None = None,
    progress: Progress | None = None,
) -> PredictionCounts:
    """Write one row per image to a CSV file: classes and probabilities, or the reason why an image cannot be read.

    `probe`: file of a probe, in place of the classifier in the weights file; `maps`: folder for a map per image, where
    the probe is the head of a dense protocol; `threshold`: smallest probability of the predicted classes of multiple
    labels; None: 0.5.
    """
    # Rows are written as they are computed, so memory does not grow with the number of images; the file appears
    # complete or not at all.
    refuse_missing_folder(out)
    _refuse_what_is_read(out, [request.weights, request.data, *([] if probe is None else [str(probe)])])
    file = None if probe is None else read_probe(probe)
    if file is not None and is_dense(file):
        if maps is None:
            raise UsageError(f"{probe} predicts maps of pixels", "Name a folder for them: --maps FOLDER.")
        if (classes, top_k, threshold) != (None, 1, None):
            raise UsageError(f"--classes, --top-k and --threshold have no effect on the maps of {probe}")
        return _predict_maps(request, run, out, maps, file, progress)
    if maps is not None:
        raise UsageError(
            "--maps has no effect on a classifier", "It is for probes of segmentation, depth and the like."
        )
    refuse_targets_of_pixels(request.data)
    opened = open_data(request.data, image_column=request.image_column, decoder=run.decoder)
    parts = _limited(opened, request, run)
    backbone, classifier = load_with_classifier(request, run, classes, file)
    names, labels = classifier.info.classes, classifier.info.labels
    if top_k > 1 and labels != Classes.name:
        raise UsageError(f"--top-k {top_k}: this classifier predicts {_IN_WORDS[labels]}", "Leave --top-k out.")
    if threshold is not None and labels != MultiLabel.name:
        raise UsageError(f"--threshold: this classifier predicts {_IN_WORDS[labels]}", "Leave --threshold out.")
    if not 1 <= top_k <= len(names):
        raise UsageError(f"--top-k {top_k}: the classifier has {len(names)} classes")

    def rows(split: str, part: Source) -> Iterator[_Row]:
        for batch in predictions(backbone, classifier, part, run, progress):
            for id_, row in zip(batch.ids, batch.values, strict=True):
                yield id_, _cells(row, names, labels, top_k, 0.5 if threshold is None else threshold), ""
            yield from ((id_, (), reason) for id_, reason in batch.unreadable)

    with new_file(out) as temporary:
        return _write(temporary, parts, _header(names, labels, top_k), rows, request.data)


def _limited(parts: Mapping[str, Source], request: Request, run: RunSettings) -> Mapping[str, Source]:
    """Return the parts with at most `--limit` images each; tell what they leave out."""
    for note in dict.fromkeys(note for part in parts.values() for note in part.notes):
        if NO_CLASS_FOLDERS not in note:  # no label is needed
            log.warning(note)
    number = request.limit
    if number is None:
        return parts
    return {name: limit(part, number, run.seed) if number < len(part) else part for name, part in parts.items()}


def _predict_maps(
    request: Request, run: RunSettings, out: Path, maps: Path, probe: files.WeightsFile, progress: Progress | None
) -> PredictionCounts:
    """Write the map of each image into a new folder, and its name into a CSV file."""
    if not maps.name:
        raise UsageError(f"--maps {maps} is the current folder, which cannot be written as a whole", "Name a new one.")
    if maps.resolve() in (out.resolve(), *out.resolve().parents):
        raise UsageError(f"{out} lies in {maps}, which is written as a whole", "Name a file outside for the rows.")
    refuse_filled_folder(maps)
    head = load_with_head(request, run, probe, progress)
    parts = _limited(open_images(request, run, head.saved.kind.takes), request, run)
    if videos := [part.name for part in parts.values() if sampling_of(part.images)]:
        raise UsageError(f"{videos[0]} has videos, and maps are of images", "Give a folder of frames.")
    with new_file(out) as temporary, new_folder(maps) as folder:
        written = MapFiles(folder, parts, head.saved.info.task.get("classes", ()))

        def rows(split: str, part: Source) -> Iterator[_Row]:
            report = stage_progress(progress, f"{head.scoring.backbone.title} on {part.name}")
            for done, (index, values, reason) in enumerate(head.predictions(part), start=1):
                yield part.ids[index], () if reason else (written.write(split, part.ids[index], values),), reason
                if report is not None:
                    report(done, len(part))

        return _write(temporary, parts, ("map",), rows, request.data)


def _write(
    out: Path,
    parts: Mapping[str, Source],
    header: Sequence[str],
    rows: Callable[[str, Source], Iterator[_Row]],
    data: str,
) -> PredictionCounts:
    """Write the rows of all splits."""
    counts = {"predicted": 0, "unreadable": 0}
    with out.open("w", newline="", encoding="utf-8") as file:
        # The csv module's own line end is CR LF.
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["split", "id", *map(spreadsheet_cell, header), "error"])
        for split, part in parts.items():
            for id_, cells, reason in rows(split, part):
                counts["unreadable" if reason else "predicted"] += 1
                writer.writerow([split, *map(spreadsheet_cell, (id_, *(cells or [""] * len(header)), reason))])
    # Before the file is renamed, so that none appears.
    if counts["unreadable"] and not counts["predicted"]:
        raise DataError(f"none of the {counts['unreadable']} images of {data} can be read")
    return PredictionCounts(**counts)


def _refuse_what_is_read(out: Path, inputs: Sequence[str]) -> None:
    places = [(file_url_path(name) or Path(name)).resolve() for name in inputs]
    if any(out.resolve() == place or (out.exists() and place in out.resolve().parents) for place in places):
        raise UsageError(f"{out} is read, and the predictions would replace it", "Name another file for them.")


def _header(names: Sequence[str], labels: str, top_k: int) -> list[str]:
    if labels == Numbers.name:
        return list(names)
    if labels == MultiLabel.name:
        return ["classes", *names]
    if top_k == 1:
        return ["class", "probability"]
    return [f"{word}_{rank}" for rank in range(1, top_k + 1) for word in ("class", "probability")]


def _cells(row: FloatArray, names: Sequence[str], labels: str, top_k: int, threshold: float) -> list[object]:
    """Return the cells of one image between its id and the error."""
    if labels == Numbers.name:
        return [_number(value) for value in row]
    if labels == MultiLabel.name:
        found = [name for name, value in zip(names, row, strict=True) if value >= threshold]
        return ["; ".join(found), *(_number(value) for value in row)]
    # Equal probabilities: the earlier class first, on every machine.
    best = np.argsort(-row, kind="stable")[:top_k]
    return [cell for index in best.tolist() for cell in (names[index], _number(row[index]))]


def _number(value: np.float32) -> str:
    return f"{float(value):.6g}"


def export_network(request: Request, out: Path, *, probe: Path | None = None, overwrite: bool = False) -> ExportReport:
    """Write the network of a request as .onnx or .pt2, with its probe; see `sslbench.backbones.export.export`."""
    run = RunSettings(device="cpu")
    if probe is not None:
        if request.layers:
            raise UsageError("--layers has no effect with --probe: the probe takes its own layer", "Leave it out.")
        file = read_probe(probe)
        if is_dense(file):
            return _export_head(load_with_head(request, run, file), out, overwrite=overwrite)
        backbone, classifier = load_with_probe(request, run, file)
        return export(backbone, classifier.layer, out, classifier=classifier, overwrite=overwrite)
    if len(request.layers) > 1:
        raise UsageError(f"--layers {','.join(request.layers)}: an exported network has one output", "Name one layer.")
    if request.layers or not (named.is_named(request.weights) or Path(request.weights).exists()):
        backbone, _ = for_request(load(request, run), request, run)
        (layer,) = resolve_layers(backbone, request.layers)
        return export(backbone, layer, out, overwrite=overwrite)
    file, backbone = load_with_heads(request, run)
    if has_classifier(file, backbone):
        classifier = find_classifier(file, backbone)
        return export(backbone, classifier.layer, out, classifier=classifier, overwrite=overwrite)
    return export(backbone, resolve_layers(backbone, ())[0], out, overwrite=overwrite)


def _export_head(head: TrainedHead, out: Path, *, overwrite: bool) -> ExportReport:
    """Write a network with a head for maps; the averages over scales and flips of its scores are left out."""
    network, backbone = ExportedHead(head), head.scoring.backbone
    if head.scoring.inference.scales != (1.0,) or head.scoring.inference.flip:
        log.warning("the file has one window at one scale: averages over scales and mirror images are for predict")
    facts = {"layer": head.saved.info.row, "protocol": head.saved.protocol}
    facts |= {name: json.dumps(value) for name, value in head.saved.info.task.items()}
    shape = (backbone.preprocessing.channels, *network.size)
    return export_module(backbone, network, out, shape, "maps", facts, overwrite)
