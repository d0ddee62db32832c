"""Detection from end to end: a detector around the backbone is trained and scored, one result record comes out.

`prepare_detection` finds everything that can be wrong before the first image is decoded; `evaluate_detection` trains,
scores and writes.
"""

import dataclasses
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sslbench import protocols
from sslbench.arithmetic import arithmetic
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.load import load_backbone
from sslbench.data.checks.readable import narrow
from sslbench.data.decode.handlers import Reading
from sslbench.data.maps.sizes import unknown_orientation
from sslbench.data.objects.types import ObjectSource
from sslbench.data.splits.objects import TrainTestObjects, split_objects
from sslbench.data.wording import counted
from sslbench.detection.evaluate import draw, per_keypoint, score, truth_of
from sslbench.detection.log import DetectionLogLine, Watch
from sslbench.detection.readable import check_readable
from sslbench.detection.recipe import DetectionRecipe
from sslbench.detection.saved import check_weights
from sslbench.detection.train import TrainingRun, check_processes
from sslbench.distributed import this_process
from sslbench.distributed.collectives import from_first, process_group, rank, world_size
from sslbench.errors import DataError, UsageError
from sslbench.evaluation.detection.backends import run_backend, try_backend
from sslbench.evaluation.detection.compare import DetectorResult, compared, without_comparisons
from sslbench.evaluation.detection.objects import finished_result, keep_objects
from sslbench.evaluation.detection.record import METRICS, blank_result, describe, export, finished, run_exported
from sslbench.evaluation.detection.request import PreparedDetection
from sslbench.evaluation.floors import UNTRAINED_SEED
from sslbench.evaluation.preparation import on_data, with_preprocessing
from sslbench.evaluation.references import compare_references
from sslbench.evaluation.request import Request, RunSettings
from sslbench.evaluation.trainings import together
from sslbench.metrics.detection.files import read_results, write_results
from sslbench.protocols import state_shortened
from sslbench.results import RequestedParts, Result, records
from sslbench.runtime.progress import Progress
from sslbench.runtime.workers import default_workers
from sslbench.train.loop import NotFiniteError

__all__ = [
    "PreparedDetection",
    "evaluate_detection",
    "prepare_detection",
]

log = logging.getLogger("sslbench")

_UNUSED = (
    *("layers", "image_column", "label_column", "limit", "preprocessing", "test_classes", "groups", "value_columns"),
    "noise",
)
"""Fields of a request without an effect on detection; the command line refuses their flags."""
_SAVE_EVERY = 500  # upper bound, in iterations
_NO_BASELINE = "--baseline random trains the same detector from the untrained backbone"


def prepare_detection(request: Request, run: RunSettings, *, backbone: Backbone | None = None) -> PreparedDetection:
    """Open weights and data, and build the detector once, to find what does not fit.

    Args:
        request: detection to run, its only task.
        run: settings of the run.
        backbone: takes the place of request.weights when it is in memory already.

    Raises:
        SslbenchError: anything that is wrong; no image has been decoded then.
    """
    (task,) = request.tasks
    recipe = task.settings.recipe
    plain = Request(request.weights, request.data, request.tasks)
    if unused := [name for name in _UNUSED if getattr(request, name) != getattr(plain, name)]:
        raise UsageError(f"detection has no option '{unused[0]}'")
    protocols.find("detection").check_settings(task.settings)
    run.extract_settings()  # refuses numbers out of range
    check_processes(recipe, this_process().world)
    backbone, _ = with_preprocessing(backbone or _load(request, run), _decoding(run))
    if backbone.report is not None:
        log.info(f"{request.weights}: {backbone.name}, {backbone.report.line()}")
    if backbone.preprocessing.channels != 3:
        raise UsageError(
            f"detectors take RGB images, and {backbone.name} takes {backbone.preprocessing.channels} channels",
            "Detection supports three channels only: give --backbone NAME without in_chans.",
        )
    check_weights(backbone, recipe, request.weights)
    task = dataclasses.replace(task, settings=try_backend(task.settings, run, backbone))
    baselines = tuple(_baselines(request, recipe, backbone))
    data = split_objects(request.data, request.test_data, seed=run.seed, test_fraction=run.test_fraction)
    log.info(f"{len(data.train)} train and {len(data.test)} test images, {data.how}")
    state_shortened("detection", recipe, task.origins)
    parts = {id(part): part for part in (data.train, data.test)}.values()
    turned = (unknown_orientation(part.name, part.images, sized=part.sized) for part in parts)
    data = dataclasses.replace(data, notes=(*data.notes, *(note for note in turned if note is not None)))
    for note in dict.fromkeys((*data.train.notes, *data.test.notes, *data.notes)):
        log.info(note)
    _check_data(recipe, data)
    counts = {"train": len(data.train), "test": len(data.test)}
    benchmark = on_data(task.benchmark, counts, len(data.train.classes), "images", any_classes=True)
    data = _read_by(data, backbone, run)
    return PreparedDetection(request, run, backbone, data, dataclasses.replace(task, benchmark=benchmark), baselines)


