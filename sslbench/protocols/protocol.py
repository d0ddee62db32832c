"""Interface of a protocol: every module of this package has one object `PROTOCOL = Protocol(...)`.

The name of the module is the name of the protocol; `protocols.find` loads it. mypy checks the fields and the
signatures of the functions, so a protocol is complete when it type-checks.
"""

import abc
import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from sslbench.backbones.views import DETECTED_IMAGES, WHOLE_IMAGES, WholeImages
from sslbench.config import refuse_outside, result_settings
from sslbench.errors import UsageError

if typing.TYPE_CHECKING:
    from sslbench.arrays import FloatArray, Matrix
    from sslbench.backbones.backbone import Backbone
    from sslbench.backbones.layers import Layer
    from sslbench.data.source import Source
    from sslbench.features.array import ExtractSettings, Features
    from sslbench.preprocessing import Preprocessing
    from sslbench.results import Outcome
    from sslbench.targets.target import Target

S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)
Part = Literal["train", "test"]


def classes_and_labels() -> "tuple[type[Target], ...]":
    """Return the usual targets: one class, or any number, per sample. Help is shown without them, and without numpy."""
    from sslbench.targets import classes, multilabel

    return classes.Classes, multilabel.MultiLabel


class RunOnFeatures(typing.Protocol[S_contra]):
    """Signature of `run` of a protocol on features."""

    def __call__(
        self, train: "Features", test: "Features", settings: S_contra, *, seed: int, device: str = "cpu"
    ) -> "Outcome":
        """Learn from train, score test; a protocol that computes on the processor ignores `device`."""


