"""Time, memory and disk space of an evaluation, before an image is decoded.

Protocols state their work (`cost` and `work` of `protocols.protocol`). The machine is measured in about a second:
matrix products and passes over memory (`runtime.machine`), and decoding and encoding of a few of the data's own images.
Work that is evidently short is not measured. The first of several processes estimates: images are divided among them,
protocols on features run on the first.
"""

import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sslbench import protocols
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer
from sslbench.backbones.speed import prepare
from sslbench.data.checks import near
from sslbench.data.decode import transforms
from sslbench.data.loading import loader
from sslbench.data.sharded import rows_of
from sslbench.data.source import Source
from sslbench.distributed import this_process
from sslbench.errors import ResourceError, SslbenchError
from sslbench.evaluation.on_features import floor_layers, floors_of
from sslbench.evaluation.preparation import Prepared, one_part, shared_part
from sslbench.evaluation.request import RunSettings, Task
from sslbench.evaluation.rounding import in_fp32
from sslbench.features import partial
from sslbench.features.external import FeaturePair
from sslbench.features.extract import store_key
from sslbench.features.store import open_entry
from sslbench.protocols import NotEstimated, Shapes
from sslbench.runtime import machine
from sslbench.runtime.cost import Cost
from sslbench.runtime.device import DTYPES
from sslbench.runtime.seeds import preserved_random_states
from sslbench.targets.target import Target

log = logging.getLogger("sslbench")

LONG = 60.0
"""Seconds from which on a run tells its estimate before it starts."""
VERY_LONG = 86400.0
"""Seconds from which on the estimate of a protocol names what takes less time."""
_SHORT = 10.0  # seconds with `machine.SLOW`, below which nothing is measured
_FEW_IMAGES = 256  # to encode, below which nothing is measured
_WIDE = 2048  # features of a layer that was not encoded yet, where nothing is measured
_TRAINED = 3  # passes forward that a pass of training takes
_OTHERS = ("knn", "linear", "lsr", "clustering")
"""Protocols that a refusal may recommend where they fit."""
_FEWER = "fewer samples (--limit N, or fewer rows in --features)"
_TRIED = ("costs", "c", "k")
"""Settings whose values are tried in turn."""
_COPIES = "search for copies of test images in train"
_OVERLAP = 64, 100  # components, and bytes per pair and per number of a vector, of the search for copies
_SAMPLES = (4, 12, 48)  # images of a measurement, in turn, as long as there is time
_MEASURED = 0.4  # seconds of the measurement of a network


@dataclasses.dataclass(frozen=True)
class Rate:
    """Speed of a network on this device.

    Attributes:
        seconds: seconds per image, decoding included.
        widths: layer -> number of its features.
        start: seconds to prepare int8; 0 in other precisions.
    """

    seconds: float
    widths: dict[str, int]
    start: float = 0.0


def measure_rate(backbone: Backbone, source: Source, layers: Sequence[Layer], run: RunSettings) -> Rate | None:
    """Return the time per image on this device, from decoding and encoding a few images; None if that fails."""
    settings = run.extract_settings()
    device, dtype = settings.device, DTYPES[settings.precision]
    try:
        with preserved_random_states(device):
            started = time.perf_counter()
            encode = prepare(backbone, layers, device=device, precision=settings.precision)
            start = time.perf_counter() - started if backbone.calibration is not None else 0.0  # seconds to minutes
            began, places = time.perf_counter(), np.linspace(0, len(source) - 1, min(len(source), sum(_SAMPLES)))
            decoding = encoding = float("inf")
            widths: dict[str, int] = {}
            rows = np.unique(places.astype(np.int64))
            for count in _SAMPLES:
                chosen, rows = rows[:count], rows[count:]
                if not len(chosen) or (widths and time.perf_counter() - began > _MEASURED):
                    break
                started = time.perf_counter()
                batches = list(
                    loader.batches(
                        source, chosen, backbone.preprocessing, batch_size=count, workers=0, mixed_sizes=True
                    )
                )
                decoded = time.perf_counter()
                for images in (batch.images for batch in batches if len(batch.indices)):
                    inputs = transforms.normalise(images.to(device), backbone.preprocessing, dtype, torch.channels_last)
                    found = {name: x.float().cpu() for name, x in encode(inputs).items()}
                    widths = {name: x.shape[1] for name, x in found.items()}
                # Pages and kernels are cold in the first batch.
                decoding = min(decoding, (decoded - started) / len(chosen))
                encoding = min(encoding, (time.perf_counter() - decoded) / len(chosen))
    except SslbenchError:
        return None  # the extraction tells the reason
    if not widths:
        return None
    together = decoding + encoding if not settings.workers else max(decoding / settings.workers, encoding)
    return Rate(together, widths, start)


