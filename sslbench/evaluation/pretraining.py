"""Evaluation of a backbone during its pretraining: kNN, spectrum of the features, online linear head."""

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.build import build
from sslbench.distributed.collectives import barrier, rank
from sslbench.errors import UsageError
from sslbench.evaluation.encode import stored_test_features
from sslbench.evaluation.preparation import prepare
from sslbench.evaluation.request import Request, make_task
from sslbench.evaluation.run import evaluate
from sslbench.evaluation.settings import RunSettings
from sslbench.features.array import Features
from sslbench.metrics import spectrum
from sslbench.names import did_you_mean
from sslbench.pretraining import PretrainRequest
from sslbench.targets.classes import Classes
from sslbench.train.online_head import OnlineHead

FEATURES = "features"
"""Name of the feature store beside the records, removed after each evaluation."""

_ROWS = 8192  # rows per block


@dataclasses.dataclass(frozen=True)
class KnnEvaluator:
    """Evaluation of weights by kNN, by RankMe and alpha-ReQ of the test features, and by an online head.

    Attributes:
        request: data and protocol; its weights are replaced by those to evaluate.
    """

    request: Request
    run: RunSettings

    def check(self, head_classes: Sequence[str] | None) -> None:
        """Open and check the evaluation data.

        `head_classes`: classes of the online head; None without one.
        """
        labels = prepare(self.request, self.run).data.test.target
        if head_classes is None:
            return
        unknown = [name for name in labels.classes if name not in head_classes]
        if not isinstance(labels, Classes) or unknown:
            reason = (
                f"class '{unknown[0]}', which the training data do not have" if unknown else "several labels per image"
            )
            raise UsageError(
                f"eval_linear=true: the images of {self.request.data} have {reason}",
                (did_you_mean(unknown[0], head_classes) + " " if unknown else "")
                + "The online head knows the classes of the training data; leave it out to evaluate by kNN alone.",
            )

    def scores(
        self, backbone: Backbone, tensors: Mapping[str, Tensor], out: Path, *, head: OnlineHead | None, command: str
    ) -> dict[str, float]:
        """Return scores by name ('knn_top1' in percent, 'rankme', ...); {} on processes other than the first.

        `head`: online head on the network with these weights; None: there is none.
        """
        fresh = build(backbone.name, seed=0)
        fresh.module.load_state_dict(dict(tensors))
        copy = dataclasses.replace(fresh, preprocessing=backbone.preprocessing)
        request, store = dataclasses.replace(self.request, weights=backbone.name), out / FEATURES
        prepared = prepare(request, self.run, backbone=copy)
        results = evaluate(prepared, store=store, out=out, command=command)
        metrics = {f"knn_{name}": metric.value for result in results for name, metric in result.metrics.items()}
        for features in stored_test_features(prepared, store):
            # With the settings of the protocol geometry; not defined where they are NaN.
            part = features.select(spectrum.drawn_rows(len(features), spectrum.SAMPLES, self.run.seed))
            rank_me, *_ = spectrum.rankme(spectrum.spectrum(part.x, centred=False))
            exponent, *_ = spectrum.alpha_req(spectrum.spectrum(part.x, centred=True), spectrum.ALPHA_RANKS)
            values = (("rankme", rank_me), ("alpha_req", exponent))
            metrics |= {name: value for name, value in values if not np.isnan(value)}
            if head is not None:
                metrics["online_top1"] = 100 * online_accuracy(head, features)
        # The others may still be reading the features that the first process removes.
        barrier()
        if rank() == 0:  # features of intermediate weights are never reused
            shutil.rmtree(store, ignore_errors=True)
        return {name: value for name, value in metrics.items() if value is not None}


@torch.no_grad()
def online_accuracy(head: OnlineHead, features: Features) -> float:
    """Return the fraction of samples whose class has the highest score of the online head."""
    device = head.classifier.mean.device
    number = torch.tensor([head.classes.index(name) for name in features.target.classes])
    truth = number[torch.from_numpy(np.asarray(features.target.values)).long()]
    right = 0
    for start in range(0, len(features), _ROWS):
        x = torch.from_numpy(np.asarray(features.x[start : start + _ROWS], dtype=np.float32))
        right += int((head.classifier(x.to(device)).argmax(dim=1).cpu() == truth[start : start + _ROWS]).sum())
    return right / len(features)


def knn_evaluator(request: PretrainRequest) -> KnnEvaluator | None:
    """Return the evaluation of a pretraining run on its `eval_data`, or None if it has none."""
    if request.eval_data is None:
        return None
    settings = request.settings
    run = RunSettings(
        device=settings.device,
        seed=settings.seed,
        floors=False,
        decoder=settings.decoder or ("reference",),
        max_pixels=settings.max_pixels,
        start_method=settings.start_method,
    )
    evaluation = Request(
        # Needs no file; `scores` puts the backbone to evaluate in its place.
        weights="pixels",
        data=request.eval_data,
        test_data=request.eval_test_data,
        tasks=(make_task("knn", {"k": (settings.eval_k,)}),),
        image_column=request.image_column,
        label_column=request.label_column,
    )
    return KnnEvaluator(evaluation, run)
