"""Bags: a group of images with one label (a slide, a patient, a video), scored as one sample on frozen features.

- pooling=mean or max: the features of a bag's images are pooled, and classes and numbers are predicted by the solvers
  of `linear`, times to an event by Cox regression with an L2 penalty that is chosen by cross-validation.
- pooling=attention: a network with gated attention (Ilse et al. 2018, eq. 9) is trained on the images of the bags, with
  the best epoch chosen on held-out bags of train; by default as eva does (kaiko.ai 2024).

Metrics and intervals are of bags. One bag is read at a time, so bags may be as large as the memory of one.
"""

import dataclasses
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray, Matrix, rows_of_each
from sslbench.config import setting
from sslbench.data.groups import groups_by_first_sample, source_groups
from sslbench.data.source import Source
from sslbench.data.wording import counted as counted_of
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.metrics.catalog import find as find_metric
from sslbench.metrics.intervals import Units, known_mean, over_trainings
from sslbench.metrics.measure import Measure
from sslbench.metrics.summary import summarise, with_intervals
from sslbench.metrics.survival import UNO_C_INDEX, Concordance, censoring_weights, concordance
from sslbench.protocols import linear
from sslbench.protocols._parts.few_shot import seeds as seeds_of
from sslbench.protocols._parts.selection import check_features, edge_notes, folds_of, holdout_rows, no_holdout, percent
from sslbench.protocols.protocol import Cost, FeatureInputs, OnFeatures, Protocol, Shapes
from sslbench.results import Outcome
from sslbench.solvers import cox
from sslbench.solvers.logistic import mean_and_deviation, principal_axes
from sslbench.steps import counted
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import Target
from sslbench.targets.times import Times

PENALTIES = tuple(float(f"{10 ** (e / 2):.3g}") for e in range(-2, 11))
_ATTENTION = "pooling=attention"
_RESAMPLES = 1000


@dataclasses.dataclass(frozen=True)
class Settings(linear.Settings):
    """Settings of bags: those of `linear` for pooled features, of Cox regression, and of attention."""

    pooling: Literal["mean", "max", "attention"] = setting(
        "mean", "mean or max of a bag's features, or gated attention trained on them"
    )
    penalty: tuple[float, ...] = setting(
        PENALTIES,
        "times as labels: candidates of the L2 penalty of Cox regression (scikit-survival's alpha)",
        within="(0, inf)",
        filled=True,
    )
    folds: int = setting(5, "times as labels: folds of train for the choice of the penalty", within="[2, inf)")
    tau: float | None = setting(
        None,
        "times as labels: time from which Uno's index counts no event; null: all times that train can weigh",
        within="(0, inf)",
        added_later=True,
    )
    projection: int = setting(
        128, "width that features are projected to before attention; 0: none", within="[0, inf)", needs=_ATTENTION
    )
    attention: int = setting(128, "hidden width of the attention", within="[1, inf)", needs=_ATTENTION)
    hidden: tuple[int, ...] = setting(
        (128, 64),
        "widths of the layers between the pooled features and the classes",
        within="[1, inf)",
        needs=_ATTENTION,
    )
    lr: float = setting(0.001, "learning rate of AdamW, constant", within="(0, inf)", needs=_ATTENTION)
    weight_decay: float = setting(0.01, "weight decay of AdamW", within="[0, inf)", needs=_ATTENTION)
    epochs: int = setting(100, "largest number of epochs", within="[1, inf)", needs=_ATTENTION)
    stop_after: int = setting(
        20, "epochs without a better score on held-out bags after which a training ends", within="[1, inf)",
        needs=_ATTENTION,
    )  # fmt: skip
    bags_per_update: int = setting(32, "bags per update", within="[1, inf)", needs=_ATTENTION)
    trainings: int = setting(
        5,
        "trainings, whose mean is reported; training i has the seed (seed of the run) x trainings + i",
        within="[1, inf)",
        needs=_ATTENTION,
    )


