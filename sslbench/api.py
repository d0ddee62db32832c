"""Public functions: the commands of the command line, from Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from sslbench import evaluation, paths, pretraining
from sslbench.backbones.backbone import Backbone, copied
from sslbench.backbones.export import ExportReport
from sslbench.backbones.in_memory import from_module, users_preprocessing
from sslbench.backbones.load import load_backbone
from sslbench.config import build
from sslbench.detection.predict import load_detector
from sslbench.errors import SslbenchError, UsageError
from sslbench.evaluation import detection
from sslbench.evaluation.detection.request import from_user
from sslbench.evaluation.export import export_network
from sslbench.evaluation.prediction import PredictionCounts
from sslbench.evaluation.prediction import predict as write_predictions
from sslbench.evaluation.pretraining import knn_evaluator
from sslbench.evaluation.suite import SuiteCell, run_cells
from sslbench.features.array import Features
from sslbench.leaderboard import Board, table
from sslbench.leaderboard.compare import Comparison
from sslbench.leaderboard.compare import compare as compare_results
from sslbench.leaderboard.over_training import TrainingCurve, training_curves, write_training_curves
from sslbench.library.benchmarks import load_benchmark
from sslbench.library.recipes import compose_pretraining
from sslbench.results import Result, records
from sslbench.train import checkpoints
from sslbench.train.observers.always import always

__all__ = [
    "compare",
    "evaluate",
    "evaluate_checkpoints",
    "evaluate_detection",
    "export",
    "extract_features",
    "load_backbone",
    "load_detector",
    "make_leaderboard",
    "predict",
    "pretrain",
]


def evaluate(
    model: str | Path | nn.Module,
    train: str | Path,
    test: str | Path | None = None,
    *,
    protocols: str | Sequence[str] = ("knn", "linear"),
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    out: str | Path = "results",
    run: evaluation.RunSettings | None = None,
    **request: Any,
) -> list[Result]:
    """Score a backbone and write the records, as `sslbench eval` does.

    Args:
        model: a weights file, 'random', 'pixels', or any `nn.Module` that takes (B, 3, H, W). A module is copied: its
            mode, device, gradients and values do not change, nor does the global random state.
        train: data, as for `--data`.
        test: test split, as for `--test-data`; by default found in `train` or split off.
        protocols: names, or a single one; each runs on the features of one pass over the images.
        settings: protocol -> settings other than its defaults.
        out: folder for the records.
        run: device, precision, batch size, seed, ...
        **request: other fields of `evaluation.Request`: backbone, format, layers, limit, preprocessing, ...

    Returns:
        One result per layer and protocol; rates in percent.

    Raises:
        SslbenchError: anything that is wrong with the arguments, the weights or the data.

    Example:
        >>> import tempfile
        >>> out = tempfile.mkdtemp()
        >>> run = evaluation.RunSettings(device="cpu", floors=False, overlaps=False)
        >>> (result,) = evaluate("pixels:8", "sklearn:digits", protocols=["knn"], out=out, run=run)
        >>> result.protocol.name, round(result.metrics["top1"].value)
        ('knn', 99)
    """
    run = run or evaluation.RunSettings()
    names = [protocols] if isinstance(protocols, str) else protocols
    tasks = tuple(evaluation.make_task(name, (settings or {}).get(name, {})) for name in names)
    request_fields = {**request, "test_data": None if test is None else str(test)}
    backbone = None
    if isinstance(model, nn.Module):
        backbone = _copied(model, request_fields)
    weights = backbone.name if backbone is not None else str(model)
    evaluation_request = evaluation.Request(weights=weights, data=str(train), tasks=tasks, **request_fields)
    evaluation.check_writable(Path(out))
    prepared = evaluation.prepare(evaluation_request, run, backbone=backbone)
    store = paths.cache_dir() / "features"
    return evaluation.evaluate(prepared, store=store, out=Path(out), command="sslbench.evaluate(...)")


def evaluate_checkpoints(
    folder: str | Path,
    train: str | Path,
    test: str | Path | None = None,
    *,
    protocols: str | Sequence[str] = ("knn",),
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    out: str | Path = "results",
    run: evaluation.RunSettings | None = None,
    **request: Any,
) -> list[TrainingCurve]:
    """Score every checkpoint of a pretraining run, as `sslbench eval knn --weights RUN/checkpoints` does.

    Records, a CSV and a PNG of the scores over training are written to `out`; records that are there already are not
    computed again.

    Args:
        folder: the run's folder of checkpoints.
        train: as for `evaluate`.
        test: as for `evaluate`.
        protocols: as for `evaluate`.
        settings: as for `evaluate`.
        out: folder for the records.
        run: device, precision, batch size, seed, ...
        **request: other fields of `evaluation.Request`.

    Returns:
        A curve per protocol and layer.

    Raises:
        UsageError: the folder has no checkpoints.
        SslbenchError: a checkpoint cannot be evaluated; the records of the others are written.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> tiny = {"backbone": "resnet18w0.125", "epochs": 1, "batch_size": 16, "method.projector": [32, 16]}
        >>> tiny |= {"augment": "digits", "augment.size": 16, "workers": 0, "device": "cpu"}
        >>> tiny |= {"schedule.warmup_epochs": 0, "save_every": "1 update"}
        >>> _ = pretrain("simclr", "sklearn:digits", f"{folder}/a", settings=tiny, limit=32)
        >>> run = evaluation.RunSettings(device="cpu", workers=0, floors=False, overlaps=False)
        >>> (curve,) = evaluate_checkpoints(f"{folder}/a/checkpoints", "sklearn:digits", out=folder, run=run, limit=200)
        >>> [point.at.step for point in curve.points], curve.first.protocol.name
        ([1, 2], 'knn')
    """
    files = [str(path) for path in checkpoints.files(Path(folder))]
    if not files:
        raise UsageError(f"{folder} has no checkpoints of a pretraining run", "Give RUN/checkpoints.")
    names = [protocols] if isinstance(protocols, str) else protocols
    tasks = tuple(evaluation.make_task(name, (settings or {}).get(name, {})) for name in names)
    request_fields = {**request, "test_data": None if test is None else str(test)}
    cells = [
        SuiteCell(file, " ".join(names), (evaluation.Request(file, str(train), tasks, **request_fields),))
        for file in files
    ]
    evaluation.check_writable(Path(out))
    found, holes = run_cells(
        cells,
        run or evaluation.RunSettings(),
        store=paths.cache_dir() / "features",
        out=Path(out),
        command="sslbench.evaluate_checkpoints(...)",
    )
    if holes:
        raise SslbenchError(f"{holes[0].weights}: {holes[0].reason}", holes[0].remedy)
    curves = training_curves([(checkpoints.position(Path(file)), own) for file, own in found.items()])
    if curves:
        write_training_curves(curves, checkpoints.run_name(Path(folder)), Path(out))
    return curves


def evaluate_detection(
    model: str | Path | nn.Module,
    train: str | Path,
    test: str | Path | None = None,
    *,
    recipe: str | Path = "detection/small",
    settings: Mapping[str, Any] | None = None,
    baselines: Sequence[str | Path] = (),
    out: str | Path = "results",
    run: evaluation.RunSettings | None = None,
    **request: Any,
) -> list[Result]:
    """Train a detector around a backbone, score it and write the records, as `sslbench eval detection` does.

    The same call continues an interrupted run.

    Args:
        model: a weights file, 'random', or a ResNet (of sslbench or torchvision) or a vision transformer of timm, whose
            tensors are copied: the module, its gradients and the global random state stay as they are.
        train: a COCO or kwcoco manifest, a Pascal VOC tree, 'kwcoco:shapes64-128', as for `--data`.
        test: test split, as for `--test-data`; by default found in `train` or split off.
        recipe: a benchmark of detection, by its name or its YAML file.
        settings: what differs from the recipe: {"iterations": 500, "freeze_at": 5}.
        baselines: 'random' for the untrained backbone, or weights files: trained alike, to stand beside.
        out: folder for the records.
        run: device, workers, seed, ...
        **request: other fields of `evaluation.detection.DetectionRequest`: backbone, format, stem, ...

    Returns:
        Results of the baselines, then that of the model; rates in percent.

    Raises:
        SslbenchError: anything that is wrong with the arguments, the weights or the data.
    """
    values, origins, benchmark = detection.make_recipe(settings or {}, load_benchmark(str(recipe)))
    backbone = from_user(model, request.get("backbone")) if isinstance(model, nn.Module) else None
    request_fields: dict[str, Any] = {
        "recipe": values,
        "origins": origins,
        "benchmark": benchmark,
        "baselines": tuple(map(str, baselines)),
    }
    detection_request = detection.DetectionRequest(
        weights=backbone.name if backbone is not None else str(model),
        data=str(train),
        test_data=None if test is None else str(test),
        **request_fields,
        **request,
    )
    evaluation.check_writable(Path(out))
    prepared = detection.prepare_detection(detection_request, run or evaluation.RunSettings(), backbone=backbone)
    return detection.evaluate_detection(prepared, out=Path(out), command="sslbench.evaluate_detection(...)")


def extract_features(
    model: str | Path | nn.Module,
    data: str | Path,
    *,
    store: str | Path | None = None,
    run: evaluation.RunSettings | None = None,
    **request: Any,
) -> dict[str, dict[str, Features]]:
    """Extract the features of every split and write them to a store, as `sslbench extract` does.

    Args:
        model: as for `evaluate`.
        data: images, as for `--data`; labels are optional.
        store: folder of the feature store; None is the one that `evaluate` uses.
        run: device, precision, batch size, ...
        **request: other fields of `evaluation.Request`: backbone, layers, limit, preprocessing, ...

    Returns:
        Split ('train', 'test', 'all') -> layer -> features (N, D), memory-mapped.

    Example:
        >>> import tempfile
        >>> run = evaluation.RunSettings(device="cpu")
        >>> features = extract_features("pixels:8", "sklearn:digits", store=tempfile.mkdtemp(), run=run)
        >>> {split: layers["pixels"].x.shape for split, layers in features.items()}
        {'all': (1797, 192)}
    """
    backbone = _copied(model, request) if isinstance(model, nn.Module) else None
    weights = backbone.name if backbone is not None else str(model)
    feature_request = evaluation.Request(weights=weights, data=str(data), tasks=(), **request)
    root = Path(store) if store is not None else paths.cache_dir() / "features"
    found = evaluation.extract_only(feature_request, run or evaluation.RunSettings(), store=root, backbone=backbone)
    return {split: extraction.features for split, extraction in found.items()}


def export(
    weights: str | Path, out: str | Path, *, layer: str | None = None, overwrite: bool = False, **request: Any
) -> ExportReport:
    """Write a network as .onnx or .pt2 (torch.export), as `sslbench export` does; its outputs are compared.

    Args:
        weights: a weights file, or 'random'.
        out: file to write, net.onnx or net.pt2.
        layer: layer whose features are the output; None: the scores of the file's classifier, if it has one, else the
            backbone's default layer.
        overwrite: replace an existing file.
        **request: other fields of `evaluation.Request`: backbone, format, preprocessing, ...

    Returns:
        Shapes of input and output, preprocessing, and the largest difference from the network.

    Example:
        >>> import tempfile
        >>> report = export("random", f"{tempfile.mkdtemp()}/net.pt2", backbone="resnet18w0.125,in_chans=1")
        >>> report.shape, report.width, report.difference < 1e-4
        ((1, 224, 224), 64, True)
    """
    layers = () if layer is None else (layer,)
    export_request = evaluation.Request(weights=str(weights), data="", tasks=(), layers=layers, **request)
    return export_network(export_request, Path(out), overwrite=overwrite)


def predict(
    weights: str | Path,
    data: str | Path,
    csv: str | Path,
    *,
    classes: Sequence[str] | None = None,
    top_k: int = 1,
    threshold: float | None = None,
    run: evaluation.RunSettings | None = None,
    **request: Any,
) -> PredictionCounts:
    """Write the classes and probabilities of images to a CSV file, as `sslbench predict` does.

    Args:
        weights: file with a classifier: of finetuning, or the last layer of a supervised network.
        data: images, as for `evaluate`; labels are not read.
        csv: file to write, one row per image.
        classes: names of the classes, for files that do not name them; None: numbers.
        top_k: number of most probable classes per image.
        threshold: smallest probability of the predicted classes, for several labels per image; None: 0.5.
        run: device, precision, batch size, ...
        **request: other fields of `evaluation.Request`: backbone, format, limit, preprocessing, ...

    Returns:
        Numbers of predicted and of unreadable images.

    Example:
        >>> import tempfile, torch, sslbench
        >>> net = sslbench.load_backbone("random", backbone="resnet18w0.25").module
        >>> state = {**net.state_dict(), "fc.weight": torch.ones(3, 128), "fc.bias": torch.tensor([0.0, 2.0, 1.0])}
        >>> folder = tempfile.mkdtemp()
        >>> torch.save(state, f"{folder}/w.pth")
        >>> run = evaluation.RunSettings(device="cpu", workers=0)
        >>> counts = predict(f"{folder}/w.pth", "sklearn:digits", f"{folder}/out.csv", run=run, limit=2)
        >>> counts.predicted, [line.split(",")[2] for line in open(f"{folder}/out.csv")]
        (2, ['class', '1', '1'])
    """
    prediction_request = evaluation.Request(weights=str(weights), data=str(data), tasks=(), **request)
    settings = run or evaluation.RunSettings()
    options: dict[str, Any] = {"classes": classes, "top_k": top_k, "threshold": threshold}
    return write_predictions(prediction_request, settings, Path(csv), **options)


def pretrain(
    method: str,
    data: str | Path,
    out: str | Path,
    *,
    settings: Mapping[str, Any] | None = None,
    observers: Sequence[pretraining.Observer] = (),
    **request: Any,
) -> pretraining.PretrainingOutcome:
    """Train a backbone without labels, as `sslbench pretrain` does; the same call continues an interrupted run.

    Args:
        method: a recipe ('simclr'), or a module of your own ('my_pkg.my_method').
        data: images, as for `--data`; labels are ignored.
        out: folder of the run; weights.torch is written to it.
        settings: values other than the recipe's, as key=value words: {"backbone": "resnet18", "epochs": 10,
            "augment": "small", "optimizer.lr": 0.1}.
        observers: called with every line of the log and every evaluation, beside those that write metrics.jsonl
            and curve.png.
        **request: other fields of `pretraining.PretrainRequest`: init, eval_data, resume, limit, ...

    Returns:
        The weights file, the last line of the log, the evaluations.

    Raises:
        SslbenchError: anything that is wrong with the arguments, the data or the disk.

    Example:
        >>> import tempfile
        >>> tiny = {"backbone": "resnet18w0.125", "epochs": 1, "batch_size": 16, "method.projector": [32, 16]}
        >>> tiny |= {"augment": "digits", "augment.size": 16, "workers": 0, "device": "cpu"}
        >>> tiny |= {"schedule.warmup_epochs": 0}
        >>> outcome = pretrain("simclr", "sklearn:digits", tempfile.mkdtemp(), settings=tiny, limit=32)
        >>> outcome.weights.name, outcome.steps
        ('weights.torch', 2)
    """
    composed = compose_pretraining(method, settings or {}, {})
    values, typed = composed.values, tuple(key for key, origin in composed.origins.items() if origin == "key=value")
    values.pop("launcher")
    checked = build(pretraining.PretrainSettings, values, f"pretrain {method}")
    pretrain_request = pretraining.PretrainRequest(
        settings=checked, data=str(data), out=Path(out), chosen=typed, **request
    )
    standard = always(pretrain_request.out, mean=checked.augment.mean, std=checked.augment.std)
    return pretraining.pretrain(
        pretrain_request,
        command="sslbench.pretrain(...)",
        observers=[*standard, *observers],
        evaluator=knn_evaluator(pretrain_request),
    )


def compare(a: str | Path | Result, b: str | Path | Result, *, metric: str | None = None, seed: int = 0) -> Comparison:
    """Test whether two results differ, as `sslbench compare` does.

    Args:
        a: a record or its file, with the per-sample scores beside it.
        b: the other record or file.
        metric: metric to compare; None is the leading one.
        seed: of the bootstrap.

    Returns:
        Difference, interval, McNemar's p value and the verdict: 'tied', 'A better' or 'B better'.

    Raises:
        ResultError: they were not measured in the same way on the same samples; the message lists the differences.

    Example:
        >>> import tempfile
        >>> run = evaluation.RunSettings(device="cpu", floors=False, overlaps=False)
        >>> a, b = (evaluate(f"pixels:{side}", "sklearn:digits", protocols=["knn"], out=tempfile.mkdtemp(), run=run)[0]
        ...         for side in (1, 8))
        >>> compare(a, b).verdict
        'B better'
    """
    return compare_results(_record(a), _record(b), metric=metric, seed=seed)


def make_leaderboard(folder: str | Path, *, metric: str | None = None) -> Board:
    """Return one table of all records below a folder; `sslbench.leaderboard.to_csv` and others write it.

    Example:
        >>> import tempfile
        >>> out = tempfile.mkdtemp()
        >>> run = evaluation.RunSettings(device="cpu", floors=False, overlaps=False)
        >>> _ = evaluate("pixels:8", "sklearn:digits", protocols=["knn"], out=out, run=run)
        >>> len(make_leaderboard(out).rows)
        1
    """
    return table(records.read_tree(Path(folder)), metric=metric)


def _copied(model: nn.Module, request: dict[str, Any]) -> Backbone:
    """Return a backbone around a copy of the user's module."""
    name = request.get("backbone") or type(model).__name__
    module = copied(model).cpu().eval().requires_grad_(False)
    return from_module(name, module, users_preprocessing(name, model))


def _record(result: str | Path | Result) -> Result:
    return result if isinstance(result, Result) else records.read(Path(result))
