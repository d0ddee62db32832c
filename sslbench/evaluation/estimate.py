"""Time, memory and disk space of an evaluation, before an image is decoded.

Protocols count their work (`Kind.cost`): operations of products, bytes of passes over arrays, images through the
network. The rates of this machine are measured in about a second. The first of several processes estimates: images are
divided among them, protocols on features run on the first.
"""

import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sslbench import protocols
from sslbench.arithmetic import arithmetic
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer
from sslbench.backbones.speed import prepare
from sslbench.data.checks import duplicates
from sslbench.data.decode import transforms
from sslbench.data.loading import loader
from sslbench.data.loading.kept import largest_size
from sslbench.data.source import Source
from sslbench.data.wording import counted
from sslbench.distributed import this_process
from sslbench.errors import ResourceError, SslbenchError
from sslbench.evaluation.floors import UNTRAINED_SEEDS
from sslbench.evaluation.on_features import floor_layers, floors_of
from sslbench.evaluation.preparation import Prepared, extract_settings, one_part, shared_part
from sslbench.evaluation.request import Task
from sslbench.evaluation.settings import RunSettings
from sslbench.features import partial
from sslbench.features.array import ExtractSettings
from sslbench.features.external import FeaturePair
from sslbench.features.extract import parameter_bytes, store_key
from sslbench.features.store import open_entry
from sslbench.metrics.answers import KEPT
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import Cost, Shapes
from sslbench.results.records import WHOLE_UP_TO
from sslbench.runtime.device import DTYPES, choose_device
from sslbench.runtime.machine import free_disk, free_memory
from sslbench.runtime.seeds import preserved_random_states
from sslbench.targets.classes import Classes
from sslbench.targets.target import Target

if TYPE_CHECKING:
    import torch

log = logging.getLogger("sslbench")

_LONG = 60.0  # seconds from which on a run tells its estimate before it starts
_FEW_IMAGES = 256  # to encode, of ResNet-50's work each, below which nothing is measured
_RESNET50 = 102e6 * 224 * 224  # bytes of parameters times pixels
_LEAST = 1 / 16  # of ResNet-50's work: to decode an image takes time for small networks, too
_SHORT = 1e11  # operations and bytes, some seconds on any machine, below which nothing is measured
_WIDE = 2048  # features of a layer that was not encoded yet, where nothing is measured
_TRAINED = 3  # a pass of training takes a pass forward and two back
_RESAMPLES = 1000  # half-samples for the intervals of metrics
_FRUGAL = ("knn", "linear", "lsr", "clustering")  # protocols that a refusal recommends where they fit
_SIDE, _BYTES = (
    1024,
    2**25,
)  # of a product and a pass that are measured: larger than caches, some hundredths of a second
_IMAGES, _SECONDS = 64, 0.4  # at most, to measure the encoding


@functools.cache
def machine_rates(device: str) -> tuple[float, float]:
    """Measure operations per second of float32 products, and bytes per second of passes over memory, on a device."""
    if device != "cpu":
        return _device_rates(device)
    matrix = np.random.default_rng(0).standard_normal((_SIDE, _SIDE), dtype=np.float32)
    product, values = np.empty_like(matrix), np.ones(_BYTES // 8)
    doubled = np.empty_like(values)
    return (
        # A multiply-add is two operations; in a pass each number is read and written.
        2 * _SIDE**3 / _fastest(lambda: np.matmul(matrix, matrix, out=product)),
        2 * _BYTES / _fastest(lambda: np.multiply(values, 2.0, out=doubled)),
    )


def _device_rates(device: str) -> tuple[float, float]:
    """Measure the rates of a GPU; larger arrays than on the processor, which it fills in the same time."""
    import torch

    matrix = torch.ones(4 * _SIDE, 4 * _SIDE, device=device)
    values = torch.ones(4 * _BYTES, device=device)

    def waited(function: Callable[[], torch.Tensor]) -> Callable[[], object]:
        # A number on the processor exists when all queued work is done.
        return lambda: function().flatten()[0].item()

    with arithmetic(device):  # without TensorFloat-32, as in protocols
        product = _fastest(waited(lambda: matrix @ matrix))
    return 2 * (4 * _SIDE) ** 3 / product, 2 * 16 * _BYTES / _fastest(waited(lambda: values.mul_(1.0)))


def _fastest(function: Callable[[], object]) -> float:
    """Return the seconds of the fastest of three calls: the first one allocates and starts threads."""
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - started)
    # A clock of coarse ticks may tell 0, and rates divide by this.
    return max(min(seconds), 1e-9)