def bags_of(part: Features | Source, groups: IntArray | None, name: str) -> tuple[IntArray, IntArray]:
    """Return the first row (B,) of each bag, ascending, and the bag of each row (N,); refuse bags with several labels.

    `groups`: (N,) group of each row; None: every row is a bag of its own.
    """
    n = len(part.ids)
    if groups is None:
        return np.arange(n), np.arange(n)
    _, first, bag = np.unique(groups_by_first_sample(groups), return_index=True, return_inverse=True)
    values = part.target.values
    differs = (values != values[first[bag]]).reshape(n, -1).any(axis=1)
    if differs.any():
        row = int(np.flatnonzero(differs)[0])
        one, other = int(first[bag[row]]), row
        texts = [f"'{part.ids[i]}' is {part.target.text(i)}" for i in (one, other)]
        raise DataError(
            f"{name}: the images of one bag have different labels: {' and '.join(texts)}",
            "A bag has one label, that of all its images: correct the table, or group by another column.",
        )
    return first, bag


def pooled(part: Features, pooling: str, name: str) -> Features:
    """Return the features with a row per bag, known by the id of its first image; one bag is read at a time."""
    first, bag = bags_of(part, part.groups, name)
    x = np.empty((len(first), part.x.shape[1]), np.float32)
    for number, rows in enumerate(rows_of_each(bag)):
        own = part.x[rows]
        x[number] = own.max(axis=0) if pooling == "max" else own.mean(axis=0, dtype=np.float64)
    rank = None
    if part.rank is not None:
        least = np.full(len(first), np.iinfo(np.int64).max)
        np.minimum.at(least, bag, part.rank)
        rank = np.argsort(np.argsort(least))
    return Features(x, part.target.select(first), tuple(part.ids[row] for row in first), rank=rank)


