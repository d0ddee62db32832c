"""Opening weights and data and checking them, before the first image is decoded."""

import dataclasses
import logging
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from sslbench import names, protocols
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.int8 import calibrated
from sslbench.backbones.layers import Layer, names_head, resolve_layers
from sslbench.backbones.load import load_backbone
from sslbench.backbones.sizes import built_for
from sslbench.config import convert
from sslbench.data.checks import samples
from sslbench.data.checks.duplicates import Finding
from sslbench.data.checks.samples import enlargement
from sslbench.data.clips import sampling_of, views_of
from sslbench.data.decode.handlers import identified
from sslbench.data.maps.types import unknown_orientation
from sslbench.data.noise import check_shares, with_label_noise
from sslbench.data.source import Source
from sslbench.data.splits import TrainTest, label_problems, limit, match_classes, name_numbered, unite_classes
from sslbench.distributed import this_process
from sslbench.errors import DataError, UsageError
from sslbench.evaluation.file_classifier import labelled_by, load_file_classifier
from sslbench.evaluation.floors import UNTRAINED_SEEDS
from sslbench.evaluation.groups import check_groups
from sslbench.evaluation.opening import InMemoryData, open_train_test
from sslbench.evaluation.request import Request, Task
from sslbench.evaluation.settings import RunSettings
from sslbench.evaluation.trainings import check_seeds
from sslbench.features.array import ExtractSettings, Features
from sslbench.features.external import FeaturePair
from sslbench.features.extract import check_clips
from sslbench.library.benchmarks import Benchmark
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import FileClassifier, ImageSet, Part
from sslbench.results import records
from sslbench.runtime.device import choose_device, refuse_imitated
from sslbench.runtime.resources import resolve_workers
from sslbench.targets.classes import Classes
from sslbench.targets.imbalanced import Imbalanced
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.none import Unlabelled
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import Target
from sslbench.targets.times import Times

log = logging.getLogger("sslbench")


def has_own_classes(tasks: Sequence[Task]) -> bool:
    """Return True for protocols that learn no classes, so that test may have others than train."""
    return all(task.kind.own_classes for task in tasks)


def without_useless_labels(data: TrainTest) -> TrainTest:
    """Return data for protocols that need no labels: labels that do not match between the parts are removed."""
    if not label_problems(data.train, data.test):
        return data
    parts = {name: part for name in ("train", "test", "whole") if (part := getattr(data, name)) is not None}
    unlabelled = {name: dataclasses.replace(part, target=Unlabelled(len(part))) for name, part in parts.items()}
    return dataclasses.replace(data, **unlabelled)


def shared_part(tasks: Sequence[Task]) -> Part | None:
    """Return the only part of the data that all tasks use; None: they use both, or different ones."""
    parts = {task.part for task in tasks}
    return parts.pop() if len(parts) == 1 else None


def one_part(data: TrainTest, part: Part | None) -> TrainTest:
    """Return the data with one part in the place of both; data without parts of its own is taken whole."""
    if part is None:
        return data
    if data.whole is not None:
        return dataclasses.replace(data, train=data.whole, test=data.whole, how=f"all of {data.whole.name}, not split")
    source = data.train if part == "train" else data.test
    return dataclasses.replace(data, train=source, test=source, how=f"{source.name} alone")


