"""Stability of predictions over the frames of videos of perturbed images (ImageNet-P).

Hendrycks and Dietterich, ICLR 2019, section 4.2. Frames of a perturbation called noise are compared with the first
frame, since they do not follow one another; those of the others with the frame before.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.data.images import Files
from sslbench.data.labels import single_labels
from sslbench.data.source import Source
from sslbench.data.videos import frames_of
from sslbench.errors import UsageError
from sslbench.features.array import Features
from sslbench.metrics import robustness as measures
from sslbench.metrics.answers import predicted_classes
from sslbench.metrics.intervals import Interval, Units, means
from sslbench.metrics.metric import Metric
from sslbench.paths import files_below
from sslbench.protocols.robustness.classifier import ScoredClassifier
from sslbench.protocols.robustness.settings import PERTURBED, Settings, is_perturbed, located

# Perturbations that the mean flip rate of ImageNet-P is the mean over.
MAIN = frozenset(
    (
        *("gaussian_noise", "shot_noise", "motion_blur", "zoom_blur", "snow"),
        *("brightness", "translate", "rotate", "tilt", "scale"),
    )
)
_LAYOUT = "Videos lie in PERTURBATION/CLASS/VIDEO.mp4, as those of ImageNet-P."


def open_perturbed(settings: Settings, limited: Callable[[Source], Source]) -> dict[str, Source]:
    """Return the frames of the videos of each perturbation, by the name of the set; {} without a folder of videos."""
    if not settings.perturbations:
        return {}
    root = Path(located(settings.perturbations, "perturbations"))
    if not root.is_dir():
        raise UsageError(f"perturbations={root} is not a folder", _LAYOUT)
    found: dict[str, Source] = {}
    drawn: dict[Sequence[str], Sequence[str]] = {}
    for folder in sorted(each for each in root.iterdir() if each.is_dir() and not each.name.startswith(".")):
        try:
            files = files_below(folder, ".mp4")
        except OSError as error:
            raise UsageError(f"cannot read {folder}: {error.strerror or error}") from error
        ids = sorted(file.relative_to(folder).as_posix() for file in files)
        if wrong := [name for name in ids if name.count("/") != 1]:
            raise UsageError(f"{folder / wrong[0]} does not lie in a folder of its class", _LAYOUT)
        if ids:
            labels = single_labels([os.path.dirname(name) for name in ids])  # noqa: PTH120
            whole = Source(f"{folder}", tuple(ids), labels, Files(tuple(ids), str(folder)))
            # Versions of the same videos differ in content, which may decide a draw.
            drawn.setdefault(whole.ids, limited(whole).ids)
            videos = whole.select(np.flatnonzero(np.isin(whole.ids, drawn[whole.ids])))
            # A pair of frames: noise needs the first and another one.
            found[f"{PERTURBED}{folder.name}"] = frames_of(videos, 1 + _step(folder.name, settings))
    if not found:
        raise UsageError(f"perturbations={root} has no .mp4 files", _LAYOUT)
    names = [name.removeprefix(PERTURBED) for name in found]
    if settings.reference_flips and (missing := [name for name in names if name not in settings.reference_flips]):
        raise UsageError(f"robustness: reference_flips has no value for {', '.join(missing)}")
    return found


def _noise(name: str) -> bool:
    return "noise" in name


def _step(name: str, settings: Settings) -> int:
    return 1 if _noise(name) else settings.frame_step


def perturbation_metrics(
    sets: Mapping[str, Features], classifier: ScoredClassifier, settings: Settings
) -> tuple[dict[str, Interval], dict[str, int]]:
    """Return flip probability, distance of the five first classes and flip rate, of each perturbation and their means.

    Beside them stands the number of videos of each metric.

    The intervals are over videos: those of one name are versions of one image and are kept together in the means.
    """
    scored = {name.removeprefix(PERTURBED): each for name, each in sets.items() if is_perturbed(name)}
    if not scored:
        return {}, {}
    values = {name: _values_of_videos(each, classifier, name, settings) for name, each in scored.items()}
    videos = sorted({video for each in values.values() for video in each})
    place = {video: i for i, video in enumerate(videos)}
    metrics: dict[str, Interval] = {}
    counts: dict[str, int] = {}
    overall: dict[Metric, FloatArray] = {}
    for name, each in values.items():
        rows = np.array([place[video] for video in each])
        own: dict[Metric, FloatArray] = {}
        for metric in next(iter(each.values())):
            own[metric] = np.array([of_video[metric] for of_video in each.values()])
        if settings.reference_flips:
            own[measures.FLIP_RATE] = own[measures.FLIP_PROBABILITY] / settings.reference_flips[name]
        parts = {measures.part(metric, name): column for metric, column in own.items()}
        metrics |= (found := means(parts, Units.of(len(each), None)))
        counts |= dict.fromkeys(found, len(each))
        for metric, column in own.items():
            # The mean over perturbations of means over videos, as one mean over the videos of all.
            total = overall.setdefault(metric, np.zeros(len(videos)))
            total[rows] += column * len(videos) / (len(each) * len(values))
    means_of_all = means(overall, Units.of(len(videos), None))
    return means_of_all | metrics, counts | dict.fromkeys(means_of_all, len(videos))


def _values_of_videos(
    frames: Features, classifier: ScoredClassifier, name: str, settings: Settings
) -> dict[str, dict[Metric, float]]:
    """Return the metrics of each video of a perturbation, by its id."""
    video_of = np.array([each.rpartition("/")[0] for each in frames.ids])
    order = np.argsort(video_of, kind="stable")  # ids may interleave videos whose names begin alike
    video_of = video_of[order]
    starts = np.flatnonzero(np.r_[True, video_of[1:] != video_of[:-1]])
    noise, step = _noise(name), _step(name, settings)
    found = {}
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(video_of)], strict=True):
        logits = classifier.logits(frames.x[order[start:stop]])[None]
        predicted = predicted_classes(logits[0])[None]
        own = {measures.FLIP_PROBABILITY: measures.flip_probability(predicted, noise=noise, step=step)}
        if classifier.classes >= 5:
            own[measures.TOP5_DISTANCE] = measures.ranking_distances(logits, noise=noise, step=step)[0]
        found[str(video_of[start])] = own
    return found


def perturbation_notes(sets: Mapping[str, Features]) -> list[str]:
    """Return a note where the means are not over the ten perturbations of ImageNet-P."""
    names = {name.removeprefix(PERTURBED) for name in sets if is_perturbed(name)}
    if not names or names == MAIN:
        return []
    named = ", ".join(sorted(names))
    return [f"Flips are means over {len(names)} perturbations, not over the 10 of ImageNet-P: {named}."]
