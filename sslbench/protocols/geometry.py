"""Geometry of the features without a classifier; no labels are needed.

Number of directions in use (RankMe, effective rank, alpha-ReQ; LiDAR of groups), intrinsic dimension (TwoNN, maximum
likelihood), spread over the sphere (uniformity, feature std) and, with one label per sample, closeness of samples of
one class (alignment). One part of the data is measured; data without parts of its own is not split. None of these is
better the higher it is: RankMe and uniformity order networks of one kind and size, and a collapsed network shows in all
of them.

Version 2: intervals keep groups of samples together. Version 3: those of ranks reach as far as ranks of half of the
samples are lower.
"""

import dataclasses
from typing import Literal

import numpy as np

from sslbench.config import setting
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.metrics import spectrum
from sslbench.metrics.intervals import Units, Values
from sslbench.protocols._parts.selection import check_finite, reaching_halves
from sslbench.protocols.protocol import Cost, OnFeatures, Part, Protocol, ProtocolSettings, Shapes, any_labels
from sslbench.results import Outcome
from sslbench.solvers.neighbours import Scope, fastest_engine, nearest
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.none import Unlabelled
from sslbench.targets.numbers import Numbers

_FEWEST = 2


@dataclasses.dataclass(frozen=True)
class Settings(ProtocolSettings):
    """Settings of geometry."""

    part: Literal["train", "test"] = setting("test", "split whose features are measured")
    samples: int = setting(
        spectrum.SAMPLES,
        "largest number of samples; of more, a random subset is used (RankMe's authors use as many)",
        within="[2, inf)",
    )
    alpha_ranks: tuple[int, int] = setting(
        spectrum.ALPHA_RANKS, "first and last rank of the eigenvalues to which alpha-ReQ is fitted", within="[1, inf)"
    )

    def __post_init__(self) -> None:
        """Refuse settings that do not go together."""
        super().__post_init__()
        first, last = self.alpha_ranks
        if not first < last - 1:
            raise UsageError(f"geometry: alpha_ranks should be two ranks, at least three apart, not [{first}, {last}]")


def part(settings: Settings) -> Part:
    """Return the part that is measured."""
    return settings.part


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Measure one part.

    Metrics that are no rates; there is no score per sample and class: `scores` is (N_test, 0).
    """
    part = train if settings.part == "train" else test
    if len(part) < _FEWEST:
        raise DataError(f"geometry: there are {len(part)} {settings.part} samples, and at least {_FEWEST} are needed")
    check_finite(train, "train")
    check_finite(test, "test")
    notes = []
    if len(part) > settings.samples:
        notes.append(f"Measured on a random subset of {settings.samples} of {len(part)} samples.")
        part = part.select(np.sort(part.order[spectrum.drawn_rows(len(part), settings.samples, seed)]))
    width = part.x.shape[1]
    if len(part) < width:
        notes.append(f"There are fewer samples ({len(part)}) than features ({width}), which limits the ranks.")
    metrics = _of_spectrum(part, settings)
    # Ranks of few samples are too low; those of two halves show by how much, and the interval reaches as far.
    units = Units.of(len(part), part.groups)
    if units.number >= 2 * _FEWEST:
        metrics = reaching_halves(metrics, units, seed, lambda rows: _of_spectrum(part.select(rows), settings))
    if part.groups is not None:
        metrics["lidar"] = spectrum.lidar(part.x, part.groups)
    if len(part) > _FEWEST:
        metrics |= _dimensions(part, device)
    unit = spectrum.unit_length(part.x)
    metrics["uniformity"] = spectrum.uniformity(unit, groups=part.groups)
    metrics["feature_std"] = spectrum.feature_std(unit, groups=part.groups)
    if isinstance(part.target, Classes):
        metrics["alignment"] = spectrum.alignment(unit, part.target.values, groups=part.groups)
    return Outcome(
        metrics=metrics,
        headline="rankme",
        scores=np.zeros((len(test), 0), dtype=np.float32),
        per_class={},
        notes=tuple(notes),
        scored=len(part),
    )


def _of_spectrum(features: Features, settings: Settings) -> Values:
    centred = spectrum.spectrum(features.x, centred=True, groups=features.groups)
    return {
        "rankme": spectrum.rankme(spectrum.spectrum(features.x, centred=False, groups=features.groups)),
        "effective_rank": spectrum.effective_rank(centred),
        "alpha_req": spectrum.alpha_req(centred, settings.alpha_ranks),
    }


def _dimensions(part: Features, device: str) -> Values:
    """Return the intrinsic dimensions; samples of one group are not neighbours."""
    groups, n = part.groups, len(part)
    most = n - (1 if groups is None else int(np.unique(groups, return_counts=True)[1].max()))
    if most < _FEWEST:
        return {}
    scope = Scope(without_self=True) if groups is None else Scope(apart=groups)
    number = min(spectrum.DIMENSION_NEIGHBOURS, most)
    engine = fastest_engine(device, 2.0 * n**2 * part.x.shape[1])
    squares, _ = nearest(part.x, part.x, number, metric="l2", max_memory=1.0, scope=scope, engine=engine)
    distances = np.sqrt(np.maximum(-squares, 0))
    return {"two_nn": spectrum.two_nn(distances, groups), "mle_dimension": spectrum.mle_dimension(distances, groups)}


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Count two spectra, each with those of two halves, and the similarities of all pairs."""
    rows = float(min(shapes.train if settings.part == "train" else shapes.test, settings.samples))
    size = rows * shapes.width
    return Cost(32 * size * min(rows, shapes.width) + 6 * rows * size, 160 * size + 80 * rows**2, 32 * size)


PROTOCOL = Protocol(
    version=4,
    summary="Rank, spectrum and uniformity of frozen features; no labels are needed.",
    settings=Settings,
    kind=OnFeatures(
        any_labels, run, cost=cost, takes=(Classes, MultiLabel, Numbers, Unlabelled), part=part, own_metric=True
    ),
)
