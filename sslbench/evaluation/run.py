"""Runs of evaluations that are prepared, and of features that were made elsewhere."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

from sslbench.arithmetic import arithmetic
from sslbench.data.checks import samples
from sslbench.data.images import Files
from sslbench.data.source import Source
from sslbench.distributed import this_process
from sslbench.errors import UsageError
from sslbench.evaluation import overlaps
from sslbench.evaluation.estimate import announce, announce_features
from sslbench.evaluation.groups import UNNAMED, check_groups
from sslbench.evaluation.images import evaluate_on_images
from sslbench.evaluation.on_features import evaluate_on_features, measure
from sslbench.evaluation.preparation import (
    Prepared,
    by_sizes,
    check_label_kind,
    has_own_classes,
    one_part_of_features,
    tell,
    tell_samples,
)
from sslbench.evaluation.record import Subject
from sslbench.evaluation.request import FeaturesRequest, Task
from sslbench.evaluation.settings import RunSettings
from sslbench.evaluation.trainings import check_seeds
from sslbench.features.array import Features
from sslbench.features.external import FeaturePair
from sslbench.identity import digest, groups_digest
from sslbench.results import DataPart, DataUsed, Result, WeightsUsed
from sslbench.runtime.device import choose_device
from sslbench.runtime.progress import Progress
from sslbench.targets.multilabel import MultiLabel

MISSING_FLOORS = {"pixels": "the features came without images", "untrained": "the features came without a backbone"}


def describe_embeddings(
    pair: FeaturePair,
    task: Task,
    run: RunSettings,
    command: str,
    name: str | None = None,
    request: FeaturesRequest | None = None,
) -> tuple[Subject, Features, Features]:
    """Return the parts of a record that all protocols share, and the features of both parts."""
    train, test = one_part_of_features(pair.train, pair.test, pair.whole, task)
    part, how, hashes, split = task.part, pair.how, pair.fingerprints, ("train", "test")
    if part is not None and (pair.whole is not None or pair.train is pair.test):
        how, hashes, split = f"all of {pair.data}", (digest(pair.fingerprints, 32),) * 2, ("all", "all")
    elif part is not None:
        how, hashes, split = f"{part} alone", (pair.fingerprints[part == "test"],) * 2, (part, part)
    parts = [
        DataPart(name=f"{pair.data} ({part_name})", fingerprint=sha, n=len(f), n_used=len(f), classes=f.target.classes)
        for part_name, sha, f in zip(split, hashes, (train, test), strict=True)
    ]
    data = DataUsed(train=parts[0], test=parts[1], how=how, labels=train.target.name, known_by=pair.known_by)
    weights = WeightsUsed(
        name=name or pair.name,
        path=None,
        sha256=pair.features_sha256,
        format="features",
        backbone="features",
        loaded=0,
        total=0,
    )
    groups = {name: tuple(text or UNNAMED for text in column) for name, column in test.attributes.items()}
    subject = Subject(
        weights=weights,
        layer="features",
        preprocessing={},
        precision="unknown",  # arrays have no such information
        feature_dtype=str(train.x.dtype),
        data=data,
        run=run,
        command=command,
        timings={},
        groups=groups,
        members=groups_digest(test.ids, groups),
        request=request and dataclasses.replace(request, tasks=(task,)),
    )
    return subject, train, test


log = logging.getLogger("sslbench")


def evaluate(
    prepared: Prepared, *, store: Path, out: Path, command: str, progress: Progress | None = None, told: bool = False
) -> list[Result]:
    """Run every protocol on every layer and write one record each; floors are computed first.

    `told`: the time that it is estimated to take is known to the user.
    """
    if this_process().rank == 0:
        announce(prepared, store, out, told=told)
    with arithmetic(choose_device(prepared.run.device)):
        results: list[Result] = []
        if prepared.object_tasks:
            from sslbench.evaluation.on_objects import evaluate_on_objects

            results += evaluate_on_objects(prepared, out=out, command=command, progress=progress)
        results += evaluate_on_images(prepared, out=out, command=command, progress=progress)
        return results + evaluate_on_features(prepared, store=store, out=out, command=command, progress=progress)


def evaluate_features(
    pair: FeaturePair,
    tasks: Sequence[Task],
    run: RunSettings,
    *,
    out: Path,
    command: str,
    name: str | None = None,
    request: FeaturesRequest | None = None,
) -> list[Result]:
    """Evaluate embeddings made elsewhere; the floors are chance and majority only, and the record says so."""
    labels = pair.train.target
    tell_samples(labels, pair.test.target, pair.how)
    if pair.known_by == "rows":
        log.info(
            f"{pair.data} has no ids: other features with these labels in this order count as those of the same samples"
        )
    if (
        # A matrix with a single 1 in each row is probably meant as one class per sample.
        isinstance(labels, MultiLabel)
        and (labels.values > 0).sum(axis=1).max(initial=0) == 1
        and (labels.values >= 0).all()
    ):
        log.warning(f"{pair.name}: no sample has several labels; give class numbers or names for accuracies (top1)")
    check_features_for(pair, tasks, run)
    announce_features(pair, tasks, run, out)
    suspected = overlaps.find_among_features(pair.train, pair.test, run)
    results = []
    with arithmetic(choose_device(run.device)):
        for task in tasks:
            subject, train, test = describe_embeddings(by_sizes(pair, task), task, run, command, name, request)
            missing = MISSING_FLOORS if run.floors else {}
            results += [
                result for result, _ in measure(subject, task, train, test, out, missing=missing, suspected=suspected)
            ]
    return results


def check_features_for(pair: FeaturePair, tasks: Sequence[Task], run: RunSettings) -> None:
    """Check that every protocol can use features that were made elsewhere, with their labels."""
    check_groups(pair.test, tuple(pair.test.attributes), pair.name)
    check_seeds(run, tasks)
    # What needs labels and has none is refused by itself.
    if any(task.kind.needs_labels for task in tasks) and pair.train.target.labelled:
        parts = [
            Source(f"{pair.data} ({name})", part.ids, part.target, Files(part.ids))  # no image is read
            for name, part in (("train", pair.train), ("test", pair.test))
        ]
        findings = samples.check(*parts, labels=not has_own_classes(tasks), copies=False)
        samples.raise_on_errors(findings)
        tell(findings)
    for task in tasks:
        check_label_kind(task, type(pair.train.target))
        if not task.kind.on_features:
            raise UsageError(
                f"{task.protocol} takes images and cannot run on features",
                "Give --weights and --data, or use a protocol on features, such as linear.",
            )