def _decoding(run: RunSettings) -> dict[str, Any]:
    """Return the settings of decoding that differ from the default."""
    if "fast" in run.decoder:
        raise UsageError(
            "--decoder fast decodes at a reduced size, and boxes refer to the full image",
            "Leave it out; detection decodes JPEGs by libjpeg-turbo anyway.",
        )
    return run.decoding()


def _read_by(data: TrainTestObjects, backbone: Backbone, run: RunSettings) -> TrainTestObjects:
    used = backbone.preprocessing
    reading = Reading(used.decoder, used.max_pixels, run.start_method)
    train, test = (dataclasses.replace(part, reading=reading) for part in (data.train, data.test))
    return dataclasses.replace(data, train=train, test=test)


def _load(request: Request, run: RunSettings) -> Backbone:
    if request.weights.partition(":")[0] == "pixels":
        raise UsageError("a detector needs a network, and 'pixels' is none", "Give weights, or random with --backbone.")
    return load_backbone(
        request.weights,
        backbone=request.backbone,
        format=request.format,
        allow_partial=request.allow_partial,
        trust_pickle=request.trust_pickle,
        stem=request.stem,
        seed=run.seed,
        as_stored=True,
    )


def _baselines(request: Request, recipe: DetectionRecipe, backbone: Backbone) -> Iterator[tuple[str, Backbone]]:
    """Yield the baselines, of the same architecture: only the weights may differ.

    Raises:
        UsageError: one is of another architecture.
    """
    for weights in dict.fromkeys(request.baselines):
        if weights == request.weights:
            continue
        if weights == "random":
            other = load_backbone("random", backbone=backbone.name, seed=UNTRAINED_SEED)
            yield weights, dataclasses.replace(other, preprocessing=backbone.preprocessing)
            continue
        other = load_backbone(weights, backbone=request.backbone, trust_pickle=request.trust_pickle, as_stored=True)
        if other.name != backbone.name:
            raise UsageError(
                f"--baseline {weights} is a {other.name}, and --weights {request.weights} a {backbone.name}",
                "Compare weights of one architecture, so that the difference is due to the weights.",
            )
        check_weights(other, recipe, weights)
        used = backbone.preprocessing
        read = dataclasses.replace(other.preprocessing, decoder=used.decoder, max_pixels=used.max_pixels)
        yield weights, dataclasses.replace(other, preprocessing=read)


def _check_data(recipe: DetectionRecipe, data: TrainTestObjects) -> None:
    _refuse_narrow(data.train, recipe.max_size_train, "max_size_train")
    _refuse_narrow(data.test, recipe.max_size_test, "max_size_test")
    if recipe.metric == "lvis" and data.test.federated is None:
        raise DataError(
            f"metric=lvis, but {data.test.name} does not say which classes were looked for in each image",
            "Give LVIS's manifest, whose images have neg_category_ids, or metric=coco.",
        )
    if recipe.keypoints:
        _check_keypoints(recipe, data)
    if recipe.masks:
        for part in (data.train, data.test):
            if not part.has_masks:
                raise DataError(
                    f"masks=true, but {part.name} has objects without a mask",
                    "Set masks=false, or give data with segmentations.",
                )


def _check_keypoints(recipe: DetectionRecipe, data: TrainTestObjects) -> None:
    """Refuse data whose keypoints cannot be trained on, mirrored or scored."""
    parts = data.train, data.test
    for part in parts:
        if part.skeleton is None:
            raise DataError(
                f"keypoints=true, but {part.name} has no keypoints",
                "Give a COCO or kwcoco manifest whose categories list the names of their 'keypoints' (of COCO "
                "person_keypoints_train2017.json), or keypoints=false.",
            )
        if not part.labelled_keypoints.any():
            raise DataError(
                f"keypoints=true, but no object of {part.name} has a labelled keypoint (visibility 1 or 2)",
                "Give data with labelled keypoints, or keypoints=false.",
            )
    names = [() if part.skeleton is None else part.skeleton.names for part in parts]
    if names[0] != names[1]:
        listed = ", ".join(sorted(set(names[0]) ^ set(names[1]))) or "their order differs"
        raise DataError(f"{data.train.name} and {data.test.name} have different keypoints: {listed}")
    if recipe.flip and data.train.skeleton is not None:
        data.train.skeleton.mirrored(recipe.mirrored_keypoints)
    if data.test.skeleton is not None:
        used = data.test.skeleton.with_sigmas(recipe.oks_sigma)
        if recipe.oks_sigma and used.sigmas != (recipe.oks_sigma,) * len(used):
            log.info(f"oks_sigma={recipe.oks_sigma:g} is not used: the sigmas of the keypoints are known")


