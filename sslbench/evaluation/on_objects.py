"""Evaluation of protocols on objects: a detector around the backbone is trained and scored, once for each seed.

Beside the record lie the trained detector, its detections, a picture, the log of the training, and checkpoints while it
runs. A finished training is read from its record, so that the same command continues after an interruption.
"""

import dataclasses
import functools
import logging
from pathlib import Path

from sslbench.backbones.backbone import Backbone
from sslbench.data.decode.handlers import Reading
from sslbench.data.objects import ObjectSource
from sslbench.data.splits import Parts
from sslbench.detection import VERSION
from sslbench.detection.backends import export, run_backend, run_exported, try_backend
from sslbench.detection.checks import check_readable
from sslbench.detection.evaluate import draw, truth_of
from sslbench.detection.recipe import what_is_trained
from sslbench.detection.saved import DetectorDescription
from sslbench.detection.train import DetectionLogLine, TrainingRun, Watch
from sslbench.distributed.collectives import from_first, process_group, rank, world_size
from sslbench.evaluation.detections import (
    DetectorResult,
    compared,
    data_part,
    detections_of,
    few_objects,
    finished,
    mean_of_trainings,
    scored,
    without_comparisons,
)
from sslbench.evaluation.preparation import Prepared
from sslbench.evaluation.record import (
    Subject,
    compare_references,
    measurement,
    request_for,
    unscored,
    weights_used,
    written_request,
)
from sslbench.evaluation.request import Task
from sslbench.evaluation.settings import RunSettings
from sslbench.evaluation.trainings import ONE_TRAINING
from sslbench.results import DataUsed, RequestedParts, Result, records
from sslbench.runtime.device import choose_device
from sslbench.runtime.progress import Progress
from sslbench.runtime.resources import default_workers
from sslbench.train.loop import NotFiniteError
from sslbench.train.observers.always import requested

log = logging.getLogger("sslbench")

_SAVE_EVERY = 500  # upper bound, in iterations
_NO_BASELINE = "--baseline random trains the same detector from the untrained backbone"


def evaluate_on_objects(
    prepared: Prepared, *, out: Path, command: str, progress: Progress | None = None
) -> list[Result]:
    """Run protocols on objects and write their records; every process of a run calls this."""
    results = []
    for task in prepared.object_tasks:
        with process_group(choose_device(prepared.run.device)):
            results += _ObjectEvaluation(prepared, task, out, command, progress).results()
    return results


