"""Public functions of detection, which load the networks of detectors."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torchvision.models import ResNet as TorchvisionResNet

from sslbench import evaluation, paths
from sslbench.api.arguments import BOXES, folder_of, location, options_of
from sslbench.api.messages import public
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.in_memory import unwrapped, users_preprocessing
from sslbench.backbones.load import load_file
from sslbench.backbones.resnet import ResNet
from sslbench.backbones.sizes import is_timm_vit
from sslbench.detection import evaluate as detectors
from sslbench.errors import UsageError
from sslbench.library.benchmarks import load_benchmark
from sslbench.results import Results
from sslbench.weights.reading.files import WeightsFile

__all__ = ["evaluate_detection", "load_detector"]

load_detector = public(detectors.load_detector)


@public
def evaluate_detection(  # noqa: PLR0913  its data, its recipe, and what all have
    model: str | Path | nn.Module,
    train: str | Path,
    test: str | Path | None = None,
    *,
    name: str | None = None,
    recipe: str | Path = "detection/small",
    settings: Mapping[str, Any] | None = None,
    baselines: Sequence[str | Path] = (),
    out: str | Path | None = "results",
    run: evaluation.RunSettings | None = None,
    **options: Any,
) -> Results:
    """Train a detector around a backbone, score it and write the records, as `sslbench eval detection` does.

    The same call continues an interrupted run.

    Args:
        model: a weights file, 'random', or a ResNet (of sslbench or torchvision) or a vision transformer of timm, whose
            tensors are copied: the module, its gradients and the global random state stay as they are.
        train: a COCO or kwcoco manifest, a Pascal VOC tree, 'kwcoco:shapes64-128', as for `--data`.
        test: test split, as for `--test-data`; by default found in `train` or split off.
        name: name of the weights in records and tables; by default the file's, or the backbone's.
        recipe: a benchmark of detection, by its name or its YAML file.
        settings: differences from the recipe: {"iterations": 500, "freeze_at": 5}.
        baselines: 'random' for the untrained backbone, or weights files: trained alike, to stand beside.
        out: folder for the records; None: a temporary one, removed when Python ends.
        run: settings of the run, as one object.
        **options: settings by the names of the flags: device, workers, seed, backend, ...; the fields of
            `evaluation.RunSettings` and `evaluation.Request`.

    Returns:
        Results of the baselines, then that of the model; rates in percent.

    Raises:
        SslbenchError: anything that is wrong with the arguments, the weights or the data.
    """
    flags = {"backend": "program", "d2": "d2"}
    of_backend = {name: options.pop(flag) for flag, name in flags.items() if flag in options}
    task = evaluation.make_task("detection", {**(settings or {}), **of_backend}, load_benchmark(str(recipe)))
    run_settings, request_options = options_of(options, run, evaluation.Request)
    backbone = None
    if isinstance(model, nn.Module):
        backbone = _recognised_backbone(unwrapped(model), request_options.get("backbone"))
    request = evaluation.Request(
        weights=backbone.name if backbone is not None else str(model),
        data=location(train, "train", BOXES),
        tasks=(task,),
        test_data=None if test is None else location(test, "test", BOXES),
        baselines=tuple(map(str, baselines)),
        name=name,
        **request_options,
    )
    folder = folder_of(out)
    evaluation.check_writable(folder)
    prepared = evaluation.prepare(request, run_settings, backbone=backbone)
    store, command = paths.cache_dir() / "features", "sslbench.evaluate_detection(...)"
    return Results(evaluation.evaluate(prepared, store=store, out=folder, command=command))


def _recognised_backbone(module: nn.Module, name: str | None = None) -> Backbone:
    """Return a backbone with a copy of the module's tensors, recognised like those of a file.

    Args:
        module: a ResNet of sslbench or torchvision, or a vision transformer of timm; its classifier is left out.
        name: of the architecture, where the tensors do not show it.

    Raises:
        UsageError: it is something else: a detector takes the network apart, so it has to know its parts.
        WeightsError: the tensors do not fit the architecture.
    """
    if not (isinstance(module, ResNet | TorchvisionResNet) or is_timm_vit(module)):
        raise UsageError(
            f"a detector cannot be built around a {type(module).__name__}",
            "Give a ResNet of sslbench or torchvision, a vision transformer of timm, or a weights file.",
        )
    tensors = {key: tensor.detach().cpu().clone() for key, tensor in module.state_dict().items()}
    file = WeightsFile(Path(type(module).__name__), "", tensors, "torch zip")
    backbone = load_file(file, backbone=module.spec.name if isinstance(module, ResNet) else name)
    if getattr(module, "preprocessing", None) is None:
        return backbone
    return dataclasses.replace(backbone, preprocessing=users_preprocessing(backbone.name, module))
