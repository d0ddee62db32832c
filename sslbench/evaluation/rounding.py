"""Difference that int8 makes to a score: the protocol on a sample of the images, in int8 and in fp32."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path

from sslbench.data.source import Source
from sslbench.data.splits import limit
from sslbench.errors import SslbenchError
from sslbench.evaluation.encode import extract_part, rows_of
from sslbench.evaluation.preparation import Prepared, one_part_of_features
from sslbench.evaluation.record import Encoded, Subject
from sslbench.evaluation.request import Task
from sslbench.evaluation.score import score
from sslbench.features.array import Features
from sslbench.features.tuples import side_by_side
from sslbench.metrics.catalog import find
from sslbench.metrics.differences import Predictions, difference
from sslbench.results import Result, Rounding
from sslbench.results.records import Scores
from sslbench.runtime.progress import Progress
from sslbench.targets import kinds

log = logging.getLogger("sslbench")

SAMPLE = {"train": 5_000, "test": 1_000}
"""Largest numbers of images that are encoded in fp32 as well."""

RESAMPLES = 300
"""Half-samples of metrics without a closed form."""

_Pair = tuple[Features, Features]


@dataclasses.dataclass(frozen=True)
class Sample:
    """Features of a sample of train and test by each layer, in int8 and in fp32."""

    int8: Mapping[str, _Pair]
    fp32: Mapping[str, _Pair]


def in_fp32(prepared: Prepared) -> Prepared:
    """Return an evaluation in int8 as one in fp32 of a stratified sample of its images."""
    run, data = dataclasses.replace(prepared.run, precision="fp32"), prepared.data
    train = limit(data.train, SAMPLE["train"], run.seed)
    test = train if data.train is data.test else limit(data.test, SAMPLE["test"], run.seed)
    return dataclasses.replace(
        prepared,
        run=run,
        data=dataclasses.replace(data, train=train, test=test, whole=None),
        backbone=dataclasses.replace(prepared.backbone, calibration=None),
    )


def encode_sample(prepared: Prepared, encoded: Encoded, store: Path, progress: Progress | None) -> Sample:
    """Return the features of a stratified sample, encoding it in fp32.

    Args:
        prepared: evaluation in int8.
        encoded: features in int8 of all images; used on the first process.
        store: folder of the feature store.
        progress: receiver of the progress.
    """
    exact = in_fp32(prepared)
    run, parts = exact.run, {"train": exact.data.train, "test": exact.data.test}
    log.info(f"int8: {len(parts['train']):,} train and {len(parts['test']):,} test images are encoded in fp32 as well")
    found = {
        name: extract_part(exact.backbone, part, exact.layers, run, store, name, progress)
        for name, part in parts.items()
    }
    if not found["train"].features:  # another process than the first
        return Sample({}, {})

    def pair(of: Mapping[str, Mapping[str, Features]], layer: str) -> _Pair:
        return rows_of(of["train"][layer], parts["train"]), rows_of(of["test"][layer], parts["test"])

    of_fp32 = {
        name: {layer: side_by_side(features, parts[name]) for layer, features in extraction.features.items()}
        for name, extraction in found.items()
    }
    of_int8 = {"train": encoded.train, "test": encoded.test}
    layers = [layer.text for layer in prepared.layers]
    return Sample({layer: pair(of_int8, layer) for layer in layers}, {layer: pair(of_fp32, layer) for layer in layers})


def rounding(subject: Subject, task: Task, sample: Sample, noisy: Source | None = None) -> Rounding:
    """Return the difference that int8 makes to a protocol's headline metric on the sample.

    Args:
        subject: subject of the measurement, at one layer.
        task: the protocol.
        sample: from `encode_sample`.
        noisy: train with other labels than in the sample; None: those of the sample.
    """
    parts = []
    for features in (sample.int8, sample.fp32):
        train, test = features[subject.layer]
        train = train if noisy is None else rows_of(train, noisy)
        parts.append(one_part_of_features(train, test, None, task))
    n_train, n_test = len(parts[0][0]), len(parts[0][1])
    try:
        (int8, int8_scores), (fp32, fp32_scores) = (score(subject, task, *pair)[""] for pair in parts)
    except SslbenchError as error:
        return Rounding(train=n_train, test=n_test, problem=f"the sample cannot be scored: {error.message}")
    metric = fp32.headline
    low, high = _interval(int8, int8_scores, fp32_scores)
    return Rounding(
        train=n_train,
        test=n_test,
        metric=metric,
        int8=int8.metrics[metric].value,
        fp32=fp32.metrics[metric].value,
        low=low,
        high=high,
    )


def _interval(result: Result, int8: Scores, fp32: Scores) -> tuple[float | None, float | None]:
    """Return the interval of the paired difference in the record's unit; None where its samples were not kept."""
    metric, unit = find(result.headline), find(result.headline).scale
    answers = [
        Predictions.of(result.seed, each.scores, each.draws, each.places, result.probabilities) for each in (int8, fp32)
    ]
    if not int8.scores.shape[1]:
        return None, None
    try:
        found = difference(
            metric.name, kinds()[result.data.labels], int8.labels, *answers, groups=int8.groups, resamples=RESAMPLES
        )
    except KeyError:  # not a metric of per-sample scores
        return None, None
    return unit * found.low, unit * found.high


def rounding_line(found: Rounding) -> str:
    """Return a sentence on the difference.

    >>> rounding_line(Rounding(train=5000, test=1000, metric="top1", int8=70.0, fp32=70.4, low=-1.1, high=0.3))
    'int8: top1 -0.40 [-1.10, 0.30] against fp32 (70.40) on a sample of 5,000 train and 1,000 test images'
    """
    sample = f"on a sample of {found.train:,} train and {found.test:,} test images"
    if found.int8 is None or found.fp32 is None:
        return f"int8: difference from fp32 unknown {sample}: {found.problem or 'the score cannot be computed'}"
    interval = "" if found.low is None or found.high is None else f" [{found.low:.2f}, {found.high:.2f}]"
    return f"int8: {found.metric} {found.int8 - found.fp32:+.2f}{interval} against fp32 ({found.fp32:.2f}) {sample}"
