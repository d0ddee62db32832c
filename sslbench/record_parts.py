"""What a result record is made of: plain values, as they stand in its JSON file."""

import dataclasses
from typing import Any, Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightsUsed:
    """The weights that were measured.

    Attributes:
        name: as the user calls them, normally the file name.
        sha256: of the tensors as they were given to the backbone, so a copy of the file in another format agrees.
        format: whose key names the file has ('torchvision', 'vissl', ...).
        loaded: how many of the backbone's `total` tensors came from the file.
        partial: the user allowed tensors to be missing.
        untrained: the backbone was left as it is initialised.
        changed: what loading did to tensors of the file, in words: another dtype, positions resized, a stem mapped to
            another number of channels.
        code: what besides tensors decides the forward pass (`Backbone.identity`): timm's version, digests of a user's
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProtocolUsed:
    """The protocol with all its settings, also those left at their default; `code` is a digest of a user's own."""

    name: str
    version: int
    settings: dict[str, Any]
    code: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkUsed:
    """The named benchmark.

    Attributes:
        sha256: of its resolved text.
        modified: the user overrode some of it.
        metric: that it puts first; empty: the usual one of its protocol.
    """

    name: str
    version: int
    sha256: str
    modified: bool = False
    metric: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PresetUsed:
    """The published way that the protocol was run in; `modified` says that the user's settings came on top of it."""

    name: str
    version: int
    source: str
    sha256: str
    modified: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataPart:
    """One side of the data: `n` samples were there, `n_used` of them could be read and were used.

    Attributes:
        groups: how many groups (videos, patients, images that crops are from) the samples used belong to; None if every
            sample stands for itself. Choices and intervals keep groups together.
    """

    name: str
    fingerprint: str
    n: int
    n_used: int
    classes: tuple[str, ...]
    groups: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unreadable:
    """One image that was left out because it cannot be read."""

    id: str
    path: str
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataUsed:
    """What was trained and tested on; `how` is one sentence about where the split comes from."""

    train: DataPart
    test: DataPart
    how: str
    labels: Literal["single", "multi", "value", "none"]
    unreadable: tuple[Unreadable, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """A value (percent for rates) with its 95 % interval over `n` test samples; null where not computable."""

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """The headline metric on the test samples of one group; `n` of the metric says how many they are."""

    name: str
    metric: Metric


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReferenceCompared:
    """A published value for these weights on this benchmark, and the distance of the measured one from it.

    Attributes:
        weights: as the source calls them.
        metric: that is compared.
        published: value in the source.
        source: of it.
        tolerance: largest distance of a correct run.
        difference: measured less published; None where nothing was measured.
        within: whether the difference is within the tolerance.
    """

    weights: str
    metric: str
    published: float
    source: str
    tolerance: float
    difference: float | None
    within: bool

    def line(self) -> str:
        """Return one line for people: 'AP50 82.1, published 82.4 (MoCo v2): -0.30, within 0.5'."""
        if self.difference is None:
            return f"{self.metric} is missing, published {self.published:g} ({self.weights}, {self.source})"
        verdict = "within" if self.within else "NOT within"
        return (
            f"{self.metric} {self.published + self.difference:.2f}, published {self.published:g} ({self.weights}, "
            f"{self.source}): {self.difference:+.2f}, {verdict} the tolerance of {self.tolerance:g}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overlaps:
    """Test images that are suspected to be in train too; the record's own metrics are of all of them.

    Attributes:
        n: how many.
        exact: those of them whose content is the same; the others look alike.
        by: what the images were compared by.
        without: the headline metric on the other test images; None where there are none, or the metric is not one of
            per-sample scores.
        problem: why images that look alike could not be told; empty if they could.
        pairs_file: name of the CSV beside the record that lists the pairs; None if there are none.
    """

    n: int
    exact: int
    by: str
    without: Metric | None = None
    problem: str = ""
    pairs_file: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """What one stage of the work cost, at most so much memory being in use at once; None where that is not known.

    Attributes:
        ram_mib: of this process, all of it, in MiB; processes that decode images come on top.
        gpu_mib: that torch had allocated on the CUDA device.
    """

    seconds: float
    ram_mib: float | None = None
    gpu_mib: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """What the measurement cost; not part of its identity.

    Attributes:
        parameters: of the backbone, without a classifier.
        gflops: 10^9 floating-point operations of the backbone for one image, a multiply-add counting as two.
        images_per_second: encoded, decoding included; None when the features were stored already.
        stages: 'extract' (of train and test, all layers) and the protocol's name.
    """

    parameters: int | None = None
    gflops: float | None = None
    images_per_second: float | None = None
    stages: dict[str, Stage] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hardware:
    """What it ran on; not part of the measurement's identity."""

    device: str
    cpu: str
    threads: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """Requested parts of a record beside its metrics; not part of the measurement's identity.

    Attributes:
        groups: column that the metrics are broken down by -> digest of the group of every test sample.
        overlaps: test images that are in train too are looked for.
        floors: chance, majority, the pixels and the untrained backbone stand beside the metrics.
        baseline: protocols that train on images train on the untrained backbone too.
    """

    groups: dict[str, str] = dataclasses.field(default_factory=dict)
    overlaps: bool = True
    floors: bool = True
    baseline: bool = False
