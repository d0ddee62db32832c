"""Public functions: the commands of the command line, from Python."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import nn

from sslbench import evaluation, paths, pretraining
from sslbench.api.arguments import (
    FILES,
    copied_backbone,
    folder_of,
    location,
    options_of,
    places_of,
    record_of,
    refuse_other_fields,
    refuse_other_models,
    refuse_other_order,
    tasks_of,
    train_and_test,
)
from sslbench.api.messages import public
from sslbench.backbones import load
from sslbench.backbones.export import ExportReport
from sslbench.config import build
from sslbench.data.containers.members import is_image
from sslbench.errors import SslbenchError, UsageError
from sslbench.evaluation.prediction import PredictionCounts, export_network
from sslbench.evaluation.prediction import predict as write_predictions
from sslbench.evaluation.pretraining import knn_evaluator
from sslbench.evaluation.suite import SuiteCell, run_cells
from sslbench.features.array import Features
from sslbench.features.external import are_features, read_in_memory
from sslbench.leaderboard import Board, table
from sslbench.leaderboard.compare import Comparison
from sslbench.leaderboard.compare import compare as compare_results
from sslbench.leaderboard.over_training import TrainingCurve, training_curves, write_training_curves
from sslbench.library.recipes import compose_pretraining
from sslbench.results import Result, Results, records
from sslbench.runtime.progress import interactive
from sslbench.train import checkpoints
from sslbench.train.observers.always import always
from sslbench.weights.reading.folders import checkpoint_files

__all__ = [
    "compare",
    "evaluate",
    "evaluate_checkpoints",
    "export",
    "extract",
    "extract_features",
    "load_backbone",
    "make_leaderboard",
    "predict",
    "pretrain",
]

load_backbone = public(load.load_backbone)


@public
def evaluate(
    model: str | Path | nn.Module | None,
    train: Any,
    test: Any = None,
    *,
    protocols: str | Sequence[str] = ("knn", "linear"),
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    name: str | None = None,
    out: str | Path | None = "results",
    run: evaluation.RunSettings | None = None,
    **options: Any,
) -> Results:
    """Score a backbone and write the records, as `sslbench eval` does.

    Args:
        model: a weights file, 'random', 'pixels', or any `nn.Module` that takes (B, 3, H, W). A module is copied: its
            mode, device, gradients and values do not change, nor does the global random state. None for features.
        train: a location, as for `--data`; a torch Dataset or DataLoader, a Hugging Face Dataset, a pandas frame with a
            column of paths; (images, labels) with paths, Pillow images, an array or a tensor; (features, labels), with
            features (N, D); {'train': ..., 'test': ...} of these; or a file of NumPy with x_train, y_train, x_test and
            y_test.
        test: test split, in the same forms; by default found in `train` or split off.
        protocols: names, or a single one; each runs on the features of one pass over the images.
        settings: protocol -> settings other than its defaults.
        name: name of the weights or features in records and tables: 'epoch 10'; by default the file's, or the module's
            class.
        out: folder for the records; None: a temporary one, removed when Python ends.
        run: settings of the run, as one object.
        **options: settings by the names of the flags: device, batch_size, seed, resize, layers, limit, ...; the fields
            of `evaluation.RunSettings`, `evaluation.Request` and `Preprocessing`.

    Returns:
        One result per layer and protocol; rates in percent. Notebooks show them as a table.

    Raises:
        SslbenchError: anything that is wrong with the arguments, the weights or the data.

    Examples:
        >>> from sklearn.datasets import load_digits
        >>> digits = load_digits()
        >>> images = (digits.images * 15).astype("uint8")
        >>> quick = {"device": "cpu", "floors": False, "overlaps": False, "out": None}
        >>> (result,) = evaluate("pixels:8", (images, digits.target), protocols="knn", **quick)
        >>> result.protocol.name, round(result.metrics["top1"].value)
        ('knn', 99)
        >>> (result,) = evaluate(None, (digits.data, digits.target), protocols="knn", **quick)
        >>> round(result.metrics["top1"].value)
        99
    """
    tasks = tasks_of(protocols, settings)
    refuse_other_order(train, test)
    train, test = train_and_test(train, test)
    folder = folder_of(out)
    if are_features(train):
        return _evaluate_features(model, train, test, tasks, name, folder, run, options)
    if model is None:
        raise UsageError(
            "model=None goes with features (N, D) and their labels only",
            "Give a module or a file; features as an array: (np.asarray(x), labels).",
        )
    refuse_other_models(model)
    run_settings, request_options = options_of(options, run, evaluation.Request, tasks=tasks)
    places = places_of(train, test, request_options)
    backbone = copied_backbone(model, request_options) if isinstance(model, nn.Module) else None
    weights = backbone.name if backbone is not None else str(model)
    request = evaluation.Request(weights=weights, tasks=tasks, name=name, **places.names, **request_options)
    prepared = evaluation.prepare(request, run_settings, backbone=backbone, in_memory=places.in_memory)
    evaluation.check_writable(folder)
    store = paths.cache_dir() / "features"
    command = "sslbench.evaluate(...)"
    with interactive() as progress:
        return Results(evaluation.evaluate(prepared, store=store, out=folder, command=command, progress=progress))


def _evaluate_features(
    model: object,
    train: Any,
    test: Any,
    tasks: tuple[evaluation.Task, ...],
    name: str | None,
    out: Path,
    run: evaluation.RunSettings | None,
    options: Mapping[str, Any],
) -> Results:
    """Score (features, labels), as `sslbench eval --features` does."""
    if model is not None:
        raise UsageError("features (N, D) need no model", "Pass None as the model.")
    run_settings, unused = options_of(options, run, evaluation.Request, tasks=tasks)
    if unused:
        of_run = {field.name for field in dataclasses.fields(evaluation.RunSettings)}
        typed = next(key for key in options if key not in of_run)
        raise UsageError(f"'{typed}' has no effect on features")
    pair = read_in_memory(
        train,
        test,
        name=name or "features",
        test_fraction=run_settings.test_fraction,
        seed=run_settings.seed,
        own_classes=evaluation.has_own_classes(tasks),
    )
    evaluation.check_writable(out)
    command = "sslbench.evaluate(...)"
    with interactive():  # progress of the solvers
        return Results(evaluation.evaluate_features(pair, tasks, run_settings, out=out, command=command))


@public
def evaluate_checkpoints(
    folder: str | Path,
    train: str | Path,
    test: str | Path | None = None,
    *,
    protocols: str | Sequence[str] = ("knn",),
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    out: str | Path = "results",
    run: evaluation.RunSettings | None = None,
    **options: Any,
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
        run: settings of the run, as one object.
        **options: as for `evaluate`.

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
        >>> quick = {"device": "cpu", "workers": 0, "floors": False, "overlaps": False, "limit": 200}
        >>> (curve,) = evaluate_checkpoints(f"{folder}/a/checkpoints", "sklearn:digits", out=folder, **quick)
        >>> [point.at.step for point in curve.points], curve.first.protocol.name
        ([1, 2], 'knn')
    """
    files = [str(path) for path in checkpoint_files(Path(folder))]
    if not files:
        raise UsageError(f"{folder} has no checkpoints of a pretraining run", "Give RUN/checkpoints.")
    tasks = tasks_of(protocols, settings)
    run_settings, request_options = options_of(options, run, evaluation.Request)
    place = location(train, "train", FILES)
    request_options["test_data"] = None if test is None else location(test, "test", FILES)
    cells = [
        SuiteCell(
            file,
            " ".join(task.protocol for task in tasks),
            (evaluation.Request(file, place, tasks, **request_options),),
        )
        for file in files
    ]
    evaluation.check_writable(Path(out))
    found, holes = run_cells(
        cells,
        run_settings,
        store=paths.cache_dir() / "features",
        out=Path(out),
        command="sslbench.evaluate_checkpoints(...)",
    )
    # Only now: the records of the other checkpoints are to be written.
    if holes:
        raise SslbenchError(f"{holes[0].weights}: {holes[0].reason}", holes[0].remedy)
    curves = training_curves([(checkpoints.position(Path(file)), own) for file, own in found.items()])
    if curves:
        write_training_curves(curves, checkpoints.run_name(Path(folder)), Path(out))
    return curves


