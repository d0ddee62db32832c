"""Evaluation of protocols on images, from data to record."""

import dataclasses
import itertools
import logging
import shutil
from pathlib import Path

import numpy as np

from sslbench.backbones.backbone import Backbone
from sslbench.data.decode.handlers import Reading
from sslbench.data.groups import source_groups
from sslbench.data.loading import loader
from sslbench.data.source import Source
from sslbench.distributed.collectives import gather_objects, process_group, rank
from sslbench.errors import DataError
from sslbench.evaluation import floors
from sslbench.evaluation.beside import write_network
from sslbench.evaluation.costs import encoding_costs, measured
from sslbench.evaluation.groups import with_details
from sslbench.evaluation.preparation import Prepared, as_scored, extract_settings, one_part
from sslbench.evaluation.record import (
    Encoded,
    Subject,
    asked,
    compare_references,
    describe,
    finish,
    measurement,
    recorded,
    weights_at,
)
from sslbench.evaluation.request import Task
from sslbench.evaluation.settings import RunSettings
from sslbench.evaluation.trainings import scores_together, together
from sslbench.features.array import Features
from sslbench.features.extract import check_shared
from sslbench.features.store import left_out_warning, note_skipped
from sslbench.identity import record_id
from sslbench.protocols import ImageInputs
from sslbench.results import ExcludedImage, Result, Stage, records
from sslbench.runtime.device import choose_device
from sslbench.runtime.progress import Progress
from sslbench.targets.target import SeveralImages

log = logging.getLogger("sslbench")


_NO_BASELINE = "baseline=true also trains on the untrained backbone, in twice the time"


def evaluate_on_images(
    prepared: Prepared, *, out: Path, command: str, progress: Progress | None = None
) -> list[Result]:
    """Run protocols on images and write one record per row of each; every process of a run calls this."""
    if not prepared.image_tasks:
        return []
    check_shared(prepared.backbone)
    images: dict[tuple[object, ...], _ImageEvaluation] = {}  # of each part that tasks use, kind of labels and noise
    results = []
    with process_group(choose_device(prepared.run.device)):
        for task, share in itertools.product(prepared.image_tasks, (0.0, *prepared.request.noise)):
            used, noisy = as_scored(prepared, task, share)
            key = task.part, type(used.data.train.target), share
            # Once for all tasks on a part, since every image is read to find those that cannot be.
            if key not in images:
                used = dataclasses.replace(used, data=one_part(used.data, task.part))
                images[key] = _ImageEvaluation(used, share, out, command, progress)
            results += images[key].measure(noisy)
    return results


def as_hashed(backbone: Backbone, task: Task) -> Backbone:
    """Return a backbone with what the key of a record holds, for a protocol, which can read nothing else."""
    read = task.kind.as_read(backbone.preprocessing, task.settings)
    return dataclasses.replace(backbone, preprocessing=read, report=None, format=None, gem_power=None, usual_input=None)