class _ObjectEvaluation:
    """Trainings of a detector from the weights and from the baselines."""

    def __init__(self, prepared: Prepared, task: Task, out: Path, command: str, progress: Progress | None) -> None:
        self.prepared, self.run, self.out, self.command, self.progress = prepared, prepared.run, out, command, progress
        can_be_written = not (prepared.in_memory or prepared.backbone.kind.in_memory)
        self.request = dataclasses.replace(prepared.request, tasks=(task,)) if can_be_written else None
        settings = try_backend(task.settings, prepared.backbone, choose_device(self.run.device))
        self.task, self.settings, self.recipe = dataclasses.replace(task, settings=settings), settings, settings.recipe
        used = prepared.backbone.preprocessing
        reading = Reading(used.decoder, used.max_pixels, self.run.start_method)
        parts = (prepared.data.train, prepared.data.test)
        self.train, self.test = (dataclasses.replace(ObjectSource.of(part), reading=reading) for part in parts)
        # On a processor the detector is slower than decoding, and needs the cores itself.
        usual = 0 if choose_device(self.run.device).type == "cpu" else max(default_workers(), 1)
        self.workers = usual if self.run.workers == "auto" else self.run.workers
        self.watch: Watch = getattr(progress, "line", None) or _log_line

    def results(self) -> list[Result]:
        """Return the results; those of a finished run of the same command are read."""
        if self.run.only_seed is not None:
            (self.run,) = self.run.each_seed()
        against = tuple(self._blank(backbone, weights, self.run).id for weights, backbone in self.prepared.baselines)
        requested = RequestedParts(overlaps=False, floors=self.run.floors, baseline=bool(against), against=against)
        if (found := from_first(lambda: self._finished_run(requested))) is not None:
            return found if rank() == 0 else []
        # A training would stop at an unreadable image only when it comes to it, perhaps after hours.
        check_readable((self.train, self.test), workers=self.workers, progress=self.progress)
        # The weights come first: what happens to a baseline does not cost them their result.
        own = self._trainings(self.prepared.backbone, self.prepared.request.weights)
        baselines, diverged = list[DetectorResult](), dict[str, str]()
        for weights, backbone in self.prepared.baselines:
            try:
                baselines.append(self._trainings(backbone, weights))
            except NotFiniteError as error:
                if world_size() > 1:  # the others may still be training
                    raise
                log.warning(error.message)
                diverged[weights] = f"its training diverged: {error.message}"
        if rank() != 0:
            return []
        result = compared(own, baselines, self.train, self.test, self.recipe, self.run)
        asked = "random" in self.prepared.request.baselines
        missing = {} if asked or result.weights.untrained else {"untrained": _NO_BASELINE}
        if "random" in diverged:
            missing["untrained"] = diverged["random"]
        notes = [f"no comparison with {name}: {reason}" for name, reason in diverged.items() if name != "random"]
        result = dataclasses.replace(result, missing_floors=missing, notes=(*result.notes, *notes))
        result = records.write_without_scores(dataclasses.replace(result, asked=requested), self.out)
        return [*(other.result for other in baselines), result]

    def _finished_run(self, requested: RequestedParts) -> list[Result] | None:
        """Return the results of a finished run of the same command; None if anything is missing."""
        own = finished(self._blank(self.prepared.backbone, self.prepared.request.weights, self.run), self.out)
        if own is None or own.asked != requested:
            return None
        others = []
        for weights, backbone in self.prepared.baselines:
            other = finished(self._blank(backbone, weights, self.run), self.out)
            missing = own.missing_floors.get("untrained", "") if weights == "random" else "".join(own.notes)
            if other is None and "diverged" not in missing:
                return None
            others += [other] if other is not None else []
        log.info(f"finished before, nothing is computed: {own.file}")
        return [*others, own]

    def _trainings(self, backbone: Backbone, weights: str) -> DetectorResult:
        """Train and score a detector, once for each seed, and write the records; the last one is that of their mean."""
        each = []
        for number, run in enumerate(self.run.each_seed()):
            if self.run.seeds > 1:
                log.info(f"training {number + 1} of {self.run.seeds} (seed {run.seed})")
            each.append(self._training(backbone, weights, run))
        if len(each) == 1 or rank() != 0:
            return each[0]
        mean = mean_of_trainings(each, self.command)
        references = compare_references(self.task.benchmark, mean.result.weights, mean.result.metrics)
        result = dataclasses.replace(mean.result, asked=None, references=references)
        return DetectorResult(records.write_without_scores(result, self.out), mean.found)

    def _training(self, backbone: Backbone, weights: str, run: RunSettings) -> DetectorResult:
        """Train and score one detector and write its record, without comparisons; a finished one is read."""
        blank, recipe, progress = self._blank(backbone, weights, run), self.recipe, self.progress
        stem = records.path_of(blank, self.out).with_suffix("")
        # Only the first process looks: others could find a record that it writes meanwhile, and leave the training.
        if from_first(lambda: finished(blank, self.out) is not None):
            log.info(f"finished before: {stem}.json")
            before = finished(blank, self.out) if rank() == 0 else None
            if before is None:
                return DetectorResult(blank, {})
            return DetectorResult(without_comparisons(before), detections_of(before, self.test))
        about = self._about(backbone, weights, blank.id)
        logs = stem.with_name(f"{stem.name}.logs")
        training = TrainingRun(
            run.seed,
            choose_device(run.device),
            self.workers,
            stem.with_name(f"{stem.name}.checkpoints"),
            # A short training has a few checkpoints, too.
            save_every=max(min(_SAVE_EVERY, recipe.iterations // 5), 1),
            metrics=stem.with_name(f"{stem.name}.metrics.jsonl"),
            about=about.text(),
            watch=self.watch,
            observers=requested(self.settings, logs, dataclasses.asdict(recipe)) if rank() == 0 else (),
            logs=logs,
        )
        name = blank.weights.name
        log.info(f"{name}: a detector, trained for {recipe.iterations} iterations of {recipe.batch_size} images")
        ran = run_exported(self.settings, self.test, training, stem, progress)
        if ran is None:
            parts = Parts(self.train, self.test, self.prepared.data.how)
            try:
                ran = run_backend(self.settings, backbone, parts, training, stem=stem, progress=progress)
            except NotFiniteError as error:
                raise NotFiniteError(f"{name}: {error.message}", error.remedy) from error
            if ran.detector is not None:
                export(self.settings, ran.detector, about, training, stem, self.command)
        if rank() != 0:
            return DetectorResult(blank, {})
        trained, notes = ran.trained, [*blank.notes, *ran.notes]
        if trained.resumed_from is not None and trained.iterations:
            notes.append(f"Training was resumed after iteration {trained.resumed_from}; the time covers the rest only.")
        timings = {
            "train": round(trained.seconds, 3),
            "train iterations": float(trained.iterations),
            "detect": round(ran.seconds, 3),
        }
        truth = truth_of(self.test, recipe)
        result = scored(dataclasses.replace(blank, timings=timings), ran.found, self.test, truth, recipe, self.out)
        draw(self.test, truth, ran.found, stem.with_name(f"{stem.name}.png"))
        result = dataclasses.replace(
            result,
            variants=result.variants | ran.variants,
            versions=result.versions | ran.versions,
            notes=tuple(notes),
            references=compare_references(self.task.benchmark, result.weights, result.metrics),
        )
        return DetectorResult(records.write_without_scores(result, self.out), {f"seed {run.seed}": ran.found})

    @functools.cached_property
    def _data(self) -> DataUsed:
        """Both parts as records hold them; the images are hashed once."""
        train, test = data_part(self.train), data_part(self.test)
        return DataUsed(train=train, test=test, how=self.prepared.data.how, labels="none")

    def _blank(self, backbone: Backbone, weights: str, run: RunSettings) -> Result:
        """Return the record without results; its id is known before training, for the checkpoints."""
        prepared, recipe, used = self.prepared, self.recipe, backbone.preprocessing
        values = {key: value for key, value in used.values().items() if key in ("decoder", "max_pixels")}
        if recipe.pixel_mean:
            values |= {"mean": recipe.pixel_mean, "std": recipe.pixel_std, "origin": "recipe"}
        else:
            values |= {"mean": used.mean, "std": used.std, "origin": used.origin}
        # Further seeds train other detectors on the same division of the data.
        split = None if run.seed == prepared.run.seed else prepared.run.seed
        subject = Subject(
            weights_used(backbone, weights, prepared.request.name if backbone is prepared.backbone else None),
            recipe.architecture,
            values,
            "fp32",
            "float32",
            dataclasses.replace(self._data, split_seed=split),
            run,
            self.command,
            {},
            request=request_for(self.request, weights, backbone) if self.request is not None else None,
        )
        frozen = f"The backbone was frozen (freeze_at=5); what was trained: {what_is_trained(recipe)}."
        notes = (
            *prepared.notes,
            *([frozen] if recipe.freeze_at >= 5 else []),
            *few_objects(self.test),
            *([ONE_TRAINING] if run.seeds == 1 else []),
        )
        return unscored(
            measurement(subject, self.task),
            run,
            self.command,
            notes,
            headline="AP",
            request=written_request(subject, self.task),
        )

    def _about(self, backbone: Backbone, weights: str, record: str) -> DetectorDescription:
        """Return the provenance of a detector, for its file and its checkpoints."""
        skeleton, benchmark = self.train.target.skeleton, self.task.benchmark
        return DetectorDescription(
            recipe=self.recipe,
            classes=self.train.target.classes,
            backbone=backbone.name,
            preprocessing=backbone.preprocessing,
            weights=weights,
            data=self.train.name,
            benchmark="" if benchmark is None else benchmark.name,
            measurement=record,
            keypoints=() if skeleton is None or not self.recipe.keypoints else skeleton.names,
            version=VERSION,
        )


def _log_line(line: DetectionLogLine) -> None:
    log.info(f"iteration {line.iteration} of {line.iterations}: {line.summary()}")
