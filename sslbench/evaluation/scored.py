"""Scores of detections made elsewhere: a record that stands beside others on a leaderboard and in `compare`."""

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from sslbench.data.objects import ObjectSource
from sslbench.data.open import open_objects
from sslbench.data.splits import choose_test, choose_train
from sslbench.detection.evaluate import truth_of
from sslbench.detection.foreign import read_foreign
from sslbench.detection.recipe import DetectionRecipe
from sslbench.errors import DataError, UsageError
from sslbench.evaluation.detections import (
    CONSTANT_BOX,
    DetectorResult,
    compared,
    data_part,
    few_objects,
    mean_of_trainings,
    scored,
)
from sslbench.evaluation.record import unscored
from sslbench.evaluation.settings import RunSettings
from sslbench.evaluation.trainings import ONE_TRAINING
from sslbench.identity import Measurement
from sslbench.metrics.detection import Detections
from sslbench.results import DataUsed, ProtocolUsed, Result, WeightsUsed, records

PROTOCOL = "detections"
"""Name of the protocol in records: the detector was not trained here."""
VERSION = 1
_NO_TRAIN = "the data have no training part, whose median boxes it predicts"


@dataclasses.dataclass(frozen=True)
class ScoreRequest:
    """Detections to score; the fields have the names and meaning of the flags.

    Attributes:
        files: COCO result files; several are trainings of one detector with different seeds.
        metric: 'coco', 'voc07' or 'voc12'.
        oks_sigma: sigma of every keypoint, where neither the data nor COCO's names give them.
        name: name of the detector in tables; '': that of the first file.
    """

    files: tuple[Path, ...]
    data: str
    test_data: str | None = None
    metric: Literal["coco", "voc07", "voc12"] = "coco"
    name: str = ""
    oks_sigma: float = 0.0


def score_files(request: ScoreRequest, run: RunSettings, *, out: Path, command: str) -> Result:
    """Score detections made elsewhere, and write `out/detections/NAME-ID.json` with the detections beside it."""
    parts = parts_to_score(request.data, request.test_data)
    train, test = parts
    read = [read_foreign(path, test) for path in request.files]
    masks = test.target.has_masks and all(each.found.masks is not None for each in read)
    recipe = dataclasses.replace(DetectionRecipe(), metric=request.metric, masks=masks)
    recipe = dataclasses.replace(recipe, **_of_keypoints(request, [each.found for each in read], parts))
    truth = truth_of(test, recipe)
    each = []
    for number, (path, foreign) in enumerate(zip(request.files, read, strict=True)):
        own_run = dataclasses.replace(run, seed=run.seed + number)
        notes = (*foreign.notes, *few_objects(test), *([ONE_TRAINING] if len(read) == 1 else []))
        measured = _measurement(request, own_run, parts, recipe, _used(request, [path]))
        result = scored(
            unscored(measured, own_run, command, notes, headline="AP"), foreign.found, test, truth, recipe, out
        )
        each.append(DetectorResult(records.write_without_scores(result, out), {f"seed {own_run.seed}": foreign.found}))
    own = each[0]
    if len(each) > 1:
        own = mean_of_trainings(each, command, weights=_used(request, request.files))
    if train is None:
        missing = {CONSTANT_BOX: _NO_TRAIN} if run.floors else {}
        result = dataclasses.replace(own.result, missing_floors=missing)
    else:
        result = compared(own, [], train, test, recipe, run)
    return records.write_without_scores(result, out)


def _of_keypoints(
    request: ScoreRequest, found: Sequence[Detections], parts: tuple[ObjectSource | None, ObjectSource]
) -> dict[str, Any]:
    """Return the settings of keypoints, {} if they are not scored."""
    train, test = parts
    if not all(one.keypoints is not None for one in found):
        if request.oks_sigma:
            raise UsageError("--oks-sigma has no effect: the detections or the data have no keypoints", "Leave it out.")
        return {}
    skeletons = [part.target.skeleton for part in (train, test) if part is not None]
    names = [skeleton.names for skeleton in skeletons if skeleton is not None]
    if train is not None and names != [names[0]] * 2:
        raise UsageError(
            f"{train.name} does not have the keypoints of {test.name}",
            "Give the test part alone as --data; then the floors are left out.",
        )
    if test.target.skeleton is not None and request.oks_sigma:
        known = test.target.skeleton.with_sigmas(request.oks_sigma)
        if known.sigmas != (request.oks_sigma,) * len(known):
            raise UsageError("--oks-sigma has no effect: the sigmas of the keypoints are known", "Leave it out.")
    return {"keypoints": True, "oks_sigma": request.oks_sigma}


def parts_to_score(data: str, test_data: str | None = None) -> tuple[ObjectSource | None, ObjectSource]:
    """Return the training part, if there is one, and the test part, with the categories of test."""
    sources = open_objects(data)
    train: ObjectSource | None = None
    if test_data is not None:
        train, test = (choose_train(data, sources), choose_test(test_data, open_objects(test_data)))
    elif len(sources) == 1:
        test = next(iter(sources.values()))
    else:
        train, test = sources.get("train"), choose_test(data, sources)
    if not test.target.counts().any():
        raise DataError(f"{test.name} has no objects (crowds apart), so nothing can be scored")
    if train is not None:
        present = {name for name, n in zip(train.target.classes, train.target.counts(crowds=True), strict=True) if n}
        if unknown := present - set(test.target.classes):
            raise UsageError(
                f"{train.name} has the class '{min(unknown)}', which {test.name} does not have",
                "Give the test part alone as --data; then the constant box is left out.",
            )
        train = train.with_classes(test.target.classes, test.target.class_numbers)
    return train, test


def _used(request: ScoreRequest, files: Sequence[Path]) -> WeightsUsed:
    """Return the detections in the place of weights; their digest is that of the files."""
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    sha256 = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    # Detectors write their results as NAME.bbox.json and NAME.segm.json.
    name = request.name or request.files[0].stem.removesuffix(".bbox").removesuffix(".segm")
    path = str(files[0].resolve())
    return WeightsUsed(
        name=name, path=path, sha256=sha256, format="detections", backbone="detections", loaded=0, total=0
    )


def _measurement(
    request: ScoreRequest,
    run: RunSettings,
    parts: tuple[ObjectSource | None, ObjectSource],
    recipe: DetectionRecipe,
    weights: WeightsUsed,
) -> Measurement:
    """Return what is measured, in place of that of a protocol."""
    train, test = parts
    settings: dict[str, Any] = {"metric": request.metric, "masks": recipe.masks}
    settings |= {"keypoints": True, "oks_sigma": recipe.oks_sigma} if recipe.keypoints else {}
    regions = ["boxes", *(["masks"] if recipe.masks else []), *(["keypoints"] if recipe.keypoints else [])]
    return Measurement(
        weights=weights,
        layer=" and ".join(regions),
        preprocessing={},
        precision="unknown",
        feature_dtype="float32",
        protocol=ProtocolUsed(name=PROTOCOL, version=VERSION, settings=settings),
        benchmark=None,
        preset=None,
        data=DataUsed(
            train=data_part(train or test), test=data_part(test), how=f"detections on {test.name}", labels="none"
        ),
        seed=run.seed,
        seeds=1,
    )