def check(settings: Settings, train: Target) -> None:
    """Refuse targets that the settings do not go together with."""
    if settings.tau is not None and not (isinstance(train, Times) and settings.tau <= train.values[:, 0].max()):
        raise UsageError(
            f"bags: tau={settings.tau:g} is of times, and these samples have {train.title}"
            if not isinstance(train, Times)
            else f"bags: the last time of train is {train.values[:, 0].max():g}, before tau={settings.tau:g}",
            "Leave tau out." if not isinstance(train, Times) else "Give a time that train reaches.",
        )
    if isinstance(train, Times) and settings.select_on == "test":
        raise UsageError(
            "bags: the penalty of Cox regression is chosen on folds of train alone", "Leave out select_on."
        )
    if settings.pooling == "attention":
        if not isinstance(train, Classes | MultiLabel):
            raise UsageError(f"bags: {_ATTENTION} predicts classes, and these samples have {train.title}", "Give mean.")
        if settings.select_on == "test":
            raise UsageError("bags: the epoch of attention is chosen on train alone", "Leave out select_on=test.")


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Learn from the bags of train, score those of test; samples without groups are bags of one image."""
    check_features(train, test)
    check(settings, train.target)
    bags = pooled(train, settings.pooling, "train"), pooled(test, settings.pooling, "test")
    if settings.pooling == "attention":
        outcome = _attend((train, test), bags, settings, seed, device)
    elif isinstance(train.target, Times):
        outcome = _survive(*bags, settings, seed=seed)
    else:
        outcome = linear.run(*bags, settings, seed=seed, device=device)
    own, other = (f"{len(bag):,}" for bag in bags)
    note = f"Samples are bags: {own} train bags of {len(train):,} images and {other} test bags of {len(test):,} images."
    return dataclasses.replace(outcome, notes=(note, *outcome.notes))


def _survive(train: Features, test: Features, settings: Settings, *, seed: int) -> Outcome:
    """Fit Cox regression with the penalty that is best on folds of train, score on test."""
    events = train.target.values[:, 1].astype(np.int64)
    if not events.any():
        raise DataError("bags: no time of train is an event, so nothing can be learned", "Check the column of events.")
    grid = sorted(settings.penalty, reverse=True)
    number = min(settings.folds, int(events.sum()))
    notes: list[str] = []
    selected: dict[str, Any] = {}
    chosen = grid[len(grid) // 2]
    if len(grid) > 1 and number < 2:
        notes.append(f"Train has one event, too few to select the penalty on; {chosen:g} was used.")
    elif len(grid) > 1:
        scores = _scores_of_folds(train, folds_of(events, number, None, train.rank), grid, settings)
        best = int(np.nanargmax(scores)) if not np.isnan(scores).all() else len(grid) // 2
        chosen = grid[best]
        selected = {"on": f"{number} folds of train", "score": float(scores[best]), "seed": seed}
        notes += edge_notes("penalty", chosen, grid)
    (risks, own), converged = _risks(train.x, train.target.values, [test.x, train.x], [chosen], settings)
    predicted = risks[0][:, None].astype(np.float32)
    kind = type(test.target)
    metrics, name, _ = summarise(kind, test.target.classes, test.target.values, predicted, seed=seed)
    of_events = censoring_weights(train.target.values, test.target.values, settings.tau)
    uno = Measure((UNO_C_INDEX,), Concordance(test.target.values, predicted.astype(np.float64), of_events).statistic)
    metrics |= with_intervals(uno, Units.of(len(test), None), seed, _RESAMPLES)
    left_out = int(test.target.values[:, 1].sum()) - int(np.count_nonzero(of_events))
    if left_out:
        notes.append(
            f"Uno's index does not count {counted_of(left_out, 'event')} that train cannot weigh or from tau on."
        )
    if np.isnan(metrics[name][0]):
        notes.append("No two test times can be ordered: none is an event before the end of another.")
    return Outcome(
        metrics=metrics,
        headline=name,
        scores=predicted,
        per_class={},
        train=concordance(train.target.values, own[0]),
        selected={"penalty": chosen} | selected,
        converged=converged,
        chance={"c_index": 0.5, UNO_C_INDEX.name: 0.5},
        notes=tuple(notes),
    )


def _scores_of_folds(
    train: Features, folds: npt.NDArray[np.int16], grid: list[float], settings: Settings
) -> FloatArray:
    """Return the mean concordance index of the held-out folds (P,) for each penalty; NaN where no fold has a pair."""
    found = []
    with counted("bags", "folds", int(folds.max()) + 1) as advance:
        for fold in range(int(folds.max()) + 1):
            out = folds == fold
            values = train.target.values
            (risks,), _ = _risks(train.x[~out], values[~out], [train.x[out]], grid, settings)
            found.append([concordance(values[out], each) for each in risks])
            advance(1)
    return np.array([known_mean(column) for column in np.transpose(found).tolist()])


def _risks(
    x: Matrix, times: FloatArray, scored: list[Matrix], penalties: list[float], settings: Settings
) -> tuple[list[FloatArray], bool]:
    """Return the log hazards (P, N) of each scored part by the fits of all penalties, largest first."""
    axes = principal_axes(x, standardise=settings.scale == "standard")
    own, converged = axes.project(x), True
    weights: FloatArray | None = None
    fits: list[FloatArray] = []
    for penalty in penalties:
        weights, done = cox.fit(own, times, penalty, start=weights)
        converged &= done
        fits.append(weights)
    return [np.stack(fits) @ axes.project(part).T for part in scored], converged


def _attend(
    parts: tuple[Features, Features], bags: tuple[Features, Features], settings: Settings, seed: int, device: str
) -> Outcome:
    """Train networks with attention on the bags of train, and report the mean of their metrics on test."""
    from sslbench.protocols._parts.gated_attention import Bags, Training, train_on_labels

    mean, std = np.zeros(parts[0].x.shape[1]), np.ones(parts[0].x.shape[1])
    if settings.scale == "standard":
        mean, std = mean_and_deviation(parts[0].x)
    stored = [Bags(part.x, rows_of_each(bags_of(part, part.groups, "")[1]), mean, std, device) for part in parts]
    labels, test = bags[0].target, bags[1].target
    seeds, found, scores, trained, epochs = seeds_of(seed, settings.trainings), [], [], [], []
    probabilities: Literal["softmax"] | None = "softmax" if isinstance(test, Classes) else None
    split = holdout_rows(labels, settings.holdout, seed, None, bags[0].rank)
    widths = settings.projection, settings.attention, settings.hidden
    training = Training(
        settings.lr, settings.weight_decay, settings.epochs, settings.bags_per_update, settings.stop_after
    )
    with counted("bags", "trainings", len(seeds)) as advance:
        for each in seeds:
            outputs, epoch = train_on_labels(stored, labels, split, widths, training, each)
            scores.append(outputs[1].astype(np.float32))
            trained.append(labels.headline(labels.values, outputs[0]))
            epochs.append(epoch)
            found.append(
                summarise(type(test), test.classes, test.values, scores[-1], seed=seed, probabilities=probabilities)
            )
            advance(1)
    on = f"held-out {percent(settings.holdout)} of train"
    notes = [f"The metrics are means over {len(seeds)} trainings."]
    if split is None:
        notes.append(f"{no_holdout(None)} to select the epoch on; the last one was used.")
    return Outcome(
        metrics={
            name: over_trainings([one[0][name] for one in found], find_metric(name).bounds) for name in found[0][0]
        },
        headline=found[0][1],
        scores=scores[0],
        draws=tuple(scores) if len(scores) > 1 else (),
        per_class={name: known_mean([one[2][name] for one in found]) for name in test.classes},
        train=known_mean(trained),
        selected={"epochs": epochs, "seeds": seeds} | ({"on": on} if split is not None else {}),
        notes=tuple(notes),
        probabilities=probabilities,
    )


@dataclasses.dataclass(frozen=True)
class _OnBags(OnFeatures[Settings]):
    """Protocol on groups of samples."""

    of_groups: ClassVar[bool] = True
    default: ClassVar[tuple[str, str]] = ("sklearn:digit-bags", "bags of the handwritten digits")

    def recorded_samples(self, part: Features) -> Features:
        """Return the bags, known by the ids of their first images."""
        return pooled(part, "mean", "the data")

    def refuse_parts(self, settings: Settings, train: Source, test: Source) -> None:
        """Refuse images without groups, and bags with several labels, before any image is decoded."""
        for part in (train, test):
            _refuse_ungrouped(bool(part.grouped_by), part.name)
            bags_of(part, source_groups(part), part.name)

    def trains_on_labels(self, settings: Settings) -> bool:
        """Return False: wrong labels of single images would leave no bag with one label."""
        return False

    def outcomes(self, inputs: FeatureInputs[Settings]) -> dict[str, Outcome]:
        """Run on the features of the images."""
        _refuse_ungrouped(inputs.train.groups is not None, "train")
        return {"": self.run(inputs.train, inputs.test, inputs.settings, seed=inputs.seed, device=inputs.device)}


def _refuse_ungrouped(grouped: bool, name: str) -> None:
    if not grouped:
        raise UsageError(
            f"bags: no two images of {name} are of one bag",
            "Name the column of bags behind the table: 'tiles.csv?group=slide', of features 'labels.csv?group=slide'.",
        )


def cost(settings: Settings, shapes: Shapes) -> Cost | str:
    """Count the reading of the features, and the fits of `linear` or of Cox regression, with as many bags as images."""
    rows, read = float(shapes.train), 4.0 * shapes.train * shapes.width
    if settings.pooling == "attention":
        inner, passes = settings.projection or shapes.width, settings.trainings * settings.epochs
        weights = shapes.width * settings.projection + 2 * inner * settings.attention
        return Cost(6 * rows * weights * passes, read * passes, 2.0**15 * 24 * inner)
    if issubclass(shapes.target, Times):
        rank, steps = min(rows, shapes.width), 5 * (len(settings.penalty) * settings.folds + 1)
        return Cost(steps * (4 * rows * rank**2 + rank**3), 2 * read, 24 * rows * rank)
    return linear.cost(settings, shapes)


PROTOCOL = Protocol(
    version=1,
    summary="Groups of images as samples (slides, patients, videos): pooled features or gated attention.",
    settings=Settings,
    kind=_OnBags(check, run, cost=cost, takes=(Classes, MultiLabel, Numbers, Times)),
)
