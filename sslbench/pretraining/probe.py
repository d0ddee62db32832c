"""kNN on held-out data while a backbone is being trained."""

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from sslbench import evaluation
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.build import build
from sslbench.distributed.collectives import barrier, rank
from sslbench.pretraining.settings import PretrainRequest

FEATURES = "features"
"""Folder beside the records that is removed after each evaluation."""


def evaluate_backbone(
    backbone: Backbone, tensors: Mapping[str, Tensor], request: PretrainRequest, out: Path, *, command: str
) -> dict[str, float]:
    """Scores of kNN, in percent, by their names ('top1', 'top5', ...); {} on processes other than the first.

    Args:
        backbone: the architecture and its preprocessing.
        tensors: the weights to score.
        request: says on what data.
        out: folder for the records.
        command: for the records.

    Raises:
        SslbenchError: as `sslbench eval` would.
    """
    fresh = build(backbone.name, seed=0)
    fresh.module.load_state_dict(dict(tensors))
    copy = dataclasses.replace(fresh, preprocessing=backbone.preprocessing)
    asked, run = _asked(request, backbone.name)
    store = out / FEATURES
    results = evaluation.evaluate(evaluation.prepare(asked, run, backbone=copy), store=store, out=out, command=command)
    barrier()
    if rank() == 0:  # features of weights that change all the time are of no use later
        shutil.rmtree(store, ignore_errors=True)
    metrics = {name: metric.value for result in results for name, metric in result.metrics.items()}
    return {name: value for name, value in metrics.items() if value is not None}


def checkable(request: PretrainRequest) -> None:
    """Opens the evaluation data and checks it, so that a mistake in it shows before hours of training.

    Raises:
        SslbenchError: as `sslbench eval` would.
    """
    if request.eval_data is None:
        return
    evaluation.prepare(*_asked(request, "pixels"))


def _asked(request: PretrainRequest, weights: str) -> tuple[evaluation.Request, evaluation.RunSettings]:
    settings = request.settings
    asked = evaluation.Request(
        weights=weights,
        data=str(request.eval_data),
        test_data=request.eval_test_data,
        tasks=(evaluation.make_task("knn", {"k": (settings.eval_k,)}),),
        image_column=request.image_column,
        label_column=request.label_column,
    )
    return asked, evaluation.RunSettings(
        device=settings.device,
        seed=settings.seed,
        floors=False,
        decoder=settings.decoder or ("reference",),
        max_pixels=settings.max_pixels,
        start_method=settings.start_method,
    )
