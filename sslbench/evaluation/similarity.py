"""Similarity of the layers of two backbones on the same images, or of two sets of features."""

import dataclasses
import functools
import io
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sslbench.arrays import UNREADABLE_HEADER, Matrix
from sslbench.backbones import named
from sslbench.backbones.layers import resolve_layers
from sslbench.data.open import open_data
from sslbench.data.source import Source
from sslbench.data.splits import limit
from sslbench.distributed import this_process
from sslbench.errors import DataError, UsageError
from sslbench.evaluation.preparation import extract_settings, for_request, load
from sslbench.evaluation.request import Request
from sslbench.evaluation.settings import RunSettings
from sslbench.features.extract import extract
from sslbench.features.store import StoreEntry
from sslbench.metrics.spectrum import cka_matrix
from sslbench.names import did_you_mean
from sslbench.results import records
from sslbench.runtime.progress import Progress, stage_progress
from sslbench.solvers import alignment
from sslbench.text import csv_text

log = logging.getLogger("sslbench")


_PARTS = ("test", "val", "all", "train")


@dataclasses.dataclass(frozen=True)
class SimilarityMeasure:
    """Measure of the similarity of two representations.

    Attributes:
        fewest: smallest number of samples.
        matrix: function from features (N, D) of some layers, and of others, to the value of each pair.
    """

    title: str
    fewest: int
    matrix: Callable[[Sequence[Matrix], Sequence[Matrix]], npt.NDArray[np.float64]]


def _of_pairs(function: Callable[[Matrix, Matrix], float]) -> Callable[..., npt.NDArray[np.float64]]:
    return lambda xs, ys: np.array([[function(x, y) for y in ys] for x in xs])


MEASURES = {
    "cka": SimilarityMeasure("linear CKA", 2, cka_matrix),
    # The unbiased estimate of HSIC divides by n (n - 3) (Song et al., JMLR 2012).
    "cka-debiased": SimilarityMeasure("linear CKA, debiased", 4, functools.partial(cka_matrix, debiased=True)),
    "mutual-knn": SimilarityMeasure(
        f"common {alignment.NEIGHBOURS} nearest neighbours", alignment.NEIGHBOURS + 1, _of_pairs(alignment.mutual_knn)
    ),
    "svcca": SimilarityMeasure("SVCCA", 2, _of_pairs(alignment.svcca)),
    "procrustes": SimilarityMeasure("Procrustes similarity", 2, _of_pairs(alignment.procrustes)),
}


@dataclasses.dataclass(frozen=True)
class LayerFeatures:
    """Features of the same samples at several layers.

    Attributes:
        layers: name -> (N, D).
        ids: of the samples, in order; None where a file does not say.
        images: fingerprint of ids and image contents; empty where a file does not say.
    """

    name: str
    layers: dict[str, Matrix]
    ids: Sequence[str] | None
    images: str = ""


@dataclasses.dataclass(frozen=True)
class LayerSimilarity:
    """Similarity of every layer of one side with every layer of the other.

    Attributes:
        values: (rows, columns), NaN where a layer is constant.
    """

    values: npt.NDArray[np.float64]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    names: tuple[str, str]
    n: int
    title: str


def encode(
    requests: Sequence[Request], run: RunSettings, *, store: Path, progress: Progress | None = None
) -> list[LayerFeatures]:
    """Extract features of several backbones at several layers, on the images of the first request."""
    if this_process().world > 1:
        raise UsageError("cka runs in one process", "Start it without torchrun or srun.")
    found: list[LayerFeatures] = []
    images: Source | None = None
    for request in requests:
        backbone, _ = for_request(load(request, run), request, run)
        # From the last to the first, so that of several names of a module the first one stays.
        by_module = {path: name for name, path in list(backbone.aliases.items())[::-1]}
        named_layers = tuple(name for name in backbone.aliases if name in by_module.values())
        layers = resolve_layers(backbone, request.layers or named_layers or (backbone.default_layer,))
        if images is None:  # the others encode the same ones in the same order: rows are compared
            parts = open_data(
                request.data,
                image_column=request.image_column,
                label_column=request.label_column,
                decoder=run.decoder,
            )
            images = part_to_encode(parts)
            images = images if request.limit is None else limit(images, request.limit, run.seed)
        title = f"{backbone.title} on {images.name}"
        shown = stage_progress(progress, title)
        made = extract(backbone, images, layers, extract_settings(run), root=store, split="all", progress=shown)
        log.info(f"{title}: {'features were stored' if not made.decoded else f'{made.decoded} images encoded'}")
        name = backbone.name if request.weights == "random" else named.weights_name(request.weights)
        ids = next(iter(made.features.values())).ids
        by_layer = {layer: each.x for layer, each in made.features.items()}
        found.append(LayerFeatures(name, by_layer, ids, images.images_fingerprint()))
    return found