@dataclasses.dataclass(frozen=True)
class Part:
    """Stage of an evaluation: an extraction, or a protocol with all its layers and floors.

    Attributes:
        name: of the stage.
        seconds: None: not estimated.
        memory: bytes at the peak, beside the process as it is.
        stored: bytes of features to be stored.
        written: bytes of files of scores.
        remark: work that is not counted, or the reason why nothing is.
        task: of a protocol on features.
        shapes: of its features, the largest ones.
    """

    name: str
    seconds: float | None
    memory: float = 0.0
    stored: float = 0.0
    written: float = 0.0
    remark: str = ""
    task: Task | None = None
    shapes: Shapes | None = None


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Estimate of an evaluation.

    Attributes:
        parts: its stages, one after the other.
        free_memory: bytes; None where the system does not tell.
        free_store: bytes on the disk of the feature store.
        free_out: bytes on the disk of the results.
    """

    parts: tuple[Part, ...]
    free_memory: float | None
    free_store: float
    free_out: float

    @property
    def seconds(self) -> float:
        """Time of the stages that are estimated."""
        return sum(part.seconds or 0.0 for part in self.parts)

    def check(self) -> None:
        """Refuse what does not fit into memory or on disk.

        Raises:
            ResourceError: names the stage, both sizes, and what helps.
        """
        way_out = "If you know better: --no-estimate (estimate=False)."
        for part in self.parts:
            if self.free_memory is not None and part.memory > self.free_memory:
                raise ResourceError(
                    f"{part.name} needs about {size_text(part.memory)} of memory, and "
                    f"{size_text(self.free_memory)} are free; nothing was extracted",
                    f"{_smaller(part, self.free_memory)} {way_out}",
                )
        stored, written = sum(p.stored for p in self.parts), sum(p.written for p in self.parts)
        if stored > self.free_store:
            raise ResourceError(
                f"the features take about {size_text(stored)} in the feature store, where "
                f"{size_text(self.free_store)} are free; nothing was extracted",
                "Give --feature-dtype float16 (half), --store on another disk, fewer --layers, --no-floors or --limit; "
                f"linear-online and segmentation store none. {way_out}",
            )
        if written > self.free_out:
            raise ResourceError(
                f"the files of scores take about {size_text(written)}, where {size_text(self.free_out)} are free",
                f"Give --out on another disk, fewer --layers or --no-floors. {way_out}",
            )

    def line(self) -> str:
        """Return the estimate in one line."""
        slowest = max(self.parts, key=lambda part: part.seconds or 0.0)
        unknown = [part.name for part in self.parts if part.seconds is None]
        most = max(part.memory for part in self.parts)
        text = f"this run is estimated to take {time_text(self.seconds)}, most of it {slowest.name}"
        text += f", and {size_text(most)} of memory" if most else ""
        shorter = quicker(slowest)
        text += f"; {shorter}" if shorter else ""
        return text + (f"; not estimated: {', '.join(unknown)}" if unknown else "")


def _smaller(part: Part, free: float) -> str:
    """Return what makes a protocol fit into memory."""
    advice = [_FEWER]
    if part.task is not None and part.shapes is not None:
        task, shapes = part.task, part.shapes
        if (memory := getattr(task.settings, "max_memory", None)) is not None:
            for smaller in (memory / divisor for divisor in (2, 4, 8, 16)):
                cost = task.kind.cost_of(_with_memory(task.settings, smaller), shapes)
                if isinstance(cost, Cost) and cost.memory <= free:
                    advice.insert(0, f"max_memory={smaller:g}")
                    break
        fitting = [name for name in _OTHERS if name != task.protocol and _fits(name, shapes, free)]
        advice += [f"another protocol that fits ({', '.join(fitting)})"] if fitting else []
    return f"Use {', or '.join(advice)}."


def quicker(part: Part) -> str:
    """Return what makes a protocol that takes days quicker; '' where it does not, or nothing is known."""
    task, shapes = part.task, part.shapes
    if task is None or shapes is None or part.seconds is None or part.seconds < VERY_LONG:
        return ""
    cost = task.kind.cost_of(task.settings, shapes)
    if not isinstance(cost, Cost):
        return ""
    whole, advice = machine.speed().seconds(cost), []
    runs = part.seconds / whole  # with layers and floors
    for name in _TRIED:
        values = getattr(task.settings, name, None)
        if not isinstance(values, tuple) or len(values) < 2:
            continue
        one = dataclasses.replace(task, settings=dataclasses.replace(task.settings, **{name: values[:1]}))
        cost = one.kind.cost_of(one.settings, shapes)
        if isinstance(cost, Cost) and (seconds := machine.speed().seconds(cost)) < whole / 2:
            advice.append(f"one value of {name} ({time_text(runs * seconds)})")
    for name in _OTHERS:
        found = protocols.find(name)
        own = Task(name, found.settings(), {})
        if name != task.protocol and shapes.target in found.kind.takes:
            cost = own.kind.cost_of(own.settings, shapes)
            if isinstance(cost, Cost) and (seconds := machine.speed().seconds(cost)) < whole / 10:
                advice.append(f"{name} ({time_text(runs * seconds)})")
    return f"shorter: {', '.join([*advice, _FEWER])}"


def _with_memory(settings: Any, memory: float) -> Any:
    return dataclasses.replace(settings, max_memory=memory)


def _fits(name: str, shapes: Shapes, free: float) -> bool:
    found = protocols.find(name)
    if shapes.target not in found.kind.takes:
        return False
    cost = found.kind.cost_of(found.settings(), shapes)
    return isinstance(cost, Cost) and cost.memory <= free


def time_text(seconds: float) -> str:
    """Return a time with its unit.

    >>> time_text(0.2), time_text(42), time_text(600), time_text(30000), time_text(1e6)
    ('below 1 s', '42 s', '10 min', '8.3 h', '12 days')
    """
    if seconds < 1:
        return "below 1 s"
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            number = seconds / length
            return f"{number:.0f} {unit}" if number >= 9.95 else f"{number:.1f} {unit}"
    return f"{seconds:.0f} s"


def size_text(number: float) -> str:
    """Return a number of bytes with its unit.

    >>> size_text(3e5), size_text(25e6), size_text(23.4e9)
    ('1 MB', '25 MB', '23 GB')
    """
    if number < 1e9:
        return f"{max(1, round(number / 1e6))} MB"
    return f"{number / 1e9:.1f} GB" if number < 9.95e9 else f"{number / 1e9:,.0f} GB"


def _count(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"


def announce(prepared: Prepared, store: Path, out: Path) -> None:
    """Tell a run that is estimated to take longer than a minute, in one line; refuse what does not fit.

    Raises:
        ResourceError: the run does not fit into memory or on disk.
    """
    if not prepared.run.estimate or _evidently_short(prepared, store):
        return
    found = estimate(prepared, store, out)
    found.check()
    _tell(found)


def announce_features(pair: FeaturePair, tasks: Sequence[Task], run: RunSettings, out: Path) -> None:
    """Do the same for features that were made elsewhere; errors as for `announce`."""
    if not run.estimate:
        return
    costs = [cost for _, cost in _costs_of_features(pair, tasks, run)]
    if sum(machine.SLOW.seconds(each) for each in costs if isinstance(each, Cost)) < _SHORT:
        return
    found = estimate_features(pair, tasks, run, out)
    found.check()
    _tell(found)


def estimate_features(pair: FeaturePair, tasks: Sequence[Task], run: RunSettings, out: Path) -> Estimate:
    """Return the time, memory and disk space of an evaluation of features that were made elsewhere."""
    shapes = _shapes_of_features(pair)
    parts = [
        dataclasses.replace(_part(_COPIES if task is None else task.protocol, cost, 1), task=task, shapes=shapes)
        for task, cost in _costs_of_features(pair, tasks, run)
    ]
    return Estimate(tuple(parts), machine.free_memory(), machine.free_disk(out), machine.free_disk(out))


def _shapes_of_features(pair: FeaturePair) -> Shapes:
    return _shapes(pair.train.target, len(pair.train), len(pair.test), pair.train.x.shape[1])


def _costs_of_features(
    pair: FeaturePair, tasks: Sequence[Task], run: RunSettings
) -> list[tuple[Task | None, Cost | NotEstimated]]:
    """Return the cost of each protocol, and that of the search for copies, which is of none."""
    shapes = _shapes_of_features(pair)
    found: list[tuple[Task | None, Cost | NotEstimated]] = [
        (task, task.kind.cost_of(task.settings, shapes)) for task in tasks
    ]
    if run.overlaps and pair.train is not pair.test:
        found.append((None, _overlaps(shapes.train, shapes.test, shapes.width)))
    return found


def _tell(found: Estimate) -> None:
    if found.seconds >= LONG:
        log.info(found.line())


def estimate(prepared: Prepared, store: Path, out: Path) -> Estimate:
    """Return the time, memory and disk space of an evaluation, measured on a few images.

    Args:
        prepared: from `prepare`.
        store: folder of the feature store.
        out: folder of the records.
    """
    on_images, on_features = prepared.image_tasks, prepared.feature_tasks
    parts: list[Part] = []
    rates: dict[str, Rate | None] = {}
    if on_features:
        parts += list(_extractions(prepared, on_features, store, rates))
        parts += _feature_parts(prepared, on_features, store, rates)
        if prepared.backbone.calibration is not None:
            parts += _sample_in_fp32(prepared, on_features, store)
    if on_images:
        rate = (
            rates[""]
            if "" in rates
            else measure_rate(prepared.backbone, prepared.data.test, prepared.layers, prepared.run)
        )
        parts += [_image_part(prepared, task, rate) for task in on_images]
    parts += [Part(task.protocol, None, remark="it trains a detector") for task in prepared.object_tasks]
    free = machine.free_disk(store), machine.free_disk(out)
    return Estimate(tuple(parts), machine.free_memory(), *free)


def _sources(prepared: Prepared, tasks: Sequence[Task]) -> list[Source]:
    """Return the sources that are encoded, each once."""
    data = one_part(prepared.data, shared_part(tasks))
    if data.whole is not None:
        return [data.whole]
    return [data.test] if data.train is data.test else [data.train, data.test]


@dataclasses.dataclass(frozen=True)
class _Waiting:
    """Images of a source that are to be encoded.

    Attributes:
        images: number of them, of all processes.
        most: largest number of them that one process encodes.
        created: layers without a file of an unfinished extraction, which has its space on disk already.
    """

    source: Source
    images: int
    most: int
    created: tuple[Layer, ...]


def _missing(
    backbone: Backbone, source: Source, layers: Sequence[Layer], run: RunSettings, store: Path
) -> tuple[_Waiting | None, dict[str, int]]:
    """Return what of a source is to be encoded, None for nothing, and the widths of the layers that are stored."""
    missing, unfinished, widths = list(layers), [], {}
    if backbone.known:
        entry = open_entry(store, store_key(backbone, source, run.extract_settings()), source, backbone.name)
        missing = [layer for layer in layers if not entry.has(layer.text)]
        widths = {layer.text: int(entry.read(layer.text).shape[1]) for layer in layers if layer not in missing}
        files = [(layer, entry.layer_file(layer.text)) for layer in missing]
        opened = [(layer, partial.opened(file, len(source), np.dtype(run.feature_dtype))) for layer, file in files]
        unfinished = [(layer, found) for layer, found in opened if found is not None]
    if not missing:
        return None, widths
    pending = np.full(len(source), len(unfinished) < len(missing))
    for _, found in unfinished:
        pending |= found.states() == partial.PENDING
    world = this_process().world
    most = max(int(pending[rows_of(source.images, rank, world)].sum()) for rank in range(world))
    created = tuple(layer for layer in missing if layer not in {layer for layer, _ in unfinished})
    return _Waiting(source, int(pending.sum()), most, created), widths


def _evidently_short(prepared: Prepared, store: Path) -> bool:
    """Return True for work of some seconds even on a slow machine, which is not worth a measurement."""
    tasks = prepared.request.tasks
    if prepared.object_tasks:
        return True
    if prepared.image_tasks:
        return len(prepared.data.train) + len(prepared.data.test) <= _FEW_IMAGES
    encoded, width = 0, 0
    for source in _sources(prepared, tasks):
        waiting, stored = _missing(prepared.backbone, source, prepared.layers, prepared.run, store)
        encoded += waiting.images if waiting else 0
        width = max([width, _WIDE if waiting else 0, *stored.values()])
    encoded += sum(len(each.source) for sets in prepared.sets for each in sets.values())
    if encoded > _FEW_IMAGES:
        return False
    shapes = [_task_shapes(prepared, task, width, prepared.layers[0]) for task in tasks]
    costs = [task.kind.cost_of(task.settings, own) for task, own in zip(tasks, shapes, strict=True)]
    layers = len(prepared.layers)
    return layers * sum(machine.SLOW.seconds(each) for each in costs if isinstance(each, Cost)) < _SHORT


def _extractions(
    prepared: Prepared, tasks: Sequence[Task], store: Path, rates: dict[str, Rate | None]
) -> Iterator[Part]:
    """Yield the extraction of each backbone; its rate is put into `rates`."""
    run, item = prepared.run, np.dtype(prepared.run.feature_dtype).itemsize
    sources = _sources(prepared, tasks)
    for name, backbone in {"": prepared.backbone, **floors_of(prepared, tasks).found}.items():
        layers = floor_layers(prepared, backbone)
        stored = 0.0
        widths: dict[str, int] = {}
        waiting: list[_Waiting] = []
        for source in sources:
            missing, known = _missing(backbone, source, layers, run, store)
            widths |= known
            waiting += [missing] if missing else []
        further = [each for sets in prepared.sets for each in sets.values()] if name in ("", *_baseline(run)) else []
        for each in further:
            encoder = dataclasses.replace(backbone, preprocessing=each.preprocessing)
            missing, known = _missing(encoder, each.source, layers, run, store)
            waiting += [missing] if missing else []
        if not waiting:
            rates[name] = Rate(0.0, widths)
            continue
        # The untrained network is as fast as the trained one.
        if name == "untrained" and rates.get("") is not None and (own := rates[""]) is not None and own.seconds:
            rate: Rate | None = own
        else:
            rate = measure_rate(backbone, waiting[0].source, layers, run)
        rates[name] = rate
        images, most = sum(each.images for each in waiting), sum(each.most for each in waiting)
        title = f"extraction{f' ({name})' if name else ''}: {_count(images, 'image', 'images')}{_shared()}"
        if rate is None:
            yield Part(title, None, remark="a first image cannot be encoded")
            continue
        if not run.on_the_fly:
            stored = float(
                sum(
                    len(each.source) * item * sum(rate.widths[layer.text] for layer in each.created) for each in waiting
                )
            )
        yield Part(title, rate.start + rate.seconds * most, stored=stored)


def _sample_in_fp32(prepared: Prepared, tasks: Sequence[Task], store: Path) -> list[Part]:
    """Return the stages that tell the difference that int8 makes: a sample is encoded in fp32, and scored twice."""
    whole = dataclasses.replace(prepared.request, noise=())
    exact = in_fp32(dataclasses.replace(prepared, request=whole))
    exact = dataclasses.replace(exact, run=dataclasses.replace(exact.run, floors=False, overlaps=False), sets=())
    rates: dict[str, Rate | None] = {}
    parts = list(_extractions(exact, tasks, store, rates))
    runs = 2 * (1 + len(prepared.request.noise))
    scored = [
        dataclasses.replace(part, seconds=None if part.seconds is None else runs * part.seconds, written=0.0)
        for part in _feature_parts(exact, tasks, store, rates)
    ]
    return [dataclasses.replace(part, name=f"fp32 beside int8: {part.name}") for part in [*parts, *scored]]


def _shared() -> str:
    world = this_process().world
    return f" by {world} processes" if world > 1 else ""


def _baseline(run: RunSettings) -> tuple[str, ...]:
    return ("untrained",) if run.baseline else ()


def _shapes(labels: Target, train: int, test: int, width: int, layer: Layer | None = None, pixels: int = 0) -> Shapes:
    grid = None if layer is None else layer.grid
    cells = 1 if grid is None else grid[0] * grid[1]
    regions = 1 if layer is None else layer.regions
    return Shapes(train, test, width, max(1, len(labels.classes)), type(labels), cells, pixels, regions)


def _task_shapes(prepared: Prepared, task: Task, width: int, layer: Layer) -> Shapes:
    """Return the shapes of a protocol's features at one layer."""
    data = one_part(prepared.data, task.part)
    size = transforms.output_size(prepared.backbone.preprocessing) or (_FEW_IMAGES, _FEW_IMAGES)
    return _shapes(data.train.target, len(data.train), len(data.test), width, layer, size[0] * size[1])


