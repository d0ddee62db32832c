"""Interface of a protocol: every module of this package has one object `PROTOCOL = Protocol(...)`.

The name of the module is the name of the protocol; `protocols.find` loads it. mypy checks the fields and the
signatures of the functions, so a protocol is complete when it type-checks.
"""

import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from sslbench.config import result_settings
from sslbench.labels import LabelKind
from sslbench.runtime.cost import Cost

if typing.TYPE_CHECKING:
    from sslbench.arrays import FloatArray, Matrix
    from sslbench.backbones.backbone import Backbone
    from sslbench.backbones.layers import Layer
    from sslbench.data.source import Labels, Source
    from sslbench.features.array import Features
    from sslbench.features.settings import ExtractSettings
    from sslbench.preprocessing import Preprocessing
    from sslbench.results import Outcome

S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)
Part = Literal["train", "test"]

CLASSES: frozenset[LabelKind] = frozenset({"single", "multi"})
"""Label kinds of a protocol that predicts classes."""
MAPS: frozenset[LabelKind] = frozenset({"map"})
"""Label kinds of a protocol on images with a class for every pixel."""
BOXES: frozenset[LabelKind] = frozenset({"boxes"})
"""Label kinds of a protocol on images with boxes of objects."""
SIGNALS: frozenset[LabelKind] = frozenset({"signal"})
"""Label kinds of a protocol on signals of pixels, computed from any images or read from files."""
ORIENTATIONS: frozenset[LabelKind] = frozenset({"orientation"})
"""Label kinds of a protocol on orientations that are computed from any images."""
BOUNDARIES: frozenset[LabelKind] = frozenset({"boundaries"})
"""Label kinds of a protocol on boundaries that annotators drew."""
FOREGROUND: frozenset[LabelKind] = frozenset({"mask"})
"""Label kinds of a protocol on images with a mask of the foreground."""
ANY_LABELS: frozenset[LabelKind] = frozenset({"single", "multi", "value", "none"})
"""Label kinds of a protocol that needs no labels."""


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