class _ImageEvaluation:
    """The data of a request with a share of wrong train labels, readable images only."""

    def __init__(self, prepared: Prepared, noise: float, out: Path, command: str, progress: Progress | None) -> None:
        self.prepared, self.noise, self.out, self.command, self.progress = prepared, noise, out, command, progress
        self.engine = extract_settings(prepared.run)
        data = prepared.data
        parts = (data.test,) if data.train is data.test else (data.train, data.test)
        found = [self._readable(part) for part in parts]
        self.train, self.test = found[0][0], found[-1][0]
        self.unreadable = tuple(image for _, left_out in found for image in left_out)
        if rank() == 0:
            note_skipped(out, {"train": data.train, "test": data.test}, list(map(dataclasses.asdict, self.unreadable)))
        self._pictures: dict[str, bytes] = {}
        self._names: dict[tuple[int, int], tuple[str, ...]] = {}  # checked once for each task and backbone
        self._untrained: dict[int, Backbone | None] = {}
        self._known: dict[int, Subject] = {}  # keyed by the backbone's id(); both live as long as this object

    def untrained(self, seed: int = floors.UNTRAINED_SEEDS[0]) -> Backbone | None:
        """Return the same architecture untrained by a seed; None where it cannot be built."""
        if seed not in self._untrained:
            self._untrained[seed] = floors.untrained_like(self.prepared.backbone, seed)
        return self._untrained[seed]

    def measure(self, task: Task) -> list[Result]:
        """Return the rows of one protocol, with their floors beside them; with `only_seed` those of one training."""
        if self.prepared.run.only_seed is not None:
            return self._only_training(task)
        baseline, missing = self._baseline(task)
        results = []
        for row, (result, scores) in self._rows(task, self.prepared.backbone).items():
            result = with_details(result, scores, self._described(self.prepared.backbone, row).groups)
            found = {"untrained": baseline[row]} if row in baseline else {}
            results.append(finish(result, scores, found, missing, self.out))
            records.write_picture(results[-1], self._pictures.get(row, b""))
        if rank() == 0:
            # Only now, with the record written: until then the checkpoints continue an interrupted training.
            shutil.rmtree(self._folder(task, self.prepared.backbone), ignore_errors=True)
        return results

    def _rows(self, task: Task, backbone: Backbone) -> dict[str, tuple[Result, records.Scores]]:
        """Return the record of each row, not yet written; {} on processes other than the first."""
        seeds = self.prepared.run.each_seed()
        if len(seeds) == 1 or not task.kind.trains:
            return self._run(task, backbone, seeds[0])
        each = [self._training(task, backbone, run, number) for number, run in enumerate(seeds)]
        if rank() != 0:
            return {}
        if incomplete := {row for own in each for row in own if any(row not in other for other in each)}:
            log.warning(f"{', '.join(sorted(incomplete))}: some of the {len(seeds)} trainings diverged; left out")
        rows = {}
        for row in (row for row in each[0] if row not in incomplete):
            result = together([own[row][0] for own in each], seeds=len(seeds))
            references = compare_references(task.benchmark, result.weights, result.metrics)
            scores = scores_together([own[row][1] for own in each])
            rows[row] = dataclasses.replace(result, command=self.command, references=references), scores
        return rows

    def _only_training(self, task: Task) -> list[Result]:
        """Return the records of one of several trainings; floors stand beside the mean, and are only trained here."""
        (run,) = self.prepared.run.each_seed()
        number = run.seed - self.prepared.run.seed
        rows = self._training(task, self.prepared.backbone, run, number)
        of_file = self.prepared.request.weights != "random" and not self.prepared.backbone.kind.pixels
        if run.floors and run.baseline and of_file and (untrained := self.untrained()) is not None:
            self._training(task, untrained, run, number)
        return [result for result, _ in rows.values()]

    def _training(
        self, task: Task, backbone: Backbone, run: RunSettings, number: int
    ) -> dict[str, tuple[Result, records.Scores]]:
        """Return the record of each row of one of several trainings, from its file if it is finished."""
        found = {}
        for row in self._row_names(task, backbone):
            subject = self._described(backbone, row, run)
            key = record_id(measurement(subject, task))
            if rank() == 0 and (stored := floors.cached(key, subject.data, self.out)) is not None:
                found[row] = stored
        # The first process decides for all, see `_baseline`.
        of = f"training {number + 1} of {self.prepared.run.seeds} (seed {run.seed}) of {task.protocol}"
        if gather_objects(len(found) == len(self._row_names(task, backbone)))[0]:
            log.info(f"{of}, {backbone.name}: finished before")
            return found
        log.info(f"{of}, {backbone.name}")
        rows = self._run(task, backbone, run)
        for row, (result, scores) in rows.items():
            subject = self._described(backbone, row, run)
            result = with_details(result, scores, subject.groups)
            # The floors stand beside the mean.
            requested = dataclasses.replace(asked(subject, task), overlaps=False, floors=False, baseline=False)
            written = floors.write(dataclasses.replace(result, asked=requested), scores, self.out)
            if backbone is self.prepared.backbone:
                records.write_picture(written, self._pictures.pop(row, b""))
            rows[row] = written, scores
        if rank() == 0:
            shutil.rmtree(self._folder(task, backbone, run), ignore_errors=True)
        return rows

    def _run(self, task: Task, backbone: Backbone, run: RunSettings) -> dict[str, tuple[Result, records.Scores]]:
        """Run a protocol with one seed; return the record of each row, {} on processes other than the first."""
        train, test = _without_columns(self.train), _without_columns(self.test)
        with measured(choose_device(run.device)) as meter:
            inputs = ImageInputs(
                task.settings,
                run.seed,
                self.train.as_hashed(),
                self.test.as_hashed(),
                backbone=as_hashed(backbone, task),
                layers=self.prepared.layers,
                engine=self.engine,
                folder=self._folder(task, backbone, run),
                progress=self.progress,
            )
            outcomes = task.kind.outcomes(inputs)
        rows = {}
        for row, outcome in outcomes.items():
            subject = self._described(backbone, row, run)
            result, scores = recorded(
                subject, task, outcome, train, test, seconds=meter.stage.seconds, stage=meter.stage
            )
            if backbone is self.prepared.backbone:
                self._pictures[row] = outcome.picture
                result = write_network(result, scores, backbone, self.out)
            rows[row] = result, scores
        return rows

    def _baseline(self, task: Task) -> tuple[dict[str, list[tuple[Result, records.Scores]]], dict[str, str]]:
        """Return each row on the same architecture untrained, and the reasons for floors that are missing.

        Heads from the cache where they are there; trained only when that was asked for, and then on one network.
        """
        backbone, run = self.prepared.backbone, self.prepared.run
        if not run.floors or backbone.kind.pixels:
            return {}, {}
        trains = task.kind.trains
        views = f"{task.protocol} trains on views of images; its floor is the untrained backbone"
        missing = {"pixels": views} if trains else {}
        if self.prepared.request.weights == "random":
            return {}, missing
        each = []
        for seed in floors.UNTRAINED_SEEDS[: 1 if trains else None]:
            untrained = self.untrained(seed)
            if untrained is None:
                return {}, missing | {"untrained": floors.in_memory(backbone)}
            stored = self._rows_of_untrained(task, untrained)
            if stored is None:
                return {}, missing | {"untrained": _NO_BASELINE}
            each.append(stored)
        complete = [row for row in each[0] if all(row in other for other in each)]
        return {row: [own[row] for own in each] for row in complete}, missing

    def _rows_of_untrained(self, task: Task, untrained: Backbone) -> dict[str, tuple[Result, records.Scores]] | None:
        """Return the rows of an untrained network, from the cache or computed; None if that was not asked for."""
        rows = self._row_names(task, untrained)
        data = self._described(untrained, rows[0]).data
        found = {
            row: floors.cached(record_id(measurement(self._described(untrained, row), task)), data) for row in rows
        }
        # The first process decides for all: others may have a different cache, or see the entry that it just wrote.
        complete = gather_objects(all(each is not None for each in found.values()))[0]
        stored = {row: each for row, each in found.items() if each is not None}
        if not complete and task.kind.trains and not self.prepared.run.baseline:
            return None
        if not complete:
            stored = self._rows(task, untrained)
        if rank() == 0:
            kept = not untrained.process_key and not complete
            for row, floor in stored.items():
                subject = self._described(untrained, row)
                variant = dataclasses.replace(asked(subject, task), overlaps=False, baseline=False)
                stored[row] = floors.stand(floor, subject.groups, variant, self.out, kept=kept)
            shutil.rmtree(self._folder(task, untrained), ignore_errors=True)
        return stored

    def _row_names(self, task: Task, backbone: Backbone) -> tuple[str, ...]:
        key = id(task), id(backbone)
        if key not in self._names:
            data, seed = self.prepared.data.train, self.prepared.run.seed
            self._names[key] = task.row_names(backbone, self.prepared.layers, data, seed)
        return self._names[key]

    def _folder(self, task: Task, backbone: Backbone, run: RunSettings | None = None) -> Path:
        """Return the folder of checkpoints, named after the whole measurement, so that no other training finds them."""
        rows = "+".join(self._row_names(task, backbone))
        subject = self._described(backbone, rows, run)
        key = record_id(measurement(subject, task))
        return self.out / records.slug(task.protocol) / f"{records.slug(subject.weights.name)}-{key}.checkpoints"

    def _described(self, backbone: Backbone, row: str, run: RunSettings | None = None) -> Subject:
        """Return the description of a backbone and the data for the record; the data are hashed once.

        `run`: settings of one of several trainings; None: of all.
        """
        if id(backbone) not in self._known:
            work = backbone is self.prepared.backbone
            costs = encoding_costs(backbone, decoded=0, seconds=0.0, stage=Stage(seconds=0.0), work=work)
            # Images are encoded while the heads are trained, so encoding has no stage of its own.
            costs = dataclasses.replace(costs, stages={})
            used = Encoded(
                {"": _without_columns(self.train)}, {"": _without_columns(self.test)}, self.unreadable, 0.0, 0, costs
            )
            subject = describe(self.prepared, backbone, "", used, self.command)
            data = dataclasses.replace(subject.data, label_noise=self.noise)
            self._known[id(backbone)] = dataclasses.replace(subject, data=data, timings={})
        known = self._known[id(backbone)]
        if run is not None:
            # All trainings share the division of the data that the first seed makes.
            own = run.seed == self.prepared.run.seed
            data = dataclasses.replace(known.data, split_seed=None if own else self.prepared.run.seed)
            known = dataclasses.replace(known, run=run, data=data)
        weights = weights_at(row, backbone, dataclasses.replace(known.weights, code=backbone.identity))
        return dataclasses.replace(known, layer=row, weights=weights)

    def _readable(self, source: Source) -> tuple[Source, tuple[ExcludedImage, ...]]:
        """Return the readable images. With on_error=stop the protocol itself raises for the others."""
        if self.engine.on_error == "stop":
            return source, ()
        title = f"looking for unreadable images in {source.name}"
        progress = self.progress
        report = None if progress is None else lambda done, total: progress(title, done, total)
        every = source.every_image()
        rows, preprocessing = np.arange(len(every)), self.prepared.backbone.preprocessing
        reading = Reading(start_method=self.engine.start_method)
        workers = self.engine.workers
        found = loader.survey(every, rows, workers, report, preprocessing=preprocessing, reading=reading).unreadable
        if not found:
            return source, ()
        log.warning(left_out_warning(every, [path for _, path, _ in found]), extra={"once": True})
        several, unreadable = source.target, {index for index, _, _ in found}
        images = several.rows if isinstance(several, SeveralImages) else lambda row: (row,)
        readable = source.select([row for row in range(len(source)) if unreadable.isdisjoint(images(row))])
        if not len(readable):
            raise DataError(f"{source.name}: no sample is left whose images can all be read")
        return readable, tuple(ExcludedImage(id=every.ids[i], path=p, reason=r) for i, p, r in found)


def _without_columns(source: Source) -> Features:
    """Return labels and ids as features without columns."""
    x = np.zeros((len(source), 0), dtype=np.float32)
    return Features(x, source.target, source.ids, groups=source_groups(source))
