"""Evaluations as data: checked without torch, written into records and jobs, and read again."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from sslbench import protocols
from sslbench.config import build, build_partial, resolve, result_settings
from sslbench.errors import UsageError
from sslbench.evaluation.settings import RunSettings
from sslbench.library.benchmarks import Benchmark, load_benchmark
from sslbench.library.presets import Preset, load_preset
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import WHOLE_IMAGES, Kind, Part, WholeImages
from sslbench.text import HIDDEN, plain_value
from sslbench.weights.format_name import find_format

if TYPE_CHECKING:
    from sslbench.backbones.backbone import Backbone
    from sslbench.backbones.layers import Layer
    from sslbench.data.source import Source


@dataclasses.dataclass(frozen=True)
class Task:
    """One protocol to run, with its settings and their origins."""

    protocol: str
    settings: Any
    origins: dict[str, str]
    benchmark: Benchmark | None = None
    preset: Preset | None = None

    @property
    def kind(self) -> Kind[Any]:
        """Kind of the protocol."""
        return protocols.find(self.protocol).kind

    @property
    def part(self) -> Part | None:
        """The only part of the data that the protocol uses with these settings; None: both."""
        return self.kind.part(self.settings)

    def row_names(self, backbone: "Backbone", layers: "Sequence[Layer]", train: "Source", seed: int) -> tuple[str, ...]:
        """Return the names of the results, see `Kind.row_names`."""
        return self.kind.row_names(self.protocol, backbone, layers, train, self.settings, seed=seed)


@dataclasses.dataclass(frozen=True)
class Request:
    """Evaluation to run; the fields have the names and meaning of the flags.

    Attributes:
        baselines: 'random' for the untrained backbone, or weights: detection trains the same detector from each, and
            its result stands beside.
        name: name of the weights in records and tables; None: that of their file, or the class of a module.
    """

    weights: str
    data: str
    tasks: tuple[Task, ...]
    test_data: str | None = None
    backbone: str | None = None
    format: str | None = None
    allow_partial: bool = False
    trust_pickle: bool = False
    stem: str | None = None
    layers: tuple[str, ...] = ()
    image_column: str | None = None
    label_column: str | None = None
    limit: int | None = None
    preprocessing: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    test_classes: Literal["same", "subset", "numbers"] = "same"
    groups: tuple[str, ...] = ()
    value_columns: tuple[str, ...] = ()
    noise: tuple[float, ...] = ()
    baselines: tuple[str, ...] = ()
    name: str | None = None

    @property
    def as_stored(self) -> bool:
        """True where the settings of all tasks decide what a file of weights may leave open, see `Kind.on_objects`."""
        return bool(self.tasks) and all(task.kind.on_objects for task in self.tasks)

    @property
    def view(self) -> WholeImages:
        """View of the images that all tasks take."""
        refuse_different_labels(task.protocol for task in self.tasks)
        # Reversed, so that of several tasks with one view the first is named in the error.
        views = {task.kind.view: task.protocol for task in reversed(self.tasks)}
        if len(views) > 1:
            first, second = list(views.values())[:-3:-1]
            raise UsageError(f"{first} cannot run together with {second}", "Run one after the other.")
        return next(iter(views), WHOLE_IMAGES)

    @property
    def reads_trained_side(self) -> bool:
        """True where a task sets sizes by those that the backbone was trained on."""
        return any(task.kind.reads_trained_side(task.settings) for task in self.tasks)

    def for_weights(self, backbone: "Backbone") -> "Request":
        """Return the request with the settings that follow from its weights, see `Kind.for_weights`."""
        settings = [task.kind.for_weights(task.settings, backbone, self.weights) for task in self.tasks]
        tasks = [dataclasses.replace(task, settings=own) for task, own in zip(self.tasks, settings, strict=True)]
        return dataclasses.replace(self, tasks=tuple(tasks))

    def as_read(self, own: Preprocessing) -> Preprocessing:
        """Return a preprocessing as the tasks read it."""
        return self.view.as_read(own, trained_side=self.reads_trained_side)


@dataclasses.dataclass(frozen=True)
class FeaturesRequest:
    """Evaluation of embeddings made elsewhere; the fields have the names and meaning of the flags."""

    features: str
    tasks: tuple[Task, ...]
    labels: str | None = None
    test_features: str | None = None
    test_labels: str | None = None
    label_column: str | None = None
    value_columns: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    name: str | None = None


def refuse_different_labels(names: Iterable[str]) -> None:
    """Refuse protocols for which no data have the right labels."""
    taken = {name: protocols.find(name).kind.takes for name in names}
    for first, second in itertools.combinations(taken, 2):
        if set(taken[first]).isdisjoint(taken[second]):
            texts = [" or ".join(kind.title for kind in taken[name]) for name in (first, second)]
            raise UsageError(
                f"{first} and {second} take labels of different kinds ({'; '.join(texts)}) and cannot run together",
                "Run them one after the other.",
            )


def make_task(
    protocol: str, overrides: Mapping[str, Any], benchmark: Benchmark | None = None, preset: Preset | None = None
) -> Task:
    """Return a protocol with its settings: the defaults, then the benchmark's, the preset's and the user's.

    What a later one changes marks the earlier ones modified; see `protocols.settings_layers`.
    """
    definition = protocols.find(protocol)
    layers = protocols.settings_layers(protocol, benchmark, preset, overrides)
    alone, _ = resolve(definition.settings, layers[:1])
    published, _ = resolve(definition.settings, layers[:2])
    settings, origins = resolve(definition.settings, layers)
    published_whole, (settings, completed) = definition.complete(published)[0], definition.complete(settings)
    differs = result_settings(settings) != result_settings(published_whole)
    # Files and folders that the settings name and the published ones do not: other images are measured.
    places = [field for field in dataclasses.fields(settings) if field.metadata.get("by_content")]
    new = {f.name for f in places if getattr(published, f.name) == f.default != getattr(settings, f.name)}
    changed = set(overrides) & {*result_settings(settings), *new}
    if benchmark is not None and (changed or differs or alone != published or benchmark.protocol != protocol):
        benchmark = dataclasses.replace(benchmark, modified=True)
    if preset is not None and differs:
        preset = dataclasses.replace(preset, modified=True)
    return Task(protocol, settings, {**origins, **completed}, benchmark, preset)


def mark_changes(task: Task, layers: tuple[str, ...], preprocessing: Mapping[str, Any]) -> Task:
    """Return the task with preset and benchmark marked modified where layers or preprocessing differ from theirs."""
    marked: dict[str, Any] = {}
    for field, published in (("preset", task.preset), ("benchmark", task.benchmark)):
        if published is None:
            continue
        # A preset fixes the values that it names; a benchmark leaves all others at their defaults.
        read = preprocessing
        if isinstance(published, Preset):
            read = {key: preprocessing.get(key) for key in published.preprocessing}
        if (published.layers and layers != published.layers) or dict(read) != published.preprocessing:
            marked[field] = dataclasses.replace(published, modified=True)
    return dataclasses.replace(task, **marked)


VERSION = 1
"""Version of written requests."""


@dataclasses.dataclass(frozen=True)
class _WrittenTask:
    """Protocol in a written request, with the settings that were given on top of its benchmark and preset."""

    protocol: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    benchmark: str | None = None
    preset: str | None = None


def written(request: Request | FeaturesRequest, run: RunSettings, title: str = "") -> dict[str, Any]:
    """Return a request with the settings of its run as plain values, without defaults and secrets of addresses.

    Args:
        request: the evaluation; its places stay as they were given.
        run: settings of the run.
        title: name of the evaluation among others (`SuiteCell.benchmark`).
    """
    tasks = []
    for task in request.tasks:
        # What a benchmark or preset says stays there: its version tells when that changes.
        given = {key: getattr(task.settings, key) for key, origin in task.origins.items() if origin == "command line"}
        benchmark = None if task.benchmark is None else task.benchmark.place or task.benchmark.name
        preset = None if task.preset is None else task.preset.place or task.preset.name
        tasks.append(changed_fields(_WrittenTask(task.protocol, given, benchmark, preset)))
    values = {"title": title, **changed_fields(request), "tasks": tasks, "run": changed_fields(run)}
    return {"version": VERSION, **{key: plain_value(value) for key, value in values.items() if value}}


def changed_fields(values: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that do not have their defaults."""
    fresh = dataclasses.MISSING
    found = {}
    for field in dataclasses.fields(values):
        default = field.default if field.default_factory is fresh else field.default_factory()
        if (value := getattr(values, field.name)) != default:
            found[field.name] = value
    return found