def _part(name: str, cost: Cost | NotEstimated, runs: int) -> Part:
    """Return a stage of equal runs, one after the other."""
    if isinstance(cost, NotEstimated):
        return Part(name, None, remark=cost.reason)
    return Part(name, runs * machine.speed().seconds(cost), cost.memory, written=runs * cost.scores)


def _feature_parts(prepared: Prepared, tasks: Sequence[Task], store: Path, rates: dict[str, Rate | None]) -> list[Part]:
    """Return a stage for each protocol on features, and one for the search for copies."""
    own = rates.get("")
    if own is None:
        return [Part(task.protocol, None, remark="the width of the features is not known") for task in tasks]
    shares = 1 + len(prepared.request.noise)
    parts = []
    for task in tasks:
        lacking = task.kind.lacking_floors(baseline=prepared.run.baseline)
        beside = [name for name in rates if name and name not in lacking]
        total: Part | None = None
        for layer in prepared.layers:
            widths = [own.widths[layer.text]]
            for name in beside:
                rate = rates[name]
                widths += [] if rate is None else [rate.widths.get(layer.text, next(iter(rate.widths.values())))]
            for width in widths:
                shapes = _task_shapes(prepared, task, width, layer)
                stage = _part(task.protocol, task.kind.cost_of(task.settings, shapes), shares)
                total = _joined(total, dataclasses.replace(stage, task=task, shapes=shapes))
        if total is not None:
            floors = f" with {_count(len(beside), 'floor', 'floors')}" if beside else ""
            layers = f", {len(prepared.layers)} layers" if len(prepared.layers) > 1 else ""
            parts.append(dataclasses.replace(total, name=f"{task.protocol}{floors}{layers}"))
    if prepared.run.overlaps and not all(task.part for task in tasks):
        vectors = rates.get("pixels") or own
        width = next(iter(vectors.widths.values()))
        parts.append(_part(_COPIES, _overlaps(len(prepared.data.train), len(prepared.data.test), width), 1))
    return parts