def one_part_of_features(
    train: Features, test: Features, whole: Features | None, task: Task
) -> tuple[Features, Features]:
    """Return features with one part in the place of both, see `one_part`."""
    part = task.part
    if part is None:
        return train, test
    features = whole if whole is not None else train if part == "train" else test
    return features, features


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Evaluation with everything resolved and checked, nothing decoded yet; `--dry-run` prints it.

    Attributes:
        loaded: the backbone as it was loaded, for the next request with the same weights.
        backbone: the same with the preprocessing that this request asks for.
        preprocessing_origins: origin of each value of it that has an effect.
        notes: remarks on the data that belong into the records.
        in_memory: data are objects of Python.
        baselines: weights of the request's baselines, and the backbone with them.
        sets: for each task of the request the further sets of images that it scores, by name.
        classifier: the one in the weights file, whose classes the data then have; None: protocols train their own.
    """

    request: Request
    run: RunSettings
    loaded: Backbone
    backbone: Backbone
    layers: tuple[Layer, ...]
    data: TrainTest
    preprocessing_origins: dict[str, str]
    findings: tuple[Finding, ...]
    sets: tuple[Mapping[str, ImageSet], ...] = ()
    classifier: FileClassifier | None = None
    notes: tuple[str, ...] = ()
    baselines: tuple[tuple[str, Backbone], ...] = ()
    in_memory: bool = False

    @property
    def object_tasks(self) -> tuple[Task, ...]:
        """Tasks that get the images with their objects."""
        return tuple(task for task in self.request.tasks if task.kind.on_objects)

    @property
    def image_tasks(self) -> tuple[Task, ...]:
        """Tasks that get the images."""
        return tuple(task for task in self.request.tasks if task.kind.needs_images and not task.kind.on_objects)

    @property
    def feature_tasks(self) -> tuple[Task, ...]:
        """Tasks that get features, of one extraction."""
        return tuple(task for task in self.request.tasks if not task.kind.needs_images)

    def sets_of(self, task: Task) -> Mapping[str, ImageSet]:
        """Return the further sets of a task of the request; {} for most protocols."""
        return self.sets[self.request.tasks.index(task)]


def prepare(
    request: Request, run: RunSettings, *, backbone: Backbone | None = None, in_memory: InMemoryData | None = None
) -> Prepared:
    """Open the weights and the data and check them against each other and against the protocols' needs."""
    # Refuses impossible settings before weights or data are read.
    extract_settings(run)
    records.working_folder()  # as it is before the run, for the record
    _check_on_the_fly(request, run)
    if run.on_the_fly:  # a search for copies would encode all images once more
        run = dataclasses.replace(run, overlaps=False)
    loaded = load(request, run) if backbone is None else backbone
    backbone, origins = for_request(loaded, request, run)
    request = request.for_weights(loaded)
    layers = request.view.layers(backbone, request.layers)
    data, findings = open_checked(request, run, in_memory)
    classifier = load_file_classifier(request, run, data)
    if classifier is not None:
        layers, data = resolve_layers(backbone, (classifier.layer,)), labelled_by(data, classifier)
    if data.whole is not None and all(task.part for task in request.tasks):
        log.info(f"{len(data.whole)} samples, not split")
    elif data.train is data.test:
        log.info(f"{len(data.test)} test samples, {data.how}")
    else:
        tell_samples(data.train.target, data.test.target, data.how)
    view = request.view
    log.info(f"images: {request.as_read(backbone.preprocessing).text(sizes=view.sized)}")
    if view.sized and (warning := enlargement(data.test.images, backbone.preprocessing)):
        log.warning(warning)
    tell(findings)
    for note in data.notes:
        log.info(note)
    notes = _notes_of_record(request, data)
    _check_tasks(request, run, backbone, layers, data)
    backbone = calibrated(backbone, data.train, run.precision, choose_device(run.device))
    tasks = tuple(dataclasses.replace(task, benchmark=_on_these(task, data)) for task in request.tasks)
    request = dataclasses.replace(request, tasks=tasks)
    if classifier is not None:
        data = one_part(data, tasks[0].part)
    sets = tuple(open_sets(task, data, backbone.preprocessing, request.limit, run.seed) for task in request.tasks)
    further = sets, classifier, notes, tuple(_baselines(request, backbone)), bool(in_memory)
    return Prepared(request, run, loaded, backbone, layers, data, origins, findings, *further)


def open_checked(
    request: Request, run: RunSettings, in_memory: InMemoryData | None = None
) -> tuple[TrainTest, tuple[Finding, ...]]:
    """Open the data as the protocols take them, with matched classes; no weights are read and no image decoded."""
    data = open_train_test(request, run, in_memory)
    if request.test_classes == "numbers":
        data = dataclasses.replace(data, test=name_numbered(data.train, data.test))
    check_groups(data.test, request.groups)
    labels = any(task.kind.needs_labels for task in request.tasks)
    _check_whole(request, data)
    data = data if labels else without_useless_labels(data)
    own_classes = isinstance(data.test.target, Classes) and has_own_classes(request.tasks)
    if own_classes and not all(task.part for task in request.tasks):
        train, test = unite_classes(data.train, data.test)
        data = dataclasses.replace(data, train=train, test=test)
    findings = tuple(
        samples.check(data.train, data.test, labels=labels and not own_classes, copies=data.train is not data.test)
    )
    samples.raise_on_errors(findings)
    if not own_classes and (labels or data.train.target.labelled):
        train, test = match_classes(data.train, data.test, subset=request.test_classes == "subset")
        data = dataclasses.replace(data, train=train, test=test)
    return data, findings