def _work(cost: Cost) -> tuple[float, float]:
    """Return operations and bytes, with the passes of all half-samples over the scores."""
    return cost.products, cost.passes + 2 * _RESAMPLES * cost.scores


def seconds_of(cost: Cost, device: str = "cpu") -> float:
    """Return the estimated seconds of a cost; products and passes that its protocol computes on the device are fast."""
    operations, passes = _work(cost)
    products = operations / machine_rates(device if cost.products_on_device else "cpu")[0]
    there = cost.passes_on_device / machine_rates(device)[1] if cost.passes_on_device else 0.0
    return products + there + (passes - cost.passes_on_device) / machine_rates("cpu")[1]


@dataclasses.dataclass(frozen=True)
class Rate:
    """Seconds per image through a network, decoding included, and the number of features of each layer."""

    seconds: float
    widths: dict[str, int]


def measure_rate(backbone: Backbone, source: Source, layers: Sequence[Layer], run: RunSettings) -> Rate | None:
    """Decode and encode a few images; return None if that fails, for a reason that the extraction tells."""
    import torch

    settings = extract_settings(run)
    rows = np.unique(np.linspace(0, len(source) - 1, min(len(source), _IMAGES)).astype(np.int64))
    decoding = encoding = math.inf
    widths: dict[str, int] = {}
    try:
        # The measurement must not move the random numbers of the run.
        with preserved_random_states(settings.device):
            encode = prepare(backbone, layers, device=settings.device, precision=settings.precision)
            decode = functools.partial(
                loader.batches, source, preprocessing=backbone.preprocessing, workers=0, mixed_sizes=True
            )
            # The first image loads the libraries that decode and resize: seconds that come once.
            list(decode(rows[:1], batch_size=1))
            began = time.perf_counter()
            # Growing chunks, so that a slow network is measured on the first four images only.
            for chunk in (rows[:4], rows[4:16], rows[16:]):
                if not len(chunk) or (widths and time.perf_counter() - began > _SECONDS):
                    break
                started = time.perf_counter()
                batches = list(decode(chunk, batch_size=len(chunk)))
                # The smallest counts: pages and kernels are cold in the first batch.
                decoding = min(decoding, (time.perf_counter() - started) / len(chunk))
                seconds = 0.0
                for batch in (each for each in batches if len(each.indices)):
                    each, widths = _encode(encode, batch.images, backbone.preprocessing, settings)
                    seconds += each * len(batch.indices)
                encoding = min(encoding, seconds / len(chunk))
                if settings.device.type != "cpu" and len(chunk) == len(rows[:4]):
                    began = time.perf_counter()  # the start of a GPU says nothing of the network
    except (SslbenchError, torch.OutOfMemoryError):
        return None
    if not widths:
        return None
    # Workers decode while the network encodes: the slower of both decides.
    return Rate(max(decoding / settings.workers, encoding) if settings.workers else decoding + encoding, widths)