def _joined(total: Part | None, part: Part) -> Part:
    """Return two stages of one protocol as one."""
    if total is None or total.seconds is None or part.seconds is None:
        return part if total is None else total
    larger = max(total, part, key=lambda each: each.memory)
    return dataclasses.replace(
        larger,
        seconds=total.seconds + part.seconds,
        written=total.written + part.written,
    )


def _overlaps(train: int, test: int, width: int) -> Cost:
    """Return the cost of the search for test images that are in train too, by 64 components of their vectors."""
    components, touched = _OVERLAP
    pairs, numbers = float(train) * test, float(train + test) * width
    return Cost(
        single=2 * pairs * components + 2 * numbers * components,
        traffic=(pairs + numbers) * touched,
        memory=float(near.memory_of(train + test, width)),
    )


def _image_part(prepared: Prepared, task: Task, rate: Rate | None) -> Part:
    """Return a protocol on images, with the untrained network beside it where that is run."""
    work = task.kind.work_of(task.settings, _task_shapes(prepared, task, 0, prepared.layers[0]))
    if isinstance(work, NotEstimated):
        return Part(task.protocol, None, remark=work.reason)
    if rate is None:
        return Part(task.protocol, None, remark="a first image cannot be encoded")
    twice = (prepared.run.floors and not task.kind.trains) or prepared.run.baseline
    passes = (work.forward + _TRAINED * work.trained) * (2 if twice else 1) * (1 + len(prepared.request.noise))
    remark = f"passes of images only, at least; without {work.rest}" if work.rest else ""
    floor, number = " with 1 floor" if twice else "", _count(round(passes), "pass", "passes")
    name = f"{task.protocol}{floor}: {number} of images{_shared()}"
    return Part(name, passes * rate.seconds / this_process().world, remark=remark)