class RunOnImages(typing.Protocol[S_contra]):
    """Signature of `run` of a protocol on images."""

    def __call__(  # noqa: PLR0913
        self,
        backbone: "Backbone",
        layers: "Sequence[Layer]",
        train: "Source",
        test: "Source",
        settings: S_contra,
        *,
        seed: int,
        engine: "ExtractSettings",
        folder: Path,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> "dict[str, Outcome]":
        """Train on train, score test; return the outcome of each row that `rows` names.

        Every process of a distributed run calls this; only the first one gets outcomes.
        """


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
    """

    class_names: str


@dataclasses.dataclass(frozen=True)
class FileClassifier:
    """Classifier of a weights file: a head of the file, or that of a finetuned network.

    Attributes:
        description: file, number of classes and layer, for notes and messages.
        layer: text of the layer whose features it takes.
        classes: names of the C classes; train and test are labelled with these.
        sha256: digest of its structure and tensors.
        logits: function from features (N, D) of that layer to (N, C).
    """

    description: str
    layer: str
    classes: tuple[str, ...]
    sha256: str
    logits: "Callable[[Matrix], FloatArray]"


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


class RunOnSets(typing.Protocol[S_contra]):
    """Signature of `run` of a protocol on several sets of images."""

    def __call__(
        self,
        train: "Features",
        test: "Features",
        sets: "Mapping[str, Features]",
        settings: S_contra,
        *,
        seed: int,
        device: str = "cpu",
        classifier: FileClassifier | None = None,
    ) -> "Mapping[str, Outcome]":
        """Learn from train, score test and the sets; return the outcome on test as '', and those of recorded sets.

        `classifier` is that of the weights file, where the settings choose it.
        """


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Shapes of the features and labels of an evaluation, from which a protocol counts its work.

    Attributes:
        train: rows of train; of a protocol on one part, those of that part.
        test: rows of test, likewise.
        width: numbers per row; of a grid of features, those of all its cells.
        classes: classes, or numbers, of the labels.
        labels: kind of the labels.
        cells: cells of a grid of features.
        regions: regions of an image, each with a descriptor of its own, in one row.
        pixels: pixels of a label map.
    """

    train: int
    test: int
    width: int
    classes: int
    labels: LabelKind = "single"
    cells: int = 1
    pixels: int = 0
    regions: int = 1


@dataclasses.dataclass(frozen=True)
class ImageWork:
    """Passes of images through a network, at the size that the backbone takes.

    Attributes:
        forward: images that are encoded.
        trained: images that the network is trained on: a pass forward and one back through it.
        rest: work that is not counted, for the reader of an estimate; '' if that is little.
    """

    forward: float
    trained: float = 0.0
    rest: str = ""


@dataclasses.dataclass(frozen=True)
class NotEstimated:
    """Reason why the work of a protocol cannot be told before it runs."""

    reason: str


UNKNOWN_COST = NotEstimated("the protocol does not state its work")
"""Default of protocols of a user's own; built-in ones state their work or a reason of their own."""


def any_settings(settings: object) -> None:
    """Accept all settings."""


def as_given(settings: S) -> tuple[S, Mapping[str, str]]:
    """Return the settings themselves: none depends on another."""
    return settings, {}


def both_parts(settings: object) -> Part | None:
    """Return None: train and test are used, whatever the settings."""
    return None


def test_part(settings: object) -> Part:
    """Return 'test', whatever the settings."""
    return "test"


def trains_own_classifier(settings: object) -> FileClassifierChoice | None:
    """Return None: the classifier of the weights file is not used, whatever the settings."""
    return None


def any_targets(
    settings: object,
    parts: "Sequence[Source]",
    *,
    engine: "ExtractSettings",
    progress: Callable[[str, int, int], None] | None = None,
) -> None:
    """Accept all targets, without reading them."""


def reads_no_size(settings: object) -> bool:
    """Return False: the sizes of the images that the backbone was trained on are not read, whatever the settings."""
    return False


def any_test(settings: object, test: "Source") -> None:
    """Accept every test part."""


@dataclasses.dataclass(frozen=True)
class OnFeatures(Generic[S]):
    """Protocol on the frozen features of one layer.

    Attributes:
        check: raises a UsageError or DataError for settings and training labels that do not go together; it is called
            before any image is decoded.
        run: from features to metrics and per-sample scores.
        label_kinds: kinds of labels that it can use; with 'none' among them it needs no labels.
        part: the only part of the data that is used with these settings; None: both.
        class_subsets: its metrics follow from its scores per class, so test data with only some of train's classes can
            be scored. Not so if they are means over several classifiers.
        own_classes: it does not learn the classes of train, so test may have others.
        check_test: raises a UsageError or DataError for settings and test samples that do not go together, before any
            image is decoded.
        check_targets: for a protocol whose targets are read from files: reads all of them before any image is decoded.
        cost: work of one run for the shapes at hand; estimates are within a factor of two.
    """

    check: "Callable[[S, Labels], None]"
    run: RunOnFeatures[S]
    cost: Callable[[S, Shapes], Cost] | NotEstimated = UNKNOWN_COST
    label_kinds: frozenset[LabelKind] = CLASSES
    part: Callable[[S], Part | None] = both_parts
    class_subsets: bool = False
    own_classes: bool = False
    check_test: "Callable[[S, Source], None]" = any_test
    check_targets: CheckTargets[S] = any_targets


@dataclasses.dataclass(frozen=True)
class OnImages(Generic[S]):
    """Protocol that takes images in place of features, with the backbone in it.

    Attributes:
        check: as for `OnFeatures`.
        rows: checks backbone, layers and settings; names of the results, for instance one per layer.
        run: from images to the outcome of each row.
        label_kinds: as for `OnFeatures`.
        trains: it trains. Otherwise it takes one part alone, and the untrained backbone beside it by default.
        part: of a protocol that does not train, the part that it takes.
        work: passes of images through the network of one run; the shapes have no width.
        reads_trained_side: a protocol on places in images sets sizes by `Preprocessing.trained_side` with these
            settings; it gets no other size of the backbone's preprocessing.
    """

    check: "Callable[[S, Labels], None]"
    rows: RowNames[S]
    run: RunOnImages[S]
    work: Callable[[S, Shapes], ImageWork] | NotEstimated = UNKNOWN_COST
    label_kinds: frozenset[LabelKind] = CLASSES
    trains: bool = True
    part: Callable[[S], Part] = test_part
    reads_trained_side: Callable[[S], bool] = reads_no_size


@dataclasses.dataclass(frozen=True)
class OnSets(Generic[S]):
    """Protocol on the frozen features of one layer, of train, test and further sets of images that its settings name.

    Attributes:
        check: as for `OnFeatures`.
        open_sets: the further sets, by name.
        run: from features to the outcome on test, and one for each set that has a record of its own.
        of_a_set: the settings that the record of a set depends on, the others at their defaults.
        label_kinds: as for `OnFeatures`.
        part: as for `OnFeatures`.
        file_classifier: choice of the classifier in the weights file; None: these settings train one.
        cost: as for `OnFeatures`, without the further sets.
    """

    check: "Callable[[S, Labels], None]"
    open_sets: OpenImageSets[S]
    run: RunOnSets[S]
    of_a_set: Callable[[S], S]
    cost: Callable[[S, Shapes], Cost] | NotEstimated = UNKNOWN_COST
    label_kinds: frozenset[LabelKind] = CLASSES
    part: Callable[[S], Part | None] = both_parts
    file_classifier: Callable[[S], FileClassifierChoice | None] = trains_own_classifier


@dataclasses.dataclass(frozen=True)
class OnObjects:
    """Protocol on annotated boxes and masks; `sslbench.evaluation.detection` prepares and runs it."""


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
    """

    version: int
    summary: str
    settings: type[S]
    kind: OnFeatures[S] | OnImages[S] | OnSets[S] | OnObjects
    check_settings: Callable[[S], None] = any_settings
    complete: Callable[[S], tuple[S, Mapping[str, str]]] = as_given
    recorded: Callable[[S], Mapping[str, Any]] = result_settings

    @property
    def needs_labels(self) -> bool:
        """False for a protocol that can use unlabelled data."""
        return isinstance(self.kind, OnObjects) or "none" not in self.kind.label_kinds