def tell(findings: Sequence[Finding]) -> None:
    """Log what was found in the data; the line of the samples has the limit."""
    for finding in findings:
        level = logging.WARNING if finding.level == "warning" else logging.INFO
        log.log(logging.DEBUG if finding.message.startswith("limited to ") else level, finding.message)


def _notes_of_record(request: Request, data: TrainTest) -> tuple[str, ...]:
    """Return the notes on the split and on the parts that are used."""
    # Images that EXIF turns while nothing tells the pixels of their annotations are a warning, too.
    used = {task.part for task in request.tasks}
    parts = {"train": data.train, "test": data.test}
    chosen = parts.values() if None in used else [parts[part] for part in used if part is not None]
    notes = list(data.notes)
    # Train and test may be the same object.
    for part in {id(part): part for part in chosen}.values():
        notes += part.notes
        images = part.every_image().images
        turned = None if part.sized is None else unknown_orientation(part.name, images, sized=part.sized)
        if turned is not None:
            log.warning(turned)
            notes.append(turned)
    return tuple(dict.fromkeys(notes))


def _check_on_the_fly(request: Request, run: RunSettings) -> None:
    """Refuse features without a store where they would be read more than once."""
    if not run.on_the_fly:
        return
    if not request.view.streams:
        raise UsageError(
            f"--on-the-fly is for grids of features (segmentation-knn), not for {request.tasks[0].protocol}"
        )
    if (world := this_process().world) > 1:
        raise UsageError(f"--on-the-fly works in one process, and {world} were started", "Start one process.")
    if run.on_error == "skip":
        raise UsageError("--on-the-fly stops at unreadable images; it does not go with --on-error skip")


def _check_tasks(
    request: Request, run: RunSettings, backbone: Backbone, layers: Sequence[Layer], data: TrainTest
) -> None:
    """Refuse protocols whose settings do not go together with the data, the layers or each other."""
    for source in (data.train, data.test):
        check_clips(backbone, source)
    if views_of(data.train.images).views > 1 and views_of(data.test.images).views == 1:
        raise UsageError(
            f"average= of {data.train.name} has no effect: probabilities are averaged in test",
            "Leave it out, or give it with --test-data.",
        )
    check_shares(request.noise, data.train.target)
    check_seeds(run, request.tasks)
    for task in request.tasks:
        protocols.state_shortened(task.protocol, task.settings, task.origins)
        if request.noise and (not _trains_on_labels(task.protocol) or task.part):
            able = [name for name in names.list_names("protocol") if _trains_on_labels(name)]
            problem = f"--noise: {task.protocol} does not train on labels of samples"
            raise UsageError(problem, f"Those that do: {', '.join(able)}.")
        check_label_kind(task, type(data.train.target))
        if sampling_of(data.test.images) and not task.kind.videos:
            kinds = {name: protocols.find(name).kind for name in names.list_names("protocol")}
            able = [name for name, each in kinds.items() if each.videos and isinstance(data.train.target, each.takes)]
            raise UsageError(
                f"{task.protocol} takes images, and {data.test.name} has videos",
                f"Those for videos: {', '.join(able)}.",
            )
        if views_of(data.test.images).views > 1 and not (task.kind.averages_views and data.test.target.of_classes):
            able = [name for name in names.list_names("protocol") if protocols.find(name).kind.averages_views]
            raise UsageError(
                f"average= of {data.test.name}: {task.protocol} averages no probabilities of {data.test.target.title}",
                f"Those that do, of classes: {', '.join(able)}. Without average= features are averaged.",
            )
        if not task.kind.on_features:
            extract_settings(run).float_precision()
        task.kind.check(task.settings, one_part(data, task.part).train.target)
        if request.test_classes == "subset" and not task.kind.class_subsets:
            raise refused_subset(task.protocol)
        task.kind.refuse_parts(task.settings, data.train, data.test)
        task.row_names(backbone, layers, data.train, run.seed)