def read_request(content: Mapping[str, Any], where: str) -> tuple[Request | FeaturesRequest, RunSettings, str]:
    """Return a request, the settings of its run and its title from plain values, see `written`."""
    values = dict(content)
    version = values.pop("version", None)
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        raise UsageError(
            f"{where}: version should be {VERSION}, that of requests, not {version}",
            "Upgrade with: pip install --upgrade sslbench" if newer else f"Write: version: {VERSION}",
        )
    # Records are shared: they hold no logins, and without them the address would answer something else.
    if HIDDEN in str(values):
        raise UsageError(
            f"{where} does not hold the secrets of addresses, {HIDDEN} in their place", "Give the address again."
        )
    title, run = values.pop("title", ""), values.pop("run", {})
    tasks, preprocessing = values.pop("tasks", ()), values.pop("preprocessing", {})
    kind = FeaturesRequest if "features" in values else Request
    values = build_partial(kind, values, where)
    for field in dataclasses.fields(kind):
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and field.name not in {*values, "tasks"}:
            raise UsageError(f"{where}: the key '{field.name}' is missing")
    if kind is Request:
        build_partial(Preprocessing, _mapping(preprocessing, f"{where}: preprocessing"), f"{where}: preprocessing")
        values["preprocessing"] = preprocessing
        if values.get("format") is not None:
            find_format(values["format"])
    if not isinstance(tasks, list | tuple):
        raise UsageError(f"{where}: tasks should be a list", "For instance: tasks: [{protocol: knn}].")
    layers = values.get("layers", ())
    read = []
    for number, entry in enumerate(tasks, 1):
        place = f"{where}: task {number}"
        each = build(_WrittenTask, _mapping(entry, place), place)
        build_partial(protocols.find(each.protocol).settings, each.settings, f"{place}: settings")
        benchmark = load_benchmark(each.benchmark) if each.benchmark else None
        preset = load_preset(each.preset) if each.preset else None
        task = make_task(each.protocol, each.settings, benchmark, preset)
        protocols.find(each.protocol).check_settings(task.settings)
        read.append(mark_changes(task, layers, preprocessing))
    if values.get("baselines") and not any(task.kind.on_objects for task in read):
        raise UsageError(f"{where}: baselines has no effect without detection", "Leave it out.")
    # On the defaults of the class, not of configs/eval.yaml, which is another on another machine.
    settings = build(RunSettings, _mapping(run, f"{where}: run"), f"{where}: run")
    settings.check()
    return kind(tasks=tuple(read), **values), settings, str(title)


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise UsageError(f"{where} should be a mapping of names to values, not {value!r:.60}")
