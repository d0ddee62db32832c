"""Evaluation by kNN of a backbone during its pretraining."""

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.build import build
from sslbench.distributed.collectives import barrier, rank
from sslbench.evaluation.prepare import prepare
from sslbench.evaluation.request import Request, RunSettings, make_task
from sslbench.evaluation.run import evaluate
from sslbench.pretraining import PretrainRequest

FEATURES = "features"
"""Name of the feature store beside the records, removed after each evaluation."""


@dataclasses.dataclass(frozen=True)
class KnnEvaluator:
    """Evaluation of weights by kNN.

    Attributes:
        request: data and protocol; its weights are replaced by those to evaluate.
        run: run settings.
    """

    request: Request
    run: RunSettings

    def check(self) -> None:
        """Open and check the evaluation data.

        Raises:
            SslbenchError: as `sslbench eval` would.
        """
        prepare(self.request, self.run)

    def scores(self, backbone: Backbone, tensors: Mapping[str, Tensor], out: Path, *, command: str) -> dict[str, float]:
        """Return the scores in percent, by name ('top1', 'top5', ...); {} on processes other than the first.

        Args:
            backbone: architecture and preprocessing.
            tensors: weights to evaluate.
            out: folder for the records.
            command: command line for the records.

        Raises:
            SslbenchError: as `sslbench eval` would.
        """
        fresh = build(backbone.name, seed=0)
        fresh.module.load_state_dict(dict(tensors))
        copy = dataclasses.replace(fresh, preprocessing=backbone.preprocessing)
        request, store = dataclasses.replace(self.request, weights=backbone.name), out / FEATURES
        results = evaluate(prepare(request, self.run, backbone=copy), store=store, out=out, command=command)
        barrier()
        if rank() == 0:  # features of intermediate weights are never reused
            shutil.rmtree(store, ignore_errors=True)
        metrics = {name: metric.value for result in results for name, metric in result.metrics.items()}
        return {name: value for name, value in metrics.items() if value is not None}


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
        weights="pixels",
        data=request.eval_data,
        test_data=request.eval_test_data,
        tasks=(make_task("knn", {"k": (settings.eval_k,)}),),
        image_column=request.image_column,
        label_column=request.label_column,
    )
    return KnnEvaluator(evaluation, run)