def part_to_encode(parts: Mapping[str, Source]) -> Source:
    """Return the first of test, val, all and train that there is, else the first part."""
    return next((parts[name] for name in _PARTS if name in parts), next(iter(parts.values())))


def read(path: Path, layers: Sequence[str] = ()) -> LayerFeatures:
    """Read features from a .npy file (one layer), or from a folder of the feature store."""
    if (path / "meta.json").is_file():
        entry = StoreEntry(path)
        for layer in layers:
            if not entry.has(layer):
                raise UsageError(f"{path} has no layer '{layer}'", did_you_mean(layer, entry.layers()))
        names = layers or entry.layers()
        ids = tuple(row["id"] for row in entry.index_rows())
        images = str((entry.meta().get("key") or {}).get("images", ""))
        return LayerFeatures(path.name, {layer: entry.read(layer) for layer in names}, ids, images)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, *UNREADABLE_HEADER) as error:
        raise UsageError(f"{path} cannot be read as a numpy array: {error}") from error
    if not isinstance(array, np.ndarray) or array.ndim != 2 or not np.issubdtype(array.dtype, np.floating):
        raise UsageError(f"{path}: should be one float array (N, D)")
    return LayerFeatures(path.name, {path.stem: array}, None)


def similarity(a: LayerFeatures, b: LayerFeatures, *, measure: str = "cka") -> LayerSimilarity:
    """Return the similarity of every layer of A with every layer of B; `measure`: a name of `MEASURES`."""
    chosen = MEASURES[measure]
    counts = [len(next(iter(side.layers.values()))) for side in (a, b)]
    if counts[0] != counts[1] or (a.ids is not None and b.ids is not None and a.ids != b.ids):
        raise DataError(
            f"{a.name} has features of {counts[0]} samples, {b.name} of {counts[1]}: the samples differ",
            "Similarity compares features of the same samples in the same order.",
        )
    if a.images and b.images and a.images != b.images:
        raise DataError(
            f"{a.name} and {b.name} have features of different images with the same names",
            "Similarity compares features of the same images: extract both from one folder.",
        )
    if counts[0] < chosen.fewest:
        raise DataError(f"{counts[0]} samples are too few for {chosen.title}, which needs at least {chosen.fewest}")
    for side in (a, b):
        for layer, x in side.layers.items():
            # By blocks, as the features may be mapped from files larger than memory.
            if not all(np.isfinite(x[i : i + 4096]).all() for i in range(0, len(x), 4096)):
                raise DataError(f"the features of {side.name} at layer '{layer}' are not all finite numbers")
    values = chosen.matrix(list(a.layers.values()), list(b.layers.values()))
    return LayerSimilarity(values, tuple(a.layers), tuple(b.layers), (a.name, b.name), counts[0], chosen.title)


def write_csv(found: LayerSimilarity, path: Path) -> None:
    """Write one line per layer of A, one column per layer of B; an empty cell where it is undefined."""
    head = [f"{found.names[0]} \\ {found.names[1]}", *found.columns]
    lines = [
        [name, *("" if np.isnan(value) else repr(float(value)) for value in row)]
        for name, row in zip(found.rows, found.values, strict=True)
    ]
    records.replace_file(path, csv_text([head, *lines]).encode())


def write_heatmap(found: LayerSimilarity, path: Path) -> None:
    """Draw the matrix, A's first layer at the bottom as in Kornblith et al. 2019."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size = (2.5 + 0.6 * len(found.columns), 2 + 0.5 * len(found.rows))
    figure = Figure(figsize=size, layout="constrained")
    # Without pyplot, which asks for a display and keeps every figure until it is closed.
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(found.values, origin="lower", vmin=0, vmax=1, cmap="magma")
    axes.set_xticks(range(len(found.columns)), found.columns, rotation=45, ha="right")
    axes.set_yticks(range(len(found.rows)), found.rows)
    axes.set_xlabel(found.names[1])
    axes.set_ylabel(found.names[0])
    axes.set_title(f"{found.title}, {found.n} images", fontsize="medium")
    if max(len(found.rows), len(found.columns)) <= 12:
        for i, row in enumerate(found.values):
            for j, value in enumerate(row):
                colour = "black" if value > 0.6 else "white"
                axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize="small", color=colour)
    figure.colorbar(image)
    picture_file = io.BytesIO()
    figure.savefig(picture_file, format="png")
    records.replace_file(path, picture_file.getvalue())