@public
def extract(
    model: str | Path | nn.Module, images: Any, *, layer: str | None = None, **options: Any
) -> npt.NDArray[np.floating]:
    """Return the features of images as one array.

    Args:
        model: as for `evaluate`.
        images: as for `evaluate`, without splits: a location, or images in memory; or one image, a file or a Pillow
            image. Labels are not read.
        layer: layer and its pooling; None: the backbone's default layer.
        **options: as for `evaluate`.

    Returns:
        (N, D) in the order of the images; of a location, in the order of the ids.

    Raises:
        SslbenchError: anything that is wrong with the arguments, the weights or the images.

    Examples:
        >>> images = np.zeros((3, 8, 8, 3), dtype=np.uint8)
        >>> extract("pixels:8", images, device="cpu").shape
        (3, 192)
    """
    if hasattr(images, "iloc") and hasattr(images, "columns"):
        raise UsageError("a frame is read in the order of its paths", "Pass its column: frame['path'].")
    if isinstance(images, Image.Image) or (
        isinstance(images, str | Path) and is_image(str(images)) and Path(images).is_file()
    ):
        images = [images]
    layers: dict[str, Any] = {} if layer is None else {"layers": (layer,)}
    found = extract_features(model, images, **layers, **options)
    if len(found) > 1:
        raise UsageError(f"the data have the splits {', '.join(found)}", "Pass one of them, or call extract_features.")
    by_layer = next(iter(found.values()))
    if len(by_layer) > 1:
        raise UsageError(f"there are {len(by_layer)} layers: {', '.join(by_layer)}", "Name one by layer=.")
    # In memory: the stored array is mapped and read-only.
    return np.array(next(iter(by_layer.values())).x)


