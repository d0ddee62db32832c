"""kNN on held-out data while a backbone is being trained."""

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
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
    """Scores of kNN, in percent, by their names ('top1', 'top1_low', 'top1_high', ...); {} on other processes.

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
    settings = request.settings
    run = evaluation.RunSettings(device=settings.device, seed=settings.seed, floors=False)
    asked = evaluation.Request(
        weights=backbone.name,
        data=str(request.eval_data),
        test_data=request.eval_test_data,
        tasks=(evaluation.make_task("knn", {"k": (settings.eval_k,)}),),
        image_column=request.image_column,
        label_column=request.label_column,
    )
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
    run = evaluation.RunSettings(device=request.settings.device, seed=request.settings.seed, floors=False)
    asked = evaluation.Request(
        weights="pixels",
        data=request.eval_data,
        test_data=request.eval_test_data,
        tasks=(evaluation.make_task("knn", {"k": (request.settings.eval_k,)}),),
        image_column=request.image_column,
        label_column=request.label_column,
    )
    with torch.no_grad():
        evaluation.prepare(asked, run)
