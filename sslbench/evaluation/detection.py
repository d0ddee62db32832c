"""Detection from end to end: a detector around the backbone is trained and scored, one result record comes out.

`prepare_detection` finds everything that can be wrong before the first image is decoded; `evaluate_detection` trains,
scores and writes.
"""

import dataclasses
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sslbench import detection, records
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.load import load_backbone
from sslbench.benchmarks import Benchmark
from sslbench.config import resolve
from sslbench.data import loader, transforms
from sslbench.data.objects import ObjectSource, TrainTestObjects, split_objects
from sslbench.detection.evaluate import detect, draw, score
from sslbench.detection.models.build import build_detector
from sslbench.detection.recipe import DetectionRecipe, check, resolved
from sslbench.detection.train import TrainingRun, check_processes, make_optimizer, train
from sslbench.distributed import this_process
from sslbench.distributed.collectives import process_group, rank
from sslbench.errors import DataError, UsageError
from sslbench.evaluation.floors import UNTRAINED_SEED
from sslbench.evaluation.record import hardware, weights_used
from sslbench.evaluation.request import RunSettings
from sslbench.evaluation.run import Progress
from sslbench.metrics.detection_files import write_results
from sslbench.results import (
    BenchmarkUsed,
    DataPart,
    DataUsed,
    Metric,
    ProtocolUsed,
    Result,
    measurement_id,
    percent,
    plain,
)

log = logging.getLogger("sslbench")

_HEADLINE = "AP"
_SAVE_EVERY = 500  # iterations, at most
_NO_BASELINE = "The untrained backbone was not trained as a detector for comparison (--baseline does that)."


@dataclasses.dataclass(frozen=True)
class DetectionRequest:
    """What the user wants; every field means what the flag of the same name means.

    Attributes:
        recipe: of the detector and its training.
        origins: of each setting of it, for the user.
        benchmark: where the recipe comes from, or None.
        baseline: train the same detector from the untrained backbone too.
    """

    weights: str
    data: str
    recipe: DetectionRecipe
    origins: dict[str, str]
    benchmark: Benchmark | None = None
    test_data: str | None = None
    backbone: str | None = None
    format: str | None = None
    allow_partial: bool = False
    trust_pickle: bool = False
    stem: str | None = None
    baseline: bool = False


@dataclasses.dataclass(frozen=True)
class PreparedDetection:
    """Everything opened and checked, nothing decoded yet."""

    request: DetectionRequest
    run: RunSettings
    backbone: Backbone
    data: TrainTestObjects


def make_recipe(
    overrides: Mapping[str, Any], benchmark: Benchmark | None, *, limit_iterations: int | None = None
) -> tuple[DetectionRecipe, dict[str, str], Benchmark | None]:
    """The recipe: defaults, then the benchmark's, then the user's; with the origin of every setting.

    Args:
        overrides: settings by the user.
        benchmark: of detection; it comes back as modified if the user changed anything.
        limit_iterations: training ends after so many; its rates are those of the whole.

    Raises:
        UsageError: an unknown setting or a wrong value.
    """
    layers: list[tuple[str, Mapping[str, Any]]] = []
    if benchmark is not None:
        layers.append((f"benchmark {benchmark.name}", benchmark.settings))
    layers.append(("command line", overrides))
    recipe, origins = resolve(DetectionRecipe, layers)
    check(recipe)
    full = resolved(recipe)
    filled = [f.name for f in dataclasses.fields(full) if getattr(full, f.name) != getattr(recipe, f.name)]
    origins |= dict.fromkeys(filled, f"default of {recipe.architecture}")
    iterations = min(limit_iterations or full.iterations, full.iterations)
    shortened = iterations < full.iterations
    if shortened:
        full = dataclasses.replace(full, iterations=iterations)
        origins["iterations"] = "flag --limit-iters"
    if benchmark is not None and (overrides or shortened):
        benchmark = dataclasses.replace(benchmark, modified=True)
    return full, origins, benchmark