@public
def extract_features(
    model: str | Path | nn.Module,
    data: Any,
    *,
    store: str | Path | None = None,
    run: evaluation.RunSettings | None = None,
    **options: Any,
) -> dict[str, dict[str, Features]]:
    """Extract the features of every split and write them to a store, as `sslbench extract` does.

    Args:
        model: as for `evaluate`.
        data: images, as for `evaluate`; labels are optional.
        store: folder of the feature store; None is the one that `evaluate` uses.
        run: settings of the run, as one object.
        **options: as for `evaluate`.

    Returns:
        Split ('train', 'test', 'all') -> layer -> features (N, D), memory-mapped.

    Example:
        >>> import tempfile
        >>> features = extract_features("pixels:8", "sklearn:digits", store=tempfile.mkdtemp(), device="cpu")
        >>> {split: layers["pixels"].x.shape for split, layers in features.items()}
        {'all': (1797, 192)}
    """
    refuse_other_models(model)
    run_settings, request_options = options_of(options, run, evaluation.Request, beside=("store",))
    places = places_of(data, None, request_options)
    backbone = copied_backbone(model, request_options) if isinstance(model, nn.Module) else None
    weights = backbone.name if backbone is not None else str(model)
    request = evaluation.Request(weights=weights, tasks=(), **places.names, **request_options)
    root = None if store is None else Path(store)
    with interactive() as progress:
        found = evaluation.extract_only(
            request, run_settings, store=root, progress=progress, backbone=backbone, in_memory=places.in_memory
        )
    return {split: extraction.features for split, extraction in found.items()}


@public
def export(
    weights: str | Path,
    out: str | Path,
    *,
    probe: str | Path | None = None,
    layer: str | None = None,
    overwrite: bool = False,
    **options: Any,
) -> ExportReport:
    """Write a network as .onnx or .pt2 (torch.export), as `sslbench export` does; its outputs are compared.

    Args:
        weights: a weights file, or 'random'.
        out: file to write, net.onnx or net.pt2.
        probe: file of a probe that a protocol trained on features of the weights; the output is its scores, or maps.
        layer: layer whose features are the output; None: the scores of the file's classifier, if it has one, else the
            backbone's default layer.
        overwrite: replace an existing file.
        **options: backbone, format, resize, ...; fields of `evaluation.Request` and `Preprocessing`.

    Returns:
        Shapes of input and output, preprocessing, and the largest difference from the network.

    Example:
        >>> import tempfile
        >>> report = export("random", f"{tempfile.mkdtemp()}/net.pt2", backbone="resnet18w0.125,in_chans=1")
        >>> report.shape, report.width, report.difference < 1e-4
        ((1, 224, 224), 64, True)
    """
    beside = ("probe", "layer", "overwrite")
    _, request_options = options_of(options, None, evaluation.Request, runs=False, beside=beside)
    layers = () if layer is None else (layer,)
    export_request = evaluation.Request(weights=str(weights), data="", tasks=(), layers=layers, **request_options)
    return export_network(export_request, Path(out), probe=None if probe is None else Path(probe), overwrite=overwrite)


