"""What is measured when a protocol scores embeddings that were made elsewhere."""

from sslbench.evaluation.details import groups_of_features
from sslbench.evaluation.parts import one_part_of_features, only_part
from sslbench.evaluation.record import Subject
from sslbench.evaluation.request import RunSettings, Task
from sslbench.features.array import Features
from sslbench.features.external import FeaturePair
from sslbench.identity import groups_digest
from sslbench.results import DataPart, DataUsed, WeightsUsed

MISSING_FLOORS = {"pixels": "the features came without images", "untrained": "the features came without a backbone"}


def seen_of_embeddings(
    pair: FeaturePair, task: Task, run: RunSettings, command: str
) -> tuple[Subject, Features, Features]:
    """The parts of a record that all protocols share, and the features that this one learns from and scores."""
    train, test = one_part_of_features(pair.train, pair.test, pair.whole, task)
    digest = "".join(pair.fingerprints)
    part, how, hashes, split = only_part(task), pair.how, pair.fingerprints, ("train", "test")
    if part is not None and (pair.whole is not None or pair.train is pair.test):
        how, hashes, split = f"all of {pair.name}", (digest[:32],) * 2, ("all", "all")
    elif part is not None:
        how, hashes, split = f"{part} alone", (pair.fingerprints[part == "test"],) * 2, (part, part)
    parts = [
        DataPart(
            name=f"{pair.name} ({name})",
            fingerprint=sha,
            n=len(f),
            n_used=len(f),
            classes=f.labels.classes,
        )
        for name, sha, f in zip(split, hashes, (train, test), strict=True)
    ]
    data = DataUsed(train=parts[0], test=parts[1], how=how, labels=train.labels.kind)
    weights = WeightsUsed(
        name=pair.name, path=None, sha256=digest, format="features", backbone="features", loaded=0, total=0
    )
    groups = groups_of_features(test)
    subject = Subject(
        weights=weights,
        layer="features",
        preprocessing={},
        precision="unknown",  # the arrays do not say
        feature_dtype=str(train.x.dtype),
        data=data,
        run=run,
        command=command,
        timings={},
        groups=groups,
        members=groups_digest(test.ids, groups),
    )
    return subject, train, test