def _refuse_narrow(part: ObjectSource, longest: int, key: str) -> None:
    """Refuse images of which nothing is left when the longer side is reduced to `longest`, the setting `key`."""
    found = narrow(part, longest)
    if len(found):
        height, width = part.sizes[found[0]]
        raise DataError(
            f"{part.name}: {counted(len(found), 'image')} too narrow: with {key}={longest} nothing is left of "
            f"{part.images.path(int(found[0]))}, {width} x {height} pixels",
            f"Remove such images, or give a larger {key}.",
        )


def evaluate_detection(
    prepared: PreparedDetection,
    *,
    out: Path,
    command: str,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> list[Result]:
    """Train, score and write `out/detection/WEIGHTS-ID.json`.

    Beside it lie the trained detector, predictions, a picture, the log of the training, and checkpoints while it runs.
    Every process calls this. When it is called again after an interruption, it continues from the last checkpoint;
    finished trainings are read from their records, and a finished call is not repeated.

    Args:
        prepared: from `prepare_detection`.
        out: folder for the records.
        command: command line of the user.
        progress: of what is not training.
        watch: told of the lines of the training's log; without one they go to the log of the program.

    Returns:
        Results of the baselines, then the one in question; empty on processes but the first. A baseline whose
        training diverges is missing, and the record says so (in several processes the run ends, after the weights).

    Raises:
        SslbenchError: an image cannot be read, the loss is not finite, or the folder cannot be written.
        StoppedError: SIGTERM, SIGUSR1 or SIGINT came during training; everything is saved.
    """
    if prepared.run.only_seed is not None:
        (prepared,) = prepared.each_training()
    request, says = prepared.request, watch or _log_line
    with process_group(device := prepared.run.torch_device()), arithmetic(device):
        requested = _requested(prepared, command)
        if (results := from_first(lambda: _finished_run(prepared, requested, out, command))) is not None:
            return results if rank() == 0 else []
        parts = prepared.data.train, prepared.data.test
        check_readable(parts, workers=_workers(prepared.run), progress=progress)
        # The weights come first: what happens to a baseline does not cost them their result.
        own = _measure(prepared, prepared.backbone, request.weights, out, command, progress, says)
        baselines, diverged = list[DetectorResult](), dict[str, str]()
        for weights, other in prepared.baselines:
            try:
                baselines.append(_measure(prepared, other, weights, out, command, progress, says))
            except NotFiniteError as error:
                if world_size() > 1:  # the others may still be training
                    raise
                log.warning(error.message)
                diverged[weights] = f"its training diverged: {error.message}"
        if rank() != 0:
            return []
        result = compared(own, baselines, prepared.data, prepared.recipe, prepared.run)
        result = _with_missing(result, diverged, asked="random" in request.baselines)
        result = dataclasses.replace(result, asked=requested)
        return [*(other.result for other in baselines), records.write_without_scores(result, out)]


def _requested(prepared: PreparedDetection, command: str) -> RequestedParts:
    """Return what the record is asked to hold: floors, and the detectors that it is compared with."""
    against = tuple(blank_result(prepared, other, weights, command).id for weights, other in prepared.baselines)
    return RequestedParts(overlaps=False, floors=prepared.run.floors, baseline=bool(against), against=against)


def _finished_run(
    prepared: PreparedDetection, requested: RequestedParts, out: Path, command: str
) -> list[Result] | None:
    """Return the results of a finished run of the same command; None if anything is missing."""
    own = finished_result(blank_result(prepared, prepared.backbone, prepared.request.weights, command), out)
    if own is None or own.asked != requested:
        return None
    others = []
    for weights, backbone in prepared.baselines:
        other = finished_result(blank_result(prepared, backbone, weights, command), out)
        missing = own.missing_floors.get("untrained", "") if weights == "random" else "".join(own.notes)
        if other is None and "diverged" not in missing:
            return None
        others += [other] if other is not None else []
    log.info(f"finished before, nothing is computed: {own.file}")
    return [*others, own]


def _with_missing(result: Result, diverged: Mapping[str, str], *, asked: bool) -> Result:
    """Return the record with the baselines that are missing: the untrained one as a floor, others as notes."""
    missing = {} if asked or result.weights.untrained else {"untrained": _NO_BASELINE}
    if "random" in diverged:
        missing["untrained"] = diverged["random"]
    notes = [f"no comparison with {name}: {reason}" for name, reason in diverged.items() if name != "random"]
    return dataclasses.replace(result, missing_floors=missing, notes=(*result.notes, *notes))


def _log_line(line: DetectionLogLine) -> None:
    log.info(f"iteration {line.iteration} of {line.iterations}: {line.summary()}")


def _measure(
    prepared: PreparedDetection,
    backbone: Backbone,
    weights: str,
    out: Path,
    command: str,
    progress: Progress | None,
    watch: Watch,
) -> DetectorResult:
    """Train and score a detector, once for each seed, and write the records; the last one is that of their mean."""
    each = []
    for number, one in enumerate(prepared.each_training()):
        if prepared.run.seeds > 1:
            log.info(f"training {number + 1} of {prepared.run.seeds} (seed {one.run.seed})")
        each.append(_train_and_score(one, backbone, weights, out, command, progress, watch))
    if len(each) == 1 or rank() != 0:
        return each[0]
    result = together([one.result for one in each], seeds=len(each))
    result = dataclasses.replace(
        result,
        command=command,
        asked=None,
        references=compare_references(prepared.task.benchmark, result.weights, result.metrics),
    )
    found = {name: detections for one in each for name, detections in one.found.items()}
    return DetectorResult(records.write_without_scores(result, out), found)


def _train_and_score(
    prepared: PreparedDetection,
    backbone: Backbone,
    weights: str,
    out: Path,
    command: str,
    progress: Progress | None,
    watch: Watch,
) -> DetectorResult:
    """Train and score one detector and write its record, without comparisons; a finished one is read."""
    recipe, run, data = prepared.recipe, prepared.run, prepared.data
    blank = blank_result(prepared, backbone, weights, command)
    stem = records.path_of(blank, out).with_suffix("")
    if from_first(lambda: finished_result(blank, out) is not None):
        before = finished_result(blank, out) if rank() == 0 else None
        log.info(f"finished before: {stem}.json")
        return DetectorResult(blank, {}) if before is None else _read(before, data.test)
    about = describe(prepared, backbone, weights, blank.id)
    training = TrainingRun(
        run.seed,
        run.torch_device(),
        _workers(run),
        stem.with_name(f"{stem.name}.checkpoints"),
        save_every=max(min(_SAVE_EVERY, recipe.iterations // 5), 1),
        metrics=stem.with_name(stem.name + METRICS),
        about=about.text(),
    )
    log.info(
        f"{blank.weights.name}: a detector, trained for {recipe.iterations} iterations of {recipe.batch_size} images"
    )
    ran = run_exported(prepared, training, stem, progress)
    if ran is None:
        try:
            ran = run_backend(prepared, backbone, training, stem=stem, watch=watch, progress=progress)
        except NotFiniteError as error:
            raise NotFiniteError(f"{blank.weights.name}: {error.message}", error.remedy) from error
        if ran.detector is not None:
            export(prepared, ran.detector, about, training, stem, command)
    if rank() != 0:
        return DetectorResult(blank, {})
    began = time.perf_counter()
    truth = truth_of(data.test, recipe)
    scores, of_masks = score(truth, ran.found, recipe, seed=run.seed)
    write_results(
        stem.with_name(stem.name + records.PREDICTIONS), ran.found, data.test.numbers, data.test.class_numbers
    )
    draw(data.test, truth, ran.found, stem.with_name(f"{stem.name}.png"))
    seconds = time.perf_counter() - began
    of_keypoints = per_keypoint(truth, ran.found)
    result = finished(blank, ran, scores, of_masks, of_keypoints, n=len(data.test), seconds=seconds)
    result = dataclasses.replace(
        result,
        references=compare_references(prepared.task.benchmark, result.weights, result.metrics),
        objects_file=keep_objects(data.test, truth, stem.parent),
    )
    return DetectorResult(records.write_without_scores(result, out), {f"seed {run.seed}": ran.found})


def _read(result: Result, test: ObjectSource) -> DetectorResult:
    """Return a finished training with its detections, without comparisons."""
    found = {
        name: read_results(path, test.numbers, test.class_numbers, test.sizes)
        for name, path in records.predictions_paths(result).items()
    }
    return DetectorResult(without_comparisons(result), found)


def _workers(run: RunSettings) -> int:
    if run.workers != "auto":
        return run.workers
    if run.torch_device().type == "cpu":
        return 0
    return max(default_workers(), 1)