@public
def predict(  # noqa: PLR0913  every choice of a prediction
    weights: str | Path,
    data: str | Path,
    csv: str | Path,
    *,
    probe: str | Path | None = None,
    maps: str | Path | None = None,
    classes: Sequence[str] | None = None,
    top_k: int = 1,
    threshold: float | None = None,
    run: evaluation.RunSettings | None = None,
    **options: Any,
) -> PredictionCounts:
    """Write the classes and probabilities of images to a CSV file, as `sslbench predict` does.

    Args:
        weights: file with a classifier: of finetuning, or the last layer of a supervised network.
        data: images, as for `evaluate`; labels are not read.
        csv: file to write, one row per image.
        probe: file of a probe that a protocol trained on features of the weights: the classifier, or a head for maps.
        maps: folder to write a map per image to, where the probe is of segmentation, depth and the like: a PNG of
            classes, or numbers as .npy.
        classes: names of the classes, for files that do not name them; None: numbers.
        top_k: number of most probable classes per image.
        threshold: smallest probability of the predicted classes, for several labels per image; None: 0.5.
        run: settings of the run, as one object.
        **options: as for `evaluate`.

    Returns:
        Numbers of predicted and of unreadable images.

    Example:
        >>> import tempfile, torch, sslbench
        >>> net = sslbench.load_backbone("random", backbone="resnet18w0.25").module
        >>> state = {**net.state_dict(), "fc.weight": torch.ones(3, 128), "fc.bias": torch.tensor([0.0, 2.0, 1.0])}
        >>> folder = tempfile.mkdtemp()
        >>> torch.save(state, f"{folder}/w.pth")
        >>> counts = predict(f"{folder}/w.pth", "sklearn:digits", f"{folder}/out.csv", device="cpu", workers=0, limit=2)
        >>> counts.predicted, [line.split(",")[2] for line in open(f"{folder}/out.csv")]
        (2, ['class', '1', '1'])
    """
    run_settings, request_options = options_of(
        options, run, evaluation.Request, beside=("probe", "maps", "classes", "top_k", "threshold")
    )
    place = location(data, "data", FILES)
    prediction_request = evaluation.Request(weights=str(weights), data=place, tasks=(), **request_options)
    head = None if probe is None else Path(probe)
    chosen: dict[str, Any] = {
        "probe": head,
        "maps": None if maps is None else Path(maps),
        "classes": classes,
        "top_k": top_k,
        "threshold": threshold,
    }
    return write_predictions(prediction_request, run_settings, Path(csv), **chosen)


@public
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
    refuse_other_fields(request, pretraining.PretrainRequest, of_settings=pretraining.PretrainSettings)
    composed = compose_pretraining(method, settings or {}, {})
    # What the caller set is refused where it does not fit the images, and not adapted to them.
    values, typed = composed.values, tuple(key for key, origin in composed.origins.items() if origin == "key=value")
    checked = build(pretraining.PretrainSettings, values, f"pretrain {method}")
    pretrain_request = pretraining.PretrainRequest(
        settings=checked, data=location(data, "data", FILES), out=Path(out), chosen=typed, **request
    )
    standard = always(pretrain_request.out, mean=checked.augment.mean, std=checked.augment.std)
    return pretraining.pretrain(
        pretrain_request,
        command="sslbench.pretrain(...)",
        observers=[*standard, *observers],
        evaluator=knn_evaluator(pretrain_request),
    )


@public
def compare(
    a: str | Path | Result | Sequence[Result],
    b: str | Path | Result | Sequence[Result],
    *,
    metric: str | None = None,
    seed: int = 0,
) -> Comparison:
    """Test whether two results differ, as `sslbench compare` does.

    Args:
        a: a record, a list of one as `evaluate` returns it, or its file, with the per-sample scores beside it.
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
    return compare_results(record_of(a), record_of(b), metric=metric, seed=seed)


@public
def make_leaderboard(folder: str | Path = "results", *, metric: str | None = None) -> Board:
    """Return one table of all records below a folder; `sslbench.leaderboard.to_csv` and others write it.

    A record that cannot be read is left out, with a note in the table.

    Example:
        >>> import tempfile
        >>> out = tempfile.mkdtemp()
        >>> run = evaluation.RunSettings(device="cpu", floors=False, overlaps=False)
        >>> _ = evaluate("pixels:8", "sklearn:digits", protocols=["knn"], out=out, run=run)
        >>> len(make_leaderboard(out).rows)
        1
    """
    results, broken = records.read_readable(Path(folder))
    if broken and not results:
        raise broken[0]
    board = table(results, metric=metric)
    return dataclasses.replace(board, notes=(*board.notes, *records.left_out(broken)))