def prepare_detection(request: DetectionRequest, run: RunSettings) -> PreparedDetection:
    """Opens weights and data, and builds the detector once, to find what does not go together.

    Raises:
        SslbenchError: anything that is wrong; no image has been decoded then.
    """
    run.torch_device()
    check_processes(request.recipe, this_process().world)
    if request.weights.partition(":")[0] == "pixels":
        raise UsageError("a detector needs a network, and 'pixels' is none", "Give weights, or random with --backbone.")
    backbone = load_backbone(
        request.weights,
        backbone=request.backbone,
        format=request.format,
        allow_partial=request.allow_partial,
        trust_pickle=request.trust_pickle,
        stem=request.stem,
        seed=run.seed,
    )
    if backbone.report is not None:
        log.info(f"{request.weights}: {backbone.name}, {backbone.report.line()}")
    transforms.check_channels(backbone.preprocessing)
    make_optimizer(build_detector(backbone, request.recipe, 1), request.recipe)
    data = split_objects(request.data, request.test_data, seed=run.seed, test_fraction=run.test_fraction)
    log.info(f"{len(data.train)} train and {len(data.test)} test images, {data.how}")
    for note in dict.fromkeys((*data.train.notes, *data.test.notes, *data.notes)):
        log.info(note)
    _check_data(request, data)
    return PreparedDetection(request, run, backbone, data)


def _check_data(request: DetectionRequest, data: TrainTestObjects) -> None:
    if request.recipe.masks:
        for part in (data.train, data.test):
            if not part.has_masks:
                raise DataError(
                    f"masks=true, and {part.name} has objects without a mask",
                    "Give masks=false, or data with segmentations.",
                )
    benchmark = request.benchmark
    if benchmark is None:
        return
    found = {"train": len(data.train), "test": len(data.test)}
    for split, n in benchmark.samples.items():
        if found[split] != n:
            log.warning(f"{benchmark.name} has {n} {split} images, this data has {found[split]}")
    if benchmark.classes and len(data.train.classes) != benchmark.classes:
        raise DataError(
            f"{benchmark.name} has {benchmark.classes} classes, this data has {len(data.train.classes)}",
            "For other data copy the benchmark and change its 'classes'.",
        )


def evaluate_detection(
    prepared: PreparedDetection, *, out: Path, command: str, progress: Progress | None = None
) -> list[Result]:
    """Trains, scores and writes: `out/detection/WEIGHTS-ID.json`, and beside it predictions, a picture, checkpoints.

    Every process calls this. When it is called again after an interruption, it continues from the last checkpoint.

    Returns:
        The result, after that of the untrained backbone if it was asked for; empty on processes but the first.

    Raises:
        SslbenchError: an image cannot be read, the loss is not finite, or the folder cannot be written.
    """
    with process_group(prepared.run.torch_device()):
        floor = []
        if prepared.request.baseline and prepared.request.weights != "random":
            backbone = load_backbone("random", backbone=prepared.backbone.name, seed=UNTRAINED_SEED)
            backbone = dataclasses.replace(backbone, preprocessing=prepared.backbone.preprocessing)
            floor = _measure(prepared, backbone, "random", out, command, progress, None)
        beside = {name: metric.value for name, metric in floor[0].metrics.items()} if floor else None
        return floor + _measure(prepared, prepared.backbone, prepared.request.weights, out, command, progress, beside)