def _encode(
    encode: Callable[["torch.Tensor"], Mapping[str, "torch.Tensor"]],
    images: "torch.Tensor",
    preprocessing: Preprocessing,
    settings: ExtractSettings,
) -> tuple[float, dict[str, int]]:
    """Encode images (N, C, h, w); return the seconds per image, and the width of each layer."""

    def go() -> dict[str, int]:
        inputs = transforms.normalise(images.to(settings.device), preprocessing, DTYPES[settings.precision])
        return {name: x.float().cpu().shape[1] for name, x in encode(inputs).items()}

    if settings.device.type != "cpu":
        # A GPU loads kernels in the first batch of a shape, and is only busy with batches of the run's size.
        images = images.repeat(-(-settings.batch_size // len(images)), 1, 1, 1)[: settings.batch_size]
        go()
    started = time.perf_counter()
    widths = go()
    return (time.perf_counter() - started) / len(images), widths


@dataclasses.dataclass(frozen=True)
class Stage:
    """Extraction, or a protocol with all its layers and floors.

    Attributes:
        seconds: None: not estimated.
        memory: bytes at the peak, beside the process as it is.
        stored: bytes of features to be stored.
        written: bytes of files of scores.
        kept: bytes of the cache folder that decoded training images may take while it runs.
        remark: work that is not counted, or the reason why nothing is.
        task: of a protocol on features.
        shapes: of its features, the largest ones.
    """

    name: str
    seconds: float | None
    memory: float = 0.0
    stored: float = 0.0
    written: float = 0.0
    kept: float = 0.0
    remark: str = ""
    task: Task | None = None
    shapes: Shapes | None = None

    def smaller(self, free: float) -> str:
        """Return settings and protocols with which the work fits into the free bytes of memory."""
        advice = ["fewer samples (--limit N, or fewer rows in --features)"]
        if self.task is not None and self.shapes is not None:
            task, settings, shapes = self.task, self.task.settings, self.shapes
            memory = getattr(settings, "max_memory", 0.0)
            limits = [memory / divisor for divisor in (2, 4, 8, 16) if memory]
            limited = (dataclasses.replace(settings, max_memory=limit) for limit in limits)
            fits = [limit for limit, own in zip(limits, limited, strict=True) if _fits(task.kind, own, shapes, free)]
            advice = [*(f"max_memory={limit:g}" for limit in fits[:1]), *advice]
            found = {name: protocols.find(name) for name in _FRUGAL if name != task.protocol}
            others = [name for name, other in found.items() if _fits(other.kind, other.settings(), shapes, free)]
            advice += [f"another protocol that fits ({', '.join(others)})"] if others else []
        return f"Use {', or '.join(advice)}."


def _fits(kind: protocols.Kind[Any], settings: Any, shapes: Shapes, free: float) -> bool:
    cost = kind.cost(settings, shapes) if shapes.target in kind.takes else ""
    return isinstance(cost, Cost) and cost.memory <= free


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Stages of an evaluation, one after the other, and the free bytes of memory (None: unknown) and of both disks."""

    stages: tuple[Stage, ...]
    free_memory: float | None
    free_store: float
    free_out: float

    @property
    def seconds(self) -> float:
        """Time of the stages that are estimated."""
        return sum(stage.seconds or 0.0 for stage in self.stages)

    def check(self) -> None:
        """Refuse what does not fit into memory or on disk."""
        way_out = "If you know better: --no-estimate (estimate=False)."
        for stage in self.stages:
            if self.free_memory is not None and stage.memory > self.free_memory:
                raise ResourceError(
                    f"{stage.name} needs about {size_text(stage.memory)} of memory, and "
                    f"{size_text(self.free_memory)} are free; nothing was extracted",
                    f"{stage.smaller(self.free_memory)} {way_out}",
                )
        stored, written = sum(s.stored for s in self.stages), sum(s.written for s in self.stages)
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
        """Return the end of the line on the estimate, behind the subject and its verb."""
        slowest = max(self.stages, key=lambda stage: stage.seconds or 0.0)
        unknown = [stage.name for stage in self.stages if stage.seconds is None]
        most = max(stage.memory for stage in self.stages)
        text = f"estimated to take {time_text(self.seconds)}, most of it {slowest.name}"
        text += f", and {size_text(most)} of memory" if most else ""
        return text + (f"; not estimated: {', '.join(unknown)}" if unknown else "")


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


def announce(prepared: Prepared, store: Path, out: Path, *, told: bool = False) -> None:
    """Tell a run that is estimated to take longer than a minute, in one line; refuse what does not fit.

    `told`: `announce_together` has told its time.
    """
    # Work of some seconds even on a slow machine is not worth a measurement.
    if prepared.run.estimate and not _are_quick([prepared], store):
        found = estimate(prepared, store, out)
        found.check()
        if not told:
            _tell(found)


def announce_together(several: Sequence[Prepared], store: Path, out: Path) -> None:
    """Tell how long several evaluations of the same images take together, in one line, if it is more than a minute."""
    merged = dict[str, Prepared]()
    for each in several:  # all protocols on the same weights share an extraction
        first = merged.setdefault(each.request.weights, each)
        if first is not each:
            request = dataclasses.replace(first.request, tasks=(*first.request.tasks, *each.request.tasks))
            merged[each.request.weights] = dataclasses.replace(first, request=request)
    if not several[0].run.estimate or _are_quick([*merged.values()], store):
        return
    stages, known = list[Stage](), set[object]()
    for each in merged.values():
        # The floors of an architecture are computed once, and so is the search for copies.
        alike = each.backbone.name, each.backbone.preprocessing, each.layers
        run = dataclasses.replace(each.run, floors=each.run.floors and alike not in known, overlaps=not known)
        stages += estimate(dataclasses.replace(each, run=run), store, out).stages
        known.add(alike)
    _tell(Estimate(tuple(stages), None, 0.0, 0.0), f"these {len(several)} evaluations are")


def _are_quick(several: Sequence[Prepared], store: Path) -> bool:
    """Return whether evaluations take some seconds even on a slow machine; nothing is measured."""
    images, encodings, costs = 0.0, 0.0, list[Cost | str]()
    for prepared in several:
        request, width, networks = prepared.request, 0, 1 + len(UNTRAINED_SEEDS) * prepared.run.floors
        size = prepared.backbone.preprocessing.output_size or (_FEW_IMAGES, _FEW_IMAGES)
        relative = max(_LEAST, parameter_bytes(prepared.backbone) * math.prod(size) / _RESNET50)
        for source in _sources(prepared, prepared.feature_tasks) if prepared.feature_tasks else ():
            pending, _, widths = _pending(prepared.backbone, source, prepared.layers, prepared.run, store)
            images, encodings = images + pending, encodings + pending * networks * relative
            width = max([width, _WIDE if pending else 0, *widths.values()])
        images += sum(len(each.source) for sets in prepared.sets for each in sets.values())
        for task in () if prepared.object_tasks else request.tasks:  # trainings of detectors are not estimated
            cost = task.kind.cost(task.settings, _task_shapes(prepared, task, width, prepared.layers[0]))
            costs += [cost] * len(prepared.layers)
            if task.kind.needs_images and isinstance(cost, Cost):
                images += len(prepared.data.train) + len(prepared.data.test)
                encodings += _passes(prepared, task, cost) * relative
    return max(images, encodings) <= _FEW_IMAGES and _are_short(costs)


def announce_features(pair: FeaturePair, tasks: Sequence[Task], run: RunSettings, out: Path) -> None:
    """Do the same for features that were made elsewhere; errors as for `announce`."""
    shapes = _shapes(pair.train.target, len(pair.train), len(pair.test), pair.train.x.shape[1])
    if run.estimate and not _are_short([task.kind.cost(task.settings, shapes) for task in tasks]):
        found = estimate_features(pair, tasks, run, out)
        found.check()
        _tell(found)


def _tell(estimate: Estimate, subject: str = "this run is") -> None:
    if estimate.seconds >= _LONG:
        log.info(f"{subject} {estimate.line()}")


def _are_short(costs: Sequence[Cost | str]) -> bool:
    return sum(sum(_work(cost)) for cost in costs if isinstance(cost, Cost)) < _SHORT


def estimate_features(pair: FeaturePair, tasks: Sequence[Task], run: RunSettings, out: Path) -> Estimate:
    """Return the time, memory and disk space of an evaluation of features that were made elsewhere."""
    shapes = _shapes(pair.train.target, len(pair.train), len(pair.test), pair.train.x.shape[1])
    free = free_disk(out)
    stages = [_stage(task, [shapes], task.protocol, run) for task in tasks]
    if run.overlaps and pair.train is not pair.test:
        stages.append(_search_for_copies(shapes.train, shapes.test, shapes.width))
    return Estimate(tuple(stages), free_memory(), free, free)


def estimate(prepared: Prepared, store: Path, out: Path) -> Estimate:
    """Return the time, memory and disk space of an evaluation, measured on a few images."""
    tasks, rates, stages = prepared.feature_tasks, dict[str, Rate | None](), list[Stage]()
    found = {"": (prepared.backbone,), **floors_of(prepared, tasks).found} if tasks else {}
    for name, networks in found.items():
        rates[name], extraction = _extraction(prepared, tasks, store, name, networks, rates.get(""))
        stages += extraction
    if tasks:
        stages += _feature_stages(prepared, tasks, rates, {name: len(networks) for name, networks in found.items()})
    if prepared.image_tasks:
        rate = rates.get("") or measure_rate(prepared.backbone, prepared.data.test, prepared.layers, prepared.run)
        stages += [_image_stage(prepared, task, rate) for task in prepared.image_tasks]
    stages += [Stage(task.protocol, None, remark="it trains a detector") for task in prepared.object_tasks]
    return Estimate(tuple(stages), free_memory(), free_disk(store), free_disk(out))


def _sources(prepared: Prepared, tasks: Sequence[Task]) -> list[Source]:
    """Return the sources that are encoded, each once."""
    data = one_part(prepared.data, shared_part(tasks))
    if data.whole is not None:
        return [data.whole]
    return [data.test] if data.train is data.test else [data.train, data.test]


def _pending(
    backbone: Backbone, source: Source, layers: Sequence[Layer], run: RunSettings, store: Path
) -> tuple[int, list[Layer], dict[str, int]]:
    """Return the images to encode, the layers that have no file yet, and the widths of those that are stored.

    An interrupted extraction has left files of their full size, so only the rest of its time and no space is needed.
    """
    if backbone.process_key:
        return len(source), list(layers), {}
    entry = open_entry(store, store_key(backbone, source, extract_settings(run)), source, backbone.name)
    missing = [layer for layer in layers if not entry.has(layer.text)]
    widths = {layer.text: int(entry.read(layer.text).shape[1]) for layer in layers if layer not in missing}
    opened = {
        layer: partial.opened(entry.layer_file(layer.text), len(source), np.dtype(run.feature_dtype))
        for layer in missing
    }
    unfinished = [file for file in opened.values() if file is not None]
    # A layer without a file needs every image, and an image is encoded for all layers at once.
    pending = np.full(len(source), len(unfinished) < len(missing))
    try:
        for file in unfinished:
            pending |= file.states() == partial.PENDING
    except FileNotFoundError:  # another run has published the same features since they were looked up
        return _pending(backbone, source, layers, run, store)
    return int(pending.sum()), [layer for layer, file in opened.items() if file is None], widths


def _extraction(
    prepared: Prepared, tasks: Sequence[Task], store: Path, name: str, networks: Sequence[Backbone], rate: Rate | None
) -> tuple[Rate | None, list[Stage]]:
    """Return the rate of a network and the stage of the extraction of all that are like it, if any.

    `rate`: that of the evaluated network.
    """
    run, network, layers = prepared.run, networks[0], floor_layers(prepared, networks[0])
    encoded = [(each, source) for each in networks for source in _sources(prepared, tasks)]
    if name == "" or (name == "untrained" and run.baseline):
        encoded += [
            (dataclasses.replace(network, preprocessing=each.preprocessing), each.source)
            for sets in prepared.sets
            for each in sets.values()
        ]
    images, widths, created = 0, dict[str, int](), list[tuple[int, Layer]]()
    for encoder, source in encoded:
        pending, without_file, stored_widths = _pending(encoder, source, layers, run, store)
        images, widths = images + pending, widths | stored_widths
        created += [(len(source), layer) for layer in without_file]
    if not images:
        return Rate(0.0, widths), []
    # The untrained network is as fast as the trained one.
    if name != "untrained" or rate is None or not rate.seconds:
        rate = measure_rate(network, encoded[0][1], layers, run)
    named = f" ({len(networks)} {name})" if len(networks) > 1 else f" ({name})" if name else ""
    title = f"extraction{named}: {images:,} {'image' if images == 1 else 'images'}{_shared()}"
    if rate is None:
        return None, [Stage(title, None, remark="a first image cannot be encoded")]
    numbers = 0 if run.on_the_fly else sum(rows * rate.widths[layer.text] for rows, layer in created)
    seconds = rate.seconds * math.ceil(images / this_process().world)
    return rate, [Stage(title, seconds, stored=float(numbers * np.dtype(run.feature_dtype).itemsize))]


def _shared() -> str:
    world = this_process().world
    return f" by {world} processes" if world > 1 else ""


def _shapes(labels: Target, train: int, test: int, width: int, layer: Layer | None = None, pixels: int = 0) -> Shapes:
    cells = 1 if layer is None or layer.grid is None else math.prod(layer.grid)
    regions = 1 if layer is None else layer.regions
    return Shapes(train, test, width, max(1, len(labels.classes)), type(labels), cells, pixels, regions)


def _task_shapes(prepared: Prepared, task: Task, width: int, layer: Layer) -> Shapes:
    """Return the shapes of a protocol's features at one layer."""
    data = one_part(prepared.data, task.part)
    size = prepared.backbone.preprocessing.output_size or (_FEW_IMAGES, _FEW_IMAGES)
    shapes = _shapes(data.train.target, len(data.train), len(data.test), width, layer, size[0] * size[1])
    return dataclasses.replace(shapes, frames=len(data.test.every_image()) / max(1, len(data.test)))


def _stage(task: Task, shapes: Sequence[Shapes], name: str, run: RunSettings, repeats: int = 1) -> Stage:
    """Return the stage of a protocol: its runs at each of the shapes, one after the other."""
    try:
        device = str(choose_device(run.device))
    except SslbenchError:  # a plan is also made on a login node without the run's GPU
        device = "cpu"
    costs = [task.kind.cost(task.settings, own) for own in shapes]
    if reasons := [cost for cost in costs if isinstance(cost, str)]:
        return Stage(task.protocol, None, remark=reasons[0])
    stated = [(cost, own) for cost, own in zip(costs, shapes, strict=True) if isinstance(cost, Cost)]
    most, largest = max(stated, key=lambda pair: pair[0].memory)
    return Stage(
        name,
        repeats * sum(seconds_of(cost, device) for cost, _ in stated),
        most.memory,
        written=repeats * sum(_written(cost, own) for cost, own in stated),
        task=task,
        shapes=largest,
    )


def _written(cost: Cost, shapes: Shapes) -> float:
    """Return the bytes of the file of scores, of which the best alone are stored where they are too many."""
    many = issubclass(shapes.target, Classes) and shapes.test * shapes.classes > WHOLE_UP_TO
    return min(cost.scores, 8.0 * KEPT * shapes.test) if many else cost.scores


def _feature_stages(
    prepared: Prepared, tasks: Sequence[Task], rates: Mapping[str, Rate | None], numbers: Mapping[str, int]
) -> list[Stage]:
    """Return a stage for each protocol on features, and one for the search for copies.

    `numbers`: floor -> its networks.
    """
    own = rates[""]
    if own is None:
        return [Stage(task.protocol, None, remark="the width of the features is not known") for task in tasks]
    stages = []
    for task in tasks:
        lacking = task.kind.lacking_floors(baseline=prepared.run.baseline)
        floors = [r for name, r in rates.items() if name and name not in lacking for _ in range(numbers[name])]
        shapes = [
            # The pixels have one layer of their own, beside each layer of the network.
            _task_shapes(prepared, task, rate.widths.get(layer.text, next(iter(rate.widths.values()))), layer)
            for layer in prepared.layers
            for rate in (own, *floors)
            if rate is not None
        ]
        name = f"{task.protocol} with {counted(len(floors), 'floor')}" if floors else task.protocol
        name += f", {len(prepared.layers)} layers" if len(prepared.layers) > 1 else ""
        stages.append(_stage(task, shapes, name, prepared.run, 1 + len(prepared.request.noise)))
    if prepared.run.overlaps and not all(task.part for task in tasks):
        width = next(iter((rates.get("pixels") or own).widths.values()))
        stages.append(_search_for_copies(len(prepared.data.train), len(prepared.data.test), width))
    return stages


def _search_for_copies(train: int, test: int, width: int) -> Stage:
    """Return the search for test images that are in train too, by 64 components of their vectors."""
    pairs, numbers = float(train) * test, float(train + test) * width
    cost = Cost(2 * 64 * (pairs + numbers), 8 * (pairs + numbers), float(duplicates.memory_of(train + test, width)))
    return Stage("search for copies of test images in train", seconds_of(cost), cost.memory)


def _image_stage(prepared: Prepared, task: Task, rate: Rate | None) -> Stage:
    """Return a protocol on images, with the untrained network beside it where that is run."""
    cost = task.kind.cost(task.settings, _task_shapes(prepared, task, 0, prepared.layers[0]))
    if isinstance(cost, str) or rate is None:
        return Stage(task.protocol, None, remark=cost if isinstance(cost, str) else "a first image cannot be encoded")
    floors, passes = _floors(prepared, task), _passes(prepared, task, cost)
    remark = f"passes of images only, at least; without {cost.rest}" if cost.rest else ""
    name = f"{task.protocol} with {counted(floors, 'floor')}" if floors else task.protocol
    name = f"{name}: {passes:,.0f} passes of images{_shared()}"
    # What is kept takes a share of free space, and its file ends with the training: it is nothing to refuse.
    kept_bytes = float(largest_size()) if task.kind.trains else 0.0
    return Stage(name, passes * rate.seconds / this_process().world, kept=kept_bytes, remark=remark)


def _floors(prepared: Prepared, task: Task) -> int:
    """Return the number of untrained networks beside a protocol on images."""
    if prepared.run.floors and not task.kind.trains:
        return len(UNTRAINED_SEEDS)
    return 1 if prepared.run.baseline else 0  # one that needs a training of its own is run only on request


def _passes(prepared: Prepared, task: Task, cost: Cost) -> float:
    """Return the passes of images through all networks of a protocol on images."""
    passes = (cost.images + _TRAINED * cost.trained) * (1 + _floors(prepared, task))
    return passes * (1 + len(prepared.request.noise))
