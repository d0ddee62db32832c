"""Parts of a record: weights, protocol, data, metrics, costs, machine."""

import dataclasses
import math
from typing import Any, Literal

from sslbench.names import did_you_mean

KnownBy = Literal["ids", "rows", "features"]
"""Identity of samples of features made elsewhere, see `DataUsed`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightsUsed:
    """Evaluated weights.

    Attributes:
        name: name given by the user, normally the file name.
        source: address that the file was fetched from, with its commit on the Hub; empty for local files.
        sha256: digest of the tensors as given to the backbone, equal for copies of the file in other formats.
        format: format of the key names in the file ('torchvision', 'vissl', ...).
        loaded: number of the backbone's `total` tensors that came from the file.
        partial: True if the user allowed missing tensors.
        untrained: True if the backbone is as initialised.
        changed: changes of the file's tensors by loading, in words: another dtype, positions resized, a stem mapped to
            another number of channels.
        code: identity of the forward pass besides tensors (`Backbone.identity`): timm's version, digests of a user's
            module; empty for sslbench's own networks and in older records.
    """

    name: str
    path: str | None
    sha256: str
    format: str
    backbone: str
    loaded: int
    total: int
    partial: bool = False
    untrained: bool = False
    changed: tuple[str, ...] = ()
    code: dict[str, str] = dataclasses.field(default_factory=dict)
    source: str = ""

    @property
    def is_floor(self) -> bool:
        """True if the backbone is untrained, or stands for the images' own pixels."""
        return self.untrained or self.backbone.partition(":")[0] == "pixels"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProtocolUsed:
    """Protocol with all its settings, defaults included; `code` is the digest of a user's own protocol."""

    name: str
    version: int
    settings: dict[str, Any]
    code: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkUsed:
    """Named benchmark.

    Attributes:
        sha256: digest of its resolved text.
        modified: True if the user overrode some of it.
        metric: its leading metric; empty: that of its protocol.
    """

    name: str
    version: int
    sha256: str
    modified: bool = False
    metric: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PresetUsed:
    """Preset that the protocol was run by; `modified` by further settings of the user."""

    name: str
    version: int
    source: str
    sha256: str
    modified: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataPart:
    """Training or test data: `n` samples, of which `n_used` could be read and were used.

    Attributes:
        groups: number of groups (videos, patients, images that crops are from) of the used samples; None if every
            sample stands for itself. Hold-outs and intervals keep groups together.
    """

    name: str
    fingerprint: str
    n: int
    n_used: int
    classes: tuple[str, ...]
    groups: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExcludedImage:
    """Image that was left out because it cannot be read."""

    id: str
    path: str
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataUsed:
    """Training and test data; `how` is one sentence about the origin of the split.

    Attributes:
        further: other sets of images that decide the metrics: changed versions of test, further test sets.
        train_part: part of train that a network was finetuned on, '10 % of train'; empty: all of it. The result's layer
            names it too.
        label_noise: share of the train labels that were replaced by wrong ones (--noise).
        split_seed: seed of the split, where it is another than that of the training (`Training`).
        known_by: identity of the samples; None: content and labels of the images. Of features made elsewhere: 'ids' and
            labels, or labels of the 'rows' in their order, which do not tell other images with the same labels apart,
            or the 'features', where there are no labels.
    """

    train: DataPart
    test: DataPart
    how: str
    labels: str
    unreadable: tuple[ExcludedImage, ...] = ()
    further: tuple[DataPart, ...] = ()
    train_part: str = ""
    label_noise: float = 0.0
    split_seed: int | None = None
    known_by: KnownBy | None = None

    @property
    def noise_text(self) -> str:
        """Label noise as the end of a title: ', 40 % label noise'; '' without any."""
        return f", {100 * self.label_noise:g} % label noise" if self.label_noise else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricValue:
    """Value (percent for rates) with its 95 % interval over `n` test samples; null where not computable.

    >>> metric = MetricValue(value=91.6437, low=90.38, high=92.77)
    >>> print(metric, float(metric))
    91.64 [90.38, 92.77] 91.6437
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int | None = None

    def __float__(self) -> float:
        """Return the value; NaN where it is not computable."""
        return math.nan if self.value is None else self.value

    def __str__(self) -> str:
        """Return the value with its interval, if it has one."""
        if self.value is None:
            return "n/a"
        if self.low is None or self.high is None:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Metrics(dict[str, MetricValue]):
    """Metrics of a record by name; a name that it lacks is answered with those that it has.

    >>> Metrics({"mAP": MetricValue(value=50.0)})["map"]
    Traceback (most recent call last):
    KeyError: "no metric 'map'; there are: mAP"
    """

    def __missing__(self, name: str) -> MetricValue:
        near = did_you_mean(name, self)
        hint = f" {near}" if near.startswith("Did you mean") else ""
        raise KeyError(f"no metric '{name}'; there are: {', '.join(self) or 'none'}{hint and '.'}{hint}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """One of several trainings that differ in their seed; it has a record of its own.

    Attributes:
        record_file: name of its file, beside the record of all.
    """

    seed: int
    record: str
    record_file: str
    metrics: dict[str, float | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Range:
    """Lowest and highest value of a metric over several trainings; null where not computable."""

    lowest: float | None
    highest: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupValue:
    """Headline metric on the test samples of one group; `n` of the metric is their number."""

    name: str
    metric: MetricValue


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReferenceCompared:
    """Published value for these weights on this benchmark, and its difference from the measured one.

    Attributes:
        published: value in the source.
        tolerance: largest difference of a correct run.
        difference: measured less published; None where nothing was measured.
    """

    weights: str
    metric: str
    published: float
    source: str
    tolerance: float
    difference: float | None
    within: bool

    def line(self) -> str:
        """Return one line of text: 'AP50 82.1, published 82.4 (MoCo v2): -0.30, within 0.5'."""
        if self.difference is None:
            return f"{self.metric} is missing, published {self.published:g} ({self.weights}, {self.source})"
        verdict = "within" if self.within else "NOT within"
        return (
            f"{self.metric} {self.published + self.difference:.2f}, published {self.published:g} ({self.weights}, "
            f"{self.source}): {self.difference:+.2f}, {verdict} the tolerance of {self.tolerance:g}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overlaps:
    """Test images suspected to be in train too; the record's metrics include them.

    Attributes:
        exact: number of those with the same content; the others look alike.
        by: method of comparison.
        without: headline metric on the other test images; None where there are none, or the metric is not one of
            per-sample scores.
        problem: reason why images that look alike could not be found; empty if they could.
        pairs_file: name of the CSV beside the record that lists the pairs; None if there are none.
    """

    n: int
    exact: int
    by: str
    without: MetricValue | None = None
    problem: str = ""
    pairs_file: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """Time and peak memory of one stage; None where not known.

    Attributes:
        ram_mib: peak memory of this process in MiB, without those that decode images.
        gpu_mib: peak memory that torch allocated on the CUDA device, in MiB.
    """

    seconds: float
    ram_mib: float | None = None
    gpu_mib: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of the measurement; not part of its identity.

    Attributes:
        parameters: number of parameters of the backbone, without a classifier.
        gflops: 10^9 floating-point operations of the backbone for one image, a multiply-add counting as two.
        images_per_second: speed of encoding, decoding included; None when the features were stored already.
        stages: 'extract' (of train and test, all layers) and the protocol's name.
    """

    parameters: int | None = None
    gflops: float | None = None
    images_per_second: float | None = None
    stages: dict[str, Stage] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hardware:
    """Hardware of the run; not part of the measurement's identity.

    Attributes:
        float32: rounding of float32 arithmetic: 'ieee' (exact to float32), 'tf32' or 'bf16'; '' in older records, whose
            trainings on a GPU took cuDNN's default, tf32.
    """

    device: str
    cpu: str
    threads: int
    float32: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkingFolder:
    """Folder that a command ran in, and its state in git; not part of the measurement's identity.

    Attributes:
        commit: the commit that is checked out; None outside git.
        changed: True if files that git tracks differ from the commit; None outside git.
    """

    path: str
    commit: str | None = None
    changed: bool | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestedParts:
    """Requested parts of a record beside its metrics; not part of the measurement's identity.

    Attributes:
        groups: column of the breakdown -> digest of the group of every test sample.
        overlaps: True if test images that are in train too are searched for.
        floors: True if chance, majority, pixels and the untrained backbone stand beside the metrics.
        baseline: True if protocols that train on images also train on the untrained backbone.
        against: ids of the records that a detector is compared with.
    """

    groups: dict[str, str] = dataclasses.field(default_factory=dict)
    overlaps: bool = True
    floors: bool = True
    baseline: bool = False
    against: tuple[str, ...] = ()