def _measure(
    prepared: PreparedDetection,
    backbone: Backbone,
    given: str,
    out: Path,
    command: str,
    progress: Progress | None,
    untrained: dict[str, float | None] | None,
) -> list[Result]:
    recipe, run, data = prepared.request.recipe, prepared.run, prepared.data
    device, workers = run.torch_device(), _workers(run)
    result = _blank(prepared, backbone, given, command)
    stem = records.path_of(result, out).with_suffix("")
    checkpoints = stem.with_name(f"{stem.name}.checkpoints")
    detector = build_detector(backbone, recipe, len(data.train.classes), device=device, seed=run.seed)
    training = TrainingRun(run.seed, device, workers, checkpoints, max(min(_SAVE_EVERY, recipe.iterations // 5), 1))
    trained = train(detector, data.train, training, progress)
    began = time.perf_counter()
    found = detect(detector, data.test, workers=workers, progress=progress)
    seconds = time.perf_counter() - began
    if rank() != 0:
        return []
    truth = data.test.truth(masks=recipe.masks)
    scores, of_masks = score(truth, found, recipe, seed=run.seed)
    write_results(stem.with_name(stem.name + records.PREDICTIONS), found, data.test.numbers, data.test.class_numbers)
    draw(data.test, truth, found, stem.with_name(f"{stem.name}.png"))
    notes = list(result.notes)
    if trained.resumed_from is not None:
        notes.append(f"Training was continued after iteration {trained.resumed_from}; its time is that of the rest.")
    if untrained is None and given != "random":
        notes.append(_NO_BASELINE)
    result = dataclasses.replace(
        result,
        metrics={
            name: Metric(value=percent(value), low=percent(low), high=percent(high), n=len(data.test))
            for name, (value, low, high) in (scores.metrics | of_masks).items()
        },
        per_class={name: percent(value) for name, value in scores.per_class.items()},
        variants={"per class, AP50": {name: percent(value) for name, value in scores.per_class_50.items()}},
        floors={} if untrained is None else {"untrained": untrained},
        timings={
            "train": round(trained.seconds, 3),
            "train iterations": float(trained.iterations),
            "detect": round(seconds, 3),
            "score": round(time.perf_counter() - began - seconds, 3),
        },
        notes=tuple(notes),
    )
    path = records.write_without_scores(result, out)
    return [dataclasses.replace(result, file=path)]


def _workers(run: RunSettings) -> int:
    if run.workers != "auto":
        return run.workers
    cores = loader.default_workers()
    if run.torch_device().type == "cpu":
        return 0
    return max(cores // this_process().world, 1)


def _blank(prepared: PreparedDetection, backbone: Backbone, given: str, command: str) -> Result:
    """The record without what is measured; its id is known before training, which the checkpoints need."""
    request, run, data = prepared.request, prepared.run, prepared.data
    weights = weights_used(backbone, given)
    preprocessing = _statistics(backbone, request.recipe)
    protocol = ProtocolUsed(name="detection", version=detection.VERSION, settings=plain(request.recipe))
    used = DataUsed(train=_part(data.train), test=_part(data.test), how=data.how, labels="none")
    benchmark, layer = request.benchmark, request.recipe.architecture
    named: dict[str, Any] = {"weights": weights, "layer": layer, "preprocessing": preprocessing, "precision": "fp32"}
    named |= {"protocol": protocol, "data": used, "seed": run.seed}
    return Result(
        **named,
        id=measurement_id(**named),
        created=records.now(),
        command=command,
        benchmark=None
        if benchmark is None
        else BenchmarkUsed(
            name=benchmark.name, version=benchmark.version, sha256=benchmark.sha256, modified=benchmark.modified
        ),
        headline=_HEADLINE,
        metrics={},
        versions=records.versions(),
        hardware=hardware(run),
        notes=tuple(dict.fromkeys((*data.train.notes, *data.test.notes, *data.notes))),
    )


def _statistics(backbone: Backbone, recipe: DetectionRecipe) -> dict[str, Any]:
    """What a detector takes of the backbone's preprocessing; the sizes stand in its recipe."""
    if recipe.pixel_mean:
        return {"mean": recipe.pixel_mean, "std": recipe.pixel_std, "origin": "recipe"}
    given = backbone.preprocessing
    return {"mean": given.mean, "std": given.std, "origin": given.origin}


def _part(source: ObjectSource) -> DataPart:
    n = len(source)
    return DataPart(name=source.name, fingerprint=source.fingerprint(), n=n, n_used=n, classes=source.classes)