def refused_subset(protocol: str) -> UsageError:
    """Return the error for a protocol whose metrics cannot be restricted to some classes afterwards."""
    able = [name for name in names.list_names("protocol") if protocols.find(name).kind.class_subsets]
    return UsageError(
        f"{protocol} cannot be scored on test data with a subset of train's classes",
        f"Protocols that support it: {', '.join(able)}.",
    )


def open_sets(
    task: Task, data: TrainTest, preprocessing: Preprocessing, most: int | None, seed: int
) -> Mapping[str, ImageSet]:
    """Return the further sets of images that a protocol scores, by name; {} for most protocols.

    `most`: largest number of images of another set; None: all.
    """

    def limited(source: Source) -> Source:
        return source if most is None else limit(source, most, seed)

    return task.kind.open_sets(task.settings, data.train, data.test, preprocessing, limited)


def _check_whole(request: Request, data: TrainTest) -> None:
    """Refuse to cut a retrieval set, since answers to its queries would be lost, and to take it for classes."""
    if not isinstance(data.test.target, Classes) or data.test.target.queries is None:
        return
    if other := [task.protocol for task in request.tasks if not has_own_classes([task])]:
        raise DataError(
            f"{data.test.name} is a retrieval set: its images have queries, not classes for {other[0]}",
            "Run: sslbench eval retrieval",
        )
    if not data.seeded:
        return
    if data.whole is None:
        raise UsageError(
            f"{data.test.name} is a retrieval set: --limit would cut answers to its queries", "Leave it out."
        )
    if not all(task.part for task in request.tasks):
        raise UsageError(
            f"{data.whole.name} is a retrieval set, and cannot be split into images to learn from and to search",
            f"Give other images to learn from: --data OTHER --test-data {request.data}",
        )


Parts = TypeVar("Parts", TrainTest, FeaturePair)


def by_sizes(data: Parts, task: Task) -> Parts:
    """Return the data of a task with labels `Imbalanced`, where classes of train differ that much in size.

    Benchmarks and presets are of published numbers, whose metric stays, and some protocols have metrics of their own.
    """
    labels, published = data.train.target, task.benchmark is not None or task.preset is not None
    if published or task.kind.own_metric or type(labels) is not Classes or not labels.is_imbalanced():
        return data
    return as_imbalanced(data)


def as_imbalanced(data: Parts) -> Parts:
    """Return the data with labels `Imbalanced` in the place of `Classes`."""
    parts: dict[str, Any] = {"train": data.train, "test": data.test, "whole": data.whole}
    made: dict[int, Any] = {id(None): None}
    for part in parts.values():
        if id(part) not in made:  # train and test may be one object, and stay one
            made[id(part)] = dataclasses.replace(part, target=Imbalanced.like(Classes.of(part.target)))
    return dataclasses.replace(data, **{name: made[id(part)] for name, part in parts.items()})


def as_scored(prepared: Prepared, task: Task, share: float) -> tuple[Prepared, Task]:
    """Return the evaluation as a task scores it, see `by_sizes`, with a share of wrong labels in train.

    With wrong labels the task is not the benchmark's.
    """
    prepared = dataclasses.replace(prepared, data=by_sizes(prepared.data, task))
    if not share:
        return prepared, task
    data = prepared.data
    train = with_label_noise(data.train, share, prepared.run.seed)
    wrong = "labels are wrong" if isinstance(train.target, Classes) else "samples have the labels of others"
    how = f"{data.how}; {100 * share:g} % of the train {wrong}"
    if task.benchmark is not None:
        task = dataclasses.replace(task, benchmark=dataclasses.replace(task.benchmark, modified=True))
    return dataclasses.replace(prepared, data=dataclasses.replace(data, train=train, how=how)), task