class CheckTargets(typing.Protocol[S_contra]):
    """Signature of `check_targets` of a protocol on features."""

    def __call__(
        self,
        settings: S_contra,
        parts: "Sequence[Source]",
        *,
        engine: "ExtractSettings",
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        """Read the targets of all parts that are used; raise a DataError that lists those that cannot be used."""


class RowNames(typing.Protocol[S_contra]):
    """Signature of `rows` of a protocol on images."""

    def __call__(
        self, backbone: "Backbone", layers: "Sequence[Layer]", train: "Source", settings: S_contra, *, seed: int
    ) -> tuple[str, ...]:
        """Refuse what does not go together before any image is decoded; return the names of the results."""


@dataclasses.dataclass(frozen=True)
class ImageSet:
    """Further images that a protocol scores beside test: other data, or changed versions of the test images.

    Attributes:
        source: the images, with labels of train's classes where their labels count.
        preprocessing: that they are encoded with.
        fingerprint: of all that decides them except the test images, the settings and the preprocessing.
        recorded: the set has a record of its own, in which it is the test part.
    """

    source: "Source"
    preprocessing: "Preprocessing"
    fingerprint: str
    recorded: bool = False


@dataclasses.dataclass(frozen=True)
class FileClassifierChoice:
    """Choice of the classifier in the weights file, in place of one that the protocol trains.

    Attributes:
        class_names: file with the names of its classes, one per line; '': the file's own, else names found by number.
        relabels: train and test are labelled with its classes; False: they keep theirs, and its classes need no names.
    """

    class_names: str
    relabels: bool = True


@dataclasses.dataclass(frozen=True)
class FileClassifier:
    """Classifier of a weights file: a head of the file, or that of a finetuned network.

    Attributes:
        description: file, number of classes and layer, for notes and messages.
        layer: text of the layer whose features it takes.
        classes: names of the C classes; train and test are labelled with these if `relabels`.
        sha256: digest of its structure and tensors.
        logits: function from features (N, D) of that layer to (N, C).
        relabels: train and test are labelled with `classes`.
    """

    description: str
    layer: str
    classes: tuple[str, ...]
    sha256: str
    logits: "Callable[[Matrix], FloatArray]"
    relabels: bool = True


class OpenImageSets(typing.Protocol[S_contra]):
    """Signature of `open_sets` of a protocol on several sets of images."""

    def __call__(
        self,
        settings: S_contra,
        train: "Source",
        test: "Source",
        preprocessing: "Preprocessing",
        limited: "Callable[[Source], Source]",
    ) -> "Mapping[str, ImageSet]":
        """Return the further sets by name, other data `limited`; no image is decoded.

        Raise for a location that cannot be used.
        """


class ProtocolSettings:
    """Base of the settings of a protocol: what their declarations rule out is refused for every instance.

    A `__post_init__` of a protocol's own adds conditions between its settings.
    """

    def __post_init__(self) -> None:
        """Refuse values outside their bounds."""
        refuse_outside(self, self.protocol())

    @classmethod
    def protocol(cls) -> str:
        """Return the name of the protocol, for messages: that of its module, or of the package below `protocols`."""
        inside = cls.__module__.partition(".protocols.")[2].partition(".")[0]
        return (inside or cls.__module__.rpartition(".")[2]).replace("_", "-")


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Shapes of the features and labels of an evaluation, from which a protocol counts its work.

    Attributes:
        train: rows of train; of a protocol on one part, those of that part.
        test: rows of test, likewise.
        width: numbers per row; of a grid of features, those of all its cells.
        classes: classes, or numbers, of the labels.
        target: kind of the targets.
        cells: cells of a grid of features.
        regions: regions of an image, each with a descriptor of its own, in one row.
        pixels: pixels of a label map.
        frames: images of a test sample, such as the frames of a video, on average.
    """

    train: int
    test: int
    width: int
    classes: int
    target: "type[Target]" = dataclasses.field(default_factory=lambda: classes_and_labels()[0])
    cells: int = 1
    pixels: int = 0
    regions: int = 1
    frames: float = 1.0


@dataclasses.dataclass(frozen=True)
class Cost:
    """Work of one run, counted from the shapes and the settings; only its order of magnitude is meant.

    Attributes:
        products: operations of matrix products in single precision; a multiply-add is two, in double precision four.
        passes: bytes that passes over arrays read and write.
        memory: bytes held at the peak, without features, which are read from the store page by page.
        scores: bytes of the file of scores; the half-samples of its metrics are counted from it.
        images: images that are encoded, at the size that the backbone takes.
        trained: images that the network is trained on: a pass forward and one back through it.
        rest: work that is not counted, for the reader of an estimate; '' if that is little.
        products_on_device: products are computed on the run's device, not on the processor.
        passes_on_device: bytes of `passes`, likewise.
    """

    products: float = 0.0
    passes: float = 0.0
    memory: float = 0.0
    scores: float = 0.0
    images: float = 0.0
    trained: float = 0.0
    rest: str = ""
    products_on_device: bool = False
    passes_on_device: float = 0.0


def any_labels(settings: object, train: "Target") -> None:
    """Accept all labels."""


def test_part(settings: object) -> Part:
    """Return 'test', whatever the settings."""
    return "test"


@dataclasses.dataclass(frozen=True)
class FeatureInputs(Generic[S]):
    """Input of a run on features: all that it may read.

    Attributes:
        settings: of the protocol.
        seed: of selections and intervals.
        train: features with their labels.
        test: likewise.
        sets: features of the further sets.
        classifier: that of the weights file, where the settings choose it.
        device: of the arithmetic.
    """

    settings: S
    seed: int
    train: "Features"
    test: "Features"
    sets: "Mapping[str, Features]"
    classifier: FileClassifier | None
    device: str


@dataclasses.dataclass(frozen=True)
class ImageInputs(Generic[S]):
    """Input of a run on images: all that it may read.

    Attributes:
        settings: of the protocol.
        seed: of selections, trainings and intervals.
        train: images with their labels.
        test: likewise.
        backbone: the backbone, as far as the key of a record holds it.
        layers: of the backbone.
        engine: device, precision and processes.
        folder: of checkpoints.
        progress: called with what, images done and images in all.
    """

    settings: S
    seed: int
    train: "Source"
    test: "Source"
    backbone: "Backbone"
    layers: "Sequence[Layer]"
    engine: "ExtractSettings"
    folder: Path
    progress: Callable[[str, int, int], None] | None


@dataclasses.dataclass(frozen=True)
class Kind(abc.ABC, Generic[S]):
    """Kind of protocol: the data it takes, and the way from them to its outcomes.

    Attributes:
        check: raises a UsageError or DataError for settings and training labels that do not go together; it is called
            before any image is decoded.
        takes: kinds of targets that it can use; with `Unlabelled` among them it needs no labels.
        part: the only part of the data that is used with these settings; None: both.
        view: view of the images that it takes.
        trains: it trains a network or heads by stochastic gradient descent.
        own_classes: it does not learn the classes of train, so test may have others.
        own_metric: its leading metric is its own, whatever leads the labels.
        class_subsets: its metrics follow from its scores per class, so test data with only some of train's classes can
            be scored. Not so if they are means over several classifiers.
        check_test: raises a UsageError or DataError for settings and test samples that do not go together, before any
            image is decoded.
        check_targets: for a protocol whose targets are read from files: reads all of them before any image is decoded.
        reads_trained_side: sizes are set by `Preprocessing.trained_side` with these settings, the only size of the
            backbone's preprocessing that a protocol on places in images gets.
        open_sets: the further sets of images that these settings name.
        of_a_set: the settings that the record of a further set depends on, the others at their defaults.
        file_classifier: choice of the classifier in the weights file; None: these settings train one.
        videos: it takes videos, too, whose frames are encoded one by one.
        averages_views: of videos it can average the probabilities of the classes over clips and crops.
        restored: task of a head in a file, which predicts maps, from the settings, the facts in the file and a
            preprocessing; None: it trains no heads of maps.
        cost: work of one run for the shapes at hand, without further sets, or the reason why it cannot be told; the
            shapes of a protocol on images have no width.
        on_features: a run gets features of train and test alone, which may be made elsewhere, ahead or in int8.
        needs_images: a run gets images and the backbone, and its images are encoded by itself; otherwise features.
        baseline: its score on the untrained backbone costs as much as the run itself, and is made with `baseline`.
        several_sets: it scores further sets of images beside test.
        on_objects: a run gets images with objects and trains a detector, which is its own encoder. The settings say the
            order of colours and the places of strides, which files of weights may leave open.
        of_groups: the samples of its records are groups of images, see `recorded_samples`.
        default: location that is used without --data, and its title; empty where the targets decide.
    """

    check: "Callable[[S, Target], None]"
    _: dataclasses.KW_ONLY
    # A factory: help is shown from this module, without targets and numpy.
    takes: "tuple[type[Target], ...]" = dataclasses.field(default_factory=classes_and_labels)
    part: Callable[[S], Part | None] = lambda settings: None
    view: WholeImages = WHOLE_IMAGES
    trains: bool = False
    own_classes: bool = False
    own_metric: bool = False
    class_subsets: bool = False
    check_test: "Callable[[S, Source], None]" = lambda settings, test: None
    check_targets: CheckTargets[S] | None = None
    reads_trained_side: Callable[[S], bool] = lambda settings: False
    open_sets: OpenImageSets[S] = lambda settings, train, test, preprocessing, limited: {}
    of_a_set: Callable[[S], S] = lambda settings: settings
    file_classifier: Callable[[S], FileClassifierChoice | None] = lambda settings: None
    videos: bool = False
    averages_views: bool = False
    restored: "Callable[[S, Mapping[str, Any], Preprocessing], Any] | None" = None
    cost: Callable[[S, Shapes], Cost | str] = lambda settings, shapes: "the protocol does not state its work"

    on_features: ClassVar[bool] = False
    needs_images: ClassVar[bool] = False
    baseline: ClassVar[bool] = False
    several_sets: ClassVar[bool] = False
    on_objects: ClassVar[bool] = False
    of_groups: ClassVar[bool] = False
    default: "ClassVar[tuple[str, str]]" = ("", "")

    @property
    def needs_labels(self) -> bool:
        """False for a protocol that can use unlabelled data."""
        return all(kind.labelled for kind in self.takes)

    def trains_on_labels(self, settings: S) -> bool:
        """Return True if wrong labels of train change what is learnt."""
        return False

    def refuse_weights(self, settings: S, backbone: "Backbone", weights: str) -> None:
        """Refuse weights that do not go together with the settings; `weights` are those of the user."""

    def for_weights(self, settings: S, backbone: "Backbone", weights: str) -> S:
        """Return the settings with those that follow from the weights, such as a text tower in their file."""
        return settings

    def refuse_parts(self, settings: S, train: "Source", test: "Source") -> None:
        """Refuse data that do not go together with the settings, before any image is decoded."""
        self.check_test(settings, test)

    def as_read(self, preprocessing: "Preprocessing", settings: S) -> "Preprocessing":
        """Return a preprocessing as a run reads it, which is what its key holds."""
        return self.view.as_read(preprocessing, trained_side=self.reads_trained_side(settings))

    def row_names(
        self, protocol: str, backbone: "Backbone", layers: "Sequence[Layer]", train: "Source", settings: S, *, seed: int
    ) -> tuple[str, ...]:
        """Return the names of the results, by default those of the layers.

        Args:
            protocol: its name, for messages.
            backbone: that is scored.
            layers: layers of the backbone that are scored.
            train: images to learn from.
            settings: of the protocol.
            seed: of selections.

        Raises:
            UsageError: backbone, layers and settings do not go together; no image is decoded before.
        """
        return tuple(layer.text for layer in layers)

    def recorded_samples(self, part: "Features") -> "Features":
        """Return the samples that scores and metrics are of: those of a part, or its groups, each known by one id."""
        return part

    def lacking_floors(self, *, baseline: bool) -> dict[str, str]:
        """Return the floors, 'pixels' or 'untrained', whose features are not scored beside the others -> the reason."""
        return {}

    @abc.abstractmethod
    def outcomes(self, inputs: Any) -> "Mapping[str, Outcome]":
        """Run; return the outcome of each row. Those of features have one row of the layer, '', and recorded sets."""


@dataclasses.dataclass(frozen=True)
class OnFeatures(Kind[S]):
    """Protocol on the frozen features of one layer.

    Attributes:
        run: from features to metrics and per-sample scores.
    """

    run: RunOnFeatures[S]
    videos: bool = dataclasses.field(default=True, kw_only=True)

    on_features: ClassVar[bool] = True

    def trains_on_labels(self, settings: S) -> bool:
        """Return True if it learns from labels of train."""
        return self.needs_labels and self.part(settings) is None

    def outcomes(self, inputs: FeatureInputs[S]) -> "Mapping[str, Outcome]":
        """Run on the features; those of train and test are all that there are."""
        return {"": self.run(inputs.train, inputs.test, inputs.settings, seed=inputs.seed, device=inputs.device)}


@dataclasses.dataclass(frozen=True)
class OnImages(Kind[S]):
    """Protocol that takes images in place of features, with the backbone in it.

    Attributes:
        rows: checks backbone, layers and settings; names of the results, for instance one per layer.
        run: from images to the outcome of each row.
        trains: otherwise the untrained backbone stands beside it by default.
        joins: it takes joined layers, `concat(A,B)`.
    """

    rows: RowNames[S]
    run: "Callable[[ImageInputs[S]], Mapping[str, Outcome]]"
    trains: bool = dataclasses.field(default=True, kw_only=True)
    joins: bool = dataclasses.field(default=False, kw_only=True)

    needs_images: ClassVar[bool] = True
    baseline: ClassVar[bool] = True

    def trains_on_labels(self, settings: S) -> bool:
        """Return True if it trains on classes of samples."""
        return self.trains and classes_and_labels()[0] in self.takes

    def row_names(
        self, protocol: str, backbone: "Backbone", layers: "Sequence[Layer]", train: "Source", settings: S, *, seed: int
    ) -> tuple[str, ...]:
        """Return the rows; features that only an extraction makes are refused, several scales or joined layers."""
        if backbone.preprocessing.scales != (1.0,):
            raise UsageError(f"{protocol} trains on views of one scale, so --scales has no effect on it")
        if not self.joins and (joined := [layer.text for layer in layers if layer.parts]):
            raise UsageError(f"{protocol} trains one head per layer, and {joined[0]} joins several", "Name one layer.")
        return self.rows(backbone, layers, train, settings, seed=seed)

    def outcomes(self, inputs: ImageInputs[S]) -> "Mapping[str, Outcome]":
        """Run on the images; every process of a distributed run calls this, and only the first one gets outcomes."""
        return self.run(inputs)


@dataclasses.dataclass(frozen=True)
class OnSets(Kind[S]):
    """Protocol on the frozen features of one layer, of train, test and further sets of images that its settings name.

    Attributes:
        run: from features to the outcome on test, and one for each set that has a record of its own.
    """

    run: "Callable[[FeatureInputs[S]], Mapping[str, Outcome]]"

    baseline: ClassVar[bool] = True
    several_sets: ClassVar[bool] = True

    def lacking_floors(self, *, baseline: bool) -> dict[str, str]:
        """Return the pixels, which are too few to be changed, and without `baseline` the untrained backbone."""
        lacking = {"pixels": "the images of this floor have 8 x 8 pixels, too few to be changed"}
        if not baseline:
            lacking["untrained"] = "baseline=true also encodes all sets with the untrained backbone, in twice the time"
        return lacking

    def outcomes(self, inputs: FeatureInputs[S]) -> "Mapping[str, Outcome]":
        """Run on the features of all sets."""
        return self.run(inputs)


@dataclasses.dataclass(frozen=True)
class OnObjects(Kind[S]):
    """Protocol that trains a detector around the backbone, on images with boxes or masks of objects."""

    check: "Callable[[S, Target], None]" = any_labels
    _: dataclasses.KW_ONLY
    takes: "tuple[type[Target], ...]"
    view: WholeImages = DETECTED_IMAGES
    trains: bool = True

    needs_images: ClassVar[bool] = True
    on_objects: ClassVar[bool] = True

    def outcomes(self, inputs: Any) -> "Mapping[str, Outcome]":
        """Refuse: what is found has detections in the place of scores, see `evaluation.on_objects`."""
        # Detections are no scores per sample; `evaluation.on_objects` runs detectors instead.
        raise TypeError("a detector has no scores of samples")


@dataclasses.dataclass(frozen=True)
class NeededBenchmark:
    """Benchmark without which a protocol is not run, since its settings alone are of no use.

    Attributes:
        default: benchmark that is run where no data are given.
        data: title of its data, for the user.
        content: content of a benchmark in words, for messages.
        advice: sentence on the choice of one for data of the user's.
    """

    default: str
    data: str
    content: str
    advice: str


@dataclasses.dataclass(frozen=True)
class Protocol(Generic[S]):
    """Way of measuring a backbone.

    Attributes:
        version: grows whenever a number changes for the same input.
        summary: one line for lists and help.
        settings: frozen dataclass of its settings, each a `config.setting` with default and meaning.
        kind: its functions, by the data it takes.
        check_settings: raises a UsageError for settings that are not possible, whatever the data. The command line
            calls it first of all, so it imports nothing heavy.
        complete: fills in the settings that follow from others; returns them and the origin of each of these.
        recorded: settings as records hold them.
        benchmark: one has to be named on data of the user's; None: the settings alone are enough.
    """

    version: int
    summary: str
    settings: type[S]
    kind: Kind[S]
    check_settings: Callable[[S], None] = lambda settings: None
    complete: Callable[[S], tuple[S, Mapping[str, str]]] = lambda settings: (settings, {})
    recorded: Callable[[S], Mapping[str, Any]] = result_settings
    benchmark: NeededBenchmark | None = None