def _trains_on_labels(name: str) -> bool:
    found = protocols.find(name)
    return found.kind.trains_on_labels(found.settings())


def check_label_kind(task: Task, kind: type[Target]) -> None:
    """Refuse labels that are numbers, or times, where the protocol predicts classes."""
    base = next((each for each in (Numbers, Times) if issubclass(kind, each)), None)
    if base is None or base in task.kind.takes:
        return
    kinds = {name: protocols.find(name).kind for name in names.list_names("protocol")}
    able = [name for name, each in kinds.items() if each.needs_labels and base in each.takes]
    words, several = ("are labelled with numbers", "numbers") if base is Numbers else (f"have {kind.title}", "times")
    raise DataError(
        f"{task.protocol} predicts classes, but these samples {words}",
        f"Protocols for {several}: {', '.join(able)}. For classes, name their column with --label-col.",
    )


def load(request: Request, run: RunSettings) -> Backbone:
    """Load the backbone with its weights and log a summary."""
    backbone = load_backbone(
        request.weights,
        backbone=request.backbone,
        format=request.format,
        allow_partial=request.allow_partial,
        trust_pickle=request.trust_pickle,
        stem=request.stem,
        seed=run.seed,
        as_stored=request.as_stored,
        heads=any(names_head(layer) for layer in request.layers),
    )
    if backbone.report is not None:
        log.info(f"{request.weights}: {backbone.name}, {backbone.report.line()}")
    return backbone


def _baselines(request: Request, backbone: Backbone) -> Iterator[tuple[str, Backbone]]:
    """Yield the baselines, of the same architecture and for the same images: only the weights may differ."""
    used = backbone.preprocessing
    for weights in dict.fromkeys(request.baselines):
        if weights == request.weights:
            continue
        if weights == "random":
            other = load_backbone("random", backbone=backbone.name, seed=UNTRAINED_SEEDS[0])
            yield weights, dataclasses.replace(other, preprocessing=used)
            continue
        other = load_backbone(
            weights, backbone=request.backbone, trust_pickle=request.trust_pickle, as_stored=request.as_stored
        )
        if other.name != backbone.name:
            raise UsageError(
                f"--baseline {weights} is a {other.name}, and --weights {request.weights} a {backbone.name}",
                "Compare weights of one architecture, so that the difference is due to the weights.",
            )
        for task in request.tasks:
            task.kind.refuse_weights(task.settings, other, weights)
        read = dataclasses.replace(other.preprocessing, decoder=used.decoder, max_pixels=used.max_pixels)
        yield weights, dataclasses.replace(other, preprocessing=read)


def tell_samples(train: Target, test: Target, how: str) -> None:
    """Log the numbers of samples and their split; with --verbose those of every class."""
    log.info(f"{len(train)} train and {len(test)} test samples, {how}{_class_counts(train)}")
    if isinstance(train, Classes | MultiLabel) and isinstance(test, Classes | MultiLabel):
        counts = [dict(zip(part.classes, part.counts().tolist(), strict=True)) for part in (train, test)]
        rows = [(name, *(each.get(name, 0) for each in counts)) for name in {**counts[0], **counts[1]}]
        width = max((len(name) for name, *_ in rows), default=0)
        lines = [f"{name:{width}}  {n:>9,}  {m:>9,}" for name, n, m in rows]
        log.debug("\n".join(["samples of each class:", f"{'class':{width}}  {'train':>9}  {'test':>9}", *lines]))


def _class_counts(train: Target) -> str:
    """Return the number of classes and the sizes of the smallest and the largest; nothing for numbers and maps."""
    if isinstance(train, MultiLabel):
        return f"; {len(train.classes):,} labels, of which a sample may have several"
    if not isinstance(train, Classes) or not len(train.classes):
        return ""
    counts = np.bincount(train.values, minlength=len(train.classes))
    few, many = int(counts.min()), int(counts.max())
    each = f"{few:,}" if few == many else f"{few:,} to {many:,}"
    return f"; {len(counts):,} classes of {each} train samples"


def extract_settings(run: RunSettings) -> ExtractSettings:
    """Return the settings of the extraction of a run; refuse what is not possible on its device."""
    run.check()
    device = choose_device(run.device)
    refuse_imitated(run.precision, device)
    workers = resolve_workers(run.workers, device)
    return ExtractSettings(
        device, run.precision, run.feature_dtype, run.batch_size, workers, run.on_error, run.start_method
    )


def for_request(backbone: Backbone, request: Request, run: RunSettings) -> tuple[Backbone, dict[str, str]]:
    """Return the backbone with the preprocessing of a request, and the origin of each value of it.

    A vision transformer of one image size is built for the size of these images, see `sizes.built_for`.
    """
    for task in request.tasks:
        task.kind.refuse_weights(task.settings, backbone, request.weights)
    view, values = request.view, {**request.preprocessing, **run.decoding()}
    protocol = request.tasks[0].protocol if request.tasks else ""
    backbone, origins = with_preprocessing(backbone, view.asked(backbone.preprocessing, values, protocol))
    effective = view.effective(backbone.preprocessing, origins, trained_side=request.reads_trained_side)
    return built_for(backbone) if view.sized else backbone, effective


def with_preprocessing(backbone: Backbone, values: Mapping[str, Any]) -> tuple[Backbone, dict[str, str]]:
    """Return the backbone with some values of its preprocessing replaced, and where each value comes from."""
    fields = {f.name: f for f in dataclasses.fields(Preprocessing) if f.name not in ("origin", "trained_side")}
    origins = dict.fromkeys(fields, backbone.preprocessing.origin)
    if not values:
        return backbone, origins
    hints = typing.get_type_hints(Preprocessing)
    for key in values:
        if key not in fields:
            raise UsageError(f"preprocessing has no parameter '{key}'", names.did_you_mean(key, fields))
    changed = {key: convert(value, hints[key], f"preprocessing: {key}") for key, value in values.items()}
    if "decoder" in changed:
        changed["decoder"] = identified(changed["decoder"])
    origins.update(dict.fromkeys(changed, "asked for"))
    differing = [name for name, value in changed.items() if value != getattr(backbone.preprocessing, name)]
    if differing:  # a record brings all its values, the usual ones among them
        changed["origin"] = f"{backbone.preprocessing.origin}, changed: {', '.join(differing)}"
    used = dataclasses.replace(backbone.preprocessing, **changed)
    if {len(used.mean), len(used.std)} != {backbone.preprocessing.channels}:
        raise UsageError(
            f"preprocessing: mean {used.mean} and std {used.std} do not fit {backbone.name}, which takes "
            f"{backbone.preprocessing.channels} channels",
            "Give one mean and one positive std per channel.",
        )
    used.check()
    if "resize" in changed and "crop" not in changed:
        used.refuse_unfilled_crop()
    return dataclasses.replace(backbone, preprocessing=used), origins


def _on_these(task: Task, data: TrainTest) -> Benchmark | None:
    """Return a task's benchmark as it is run on the data, see `on_data`."""
    data = one_part(data, task.part) if data.whole is not None else data
    counts = {"train": len(data.train), "test": len(data.test)}
    return on_data(task.benchmark, counts, len(data.train.target.classes), any_classes=task.kind.on_objects)


def on_data(
    benchmark: Benchmark | None, counts: Mapping[str, int], classes: int, *, any_classes: bool = False
) -> Benchmark | None:
    """Return the benchmark as it is run on data: modified, with a warning, where the data are not as many as its own.

    `benchmark`: named by the user, or None.
    """
    if benchmark is None:
        return None
    others = {}
    if benchmark.classes and classes != benchmark.classes:
        if not any_classes:
            raise DataError(
                f"{benchmark.name} has {benchmark.classes} classes, this data has {classes}",
                "To use other data, copy the benchmark and change its 'classes'.",
            )
        log.warning(f"{benchmark.name} has {benchmark.classes} classes, this data has {classes}: the result is marked")
        others["classes"] = classes
    for split, n in benchmark.samples.items():
        if counts[split] == n:
            continue
        others[split] = n
        log.warning(f"{benchmark.name} has {n} {split} samples, this data has {counts[split]}: the result is marked")
    return dataclasses.replace(benchmark, modified=True) if others else benchmark
