"""Scatter of features in the plane, coloured by label, with the images."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageColor

from sslbench.arrays import FloatArray, IntArray, Matrix
from sslbench.backbones.layers import resolve_layers
from sslbench.data.checks.sheets import thumbnails
from sslbench.data.decode.handlers import Reading
from sslbench.data.source import Source
from sslbench.errors import DataError
from sslbench.evaluation.preparation import extract_settings, for_request, load
from sslbench.evaluation.record import weights_used
from sslbench.evaluation.request import Request
from sslbench.evaluation.settings import RunSettings
from sslbench.features.external import read_train_test, read_unlabelled
from sslbench.features.extract import extract
from sslbench.results import records
from sslbench.runtime.progress import Progress, stage_progress
from sslbench.show.choices import Projection
from sslbench.show.images import images_of
from sslbench.show.page import open_folder, page
from sslbench.show.pictures import Panel, data_url, drawn, fitted, sheet
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import Target

log = logging.getLogger("sslbench")

TITLES: Mapping[Projection, str] = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}

_FIRST_COMPONENTS = 50  # PCA before t-SNE and UMAP, as van der Maaten and Hinton 2008, section 4.2 (30 there)
_NAMED = 19  # classes with a colour of their own
_OTHERS = "#9a9a9a"
_THUMB, _MAP = 44, 1400  # pixels of a thumbnail, and of the sheet of thumbnails
_SIZE = 640  # pixels of the drawing on the page
_MARGIN, _INCHES, _LEAST_INCHES = 0.03, 7.0, 3.0  # of the plot: the points lie in a square of side 1


@dataclasses.dataclass(frozen=True)
class Points:
    """Samples to draw.

    Attributes:
        layers: layer -> features (N, D).
        source: of their images; None for features made elsewhere.
        facts: provenance, for show.json.
    """

    name: str
    layers: Mapping[str, Matrix]
    ids: Sequence[str]
    labels: Target
    source: Source | None
    facts: Mapping[str, Any]


def project(x: Matrix, projection: Projection, seed: int) -> FloatArray:
    """Return the places (N, 2) of features in the plane.

    'pca': the first two principal components. 't-SNE' (van der Maaten and Hinton 2008): of the first 50, perplexity 30
    or a third of the samples, started at the principal components. 'umap' (McInnes et al. 2018): of the first 50, 15
    neighbours.

    `x`: (N, D), at least 4 samples.

    >>> project(np.eye(4) * [[4], [1], [1], [1]], "pca", 0).shape
    (4, 2)
    """
    from sklearn.decomposition import PCA

    if len(x) < 4:
        raise DataError(f"{len(x)} samples are too few for a scatter, which needs 4")
    values = np.asarray(x, dtype=np.float64)
    if not np.isfinite(values).all():
        raise DataError("the features are not all finite numbers")
    kept = min(2 if projection == "pca" else _FIRST_COMPONENTS, *values.shape)
    reduced = PCA(kept, svd_solver="full").fit_transform(values)
    if reduced.shape[1] < 2:
        reduced = np.concatenate([reduced, np.zeros((len(reduced), 1))], axis=1)
    if projection == "pca":
        return np.asarray(reduced)
    if projection == "tsne":
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (len(x) - 1) / 3)
        return np.asarray(TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(reduced))
    from umap import UMAP

    return np.asarray(UMAP(n_neighbors=min(15, len(x) - 1), n_jobs=1, random_state=seed).fit_transform(reduced))


def points_of_images(request: Request, run: RunSettings, *, store: Path, progress: Progress | None) -> Points:
    """Return the features of a sample of images, from the store where they are there."""
    backbone, _ = for_request(load(request, run), request, run)
    layers, source = resolve_layers(backbone, request.layers), images_of(request, run)
    title = f"{backbone.title} on {source.name}"
    report = stage_progress(progress, title)
    found = extract(backbone, source, layers, extract_settings(run), root=store, split="all", progress=report)
    log.info(f"{title}: {f'{found.decoded} images encoded' if found.decoded else 'features found in the store'}")
    first = next(iter(found.features.values()))
    place = {name: i for i, name in enumerate(source.ids)}
    read = source.select([place[name] for name in first.ids])
    used = weights_used(backbone, request.weights)
    facts = {"weights": used, "preprocessing": backbone.preprocessing.record()}
    named = {layer: features.x for layer, features in found.features.items()}
    return Points(source.name, named, read.ids, read.target, read, facts)


def points_of_files(features: Path, labels: Path | None, label_column: str | None, most: int, seed: int) -> Points:
    """Return a sample of features made elsewhere: of all rows, of those of the test part where they are split."""
    if labels is None:
        pair = read_unlabelled(features)
    else:
        pair = read_train_test(
            features, labels, None, None, label_column=label_column, test_fraction=0.5, seed=seed, own_classes=True
        )
    whole = pair.whole or pair.test
    part = whole.select(np.sort(np.random.default_rng(seed).permutation(len(whole))[:most]))
    name = pair.name if len(part) == len(whole) else f"{pair.name}, {len(part)} of {len(whole)}"
    facts = {"digest of the features": pair.features_sha256, "fingerprint of ids and labels": pair.fingerprints}
    return Points(name, {"features": part.x}, part.ids, part.target, None, facts)


@dataclasses.dataclass(frozen=True)
class Colouring:
    """Colours of samples.

    Attributes:
        colours: of the groups, '#rrggbb'.
        group: int64 (N,), group of each sample.
    """

    names: tuple[str, ...]
    colours: tuple[str, ...]
    group: IntArray


def colouring(labels: Target) -> Colouring:
    """Return the colours of samples: of one class the most frequent 19, grey for the others.

    Several labels: the first of each sample. Numbers: five ranges of the first number, of equal counts.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if isinstance(labels, Numbers):
        column = labels.values[:, 0]
        ends = np.unique(np.quantile(column, np.linspace(0, 1, 6)))
        group = np.clip(np.searchsorted(ends, column, side="right") - 1, 0, max(0, len(ends) - 2)).astype(np.int64)
        number = max(1, len(ends) - 1)
        pairs = [(ends[i], ends[min(i + 1, len(ends) - 1)]) for i in range(number)]
        names = tuple(f"{labels.classes[0]} {low:.4g} to {high:.4g}" for low, high in pairs)
        shades = colormaps["viridis"](np.linspace(0, 1, number))
        return Colouring(names, tuple(to_hex(shade) for shade in shades), group)
    if not isinstance(labels, Classes | MultiLabel):
        return Colouring(("",), ("#0072b2",), np.zeros(len(labels), dtype=np.int64))
    of_class = labels.values.astype(np.int64)
    if isinstance(labels, MultiLabel):  # the first class that each sample has; -1 for none
        present = labels.values == 1
        of_class = np.where(present.any(axis=1), present.argmax(axis=1), -1).astype(np.int64)
    classes, counts = np.unique(of_class, return_counts=True)
    frequent = classes[np.argsort(-counts, kind="stable")][:_NAMED]
    shown = np.sort(frequent[frequent >= 0])
    palette = [to_hex(colour) for colour in colormaps["tab20"](np.arange(20))]
    palette = [colour for i, colour in enumerate([*palette[::2], *palette[1::2]]) if i not in (7, 17)]  # greys
    palette = [*palette, "#000000"]
    place = {int(c): i for i, c in enumerate(shown)}
    group = np.array([place.get(int(c), len(shown)) for c in of_class], dtype=np.int64)
    names = tuple(labels.classes[c] for c in shown)
    if (group == len(shown)).any():
        rest = len(classes) - len(shown)
        unlabelled = isinstance(labels, MultiLabel) and (of_class < 0).any()
        names = (*names, "no label" if unlabelled and rest == 1 else f"{rest} others")
    return Colouring(names, (*palette[: len(shown)], _OTHERS)[: len(names)], group)


def show_scatter(
    points: Points, projection: Projection, seed: int, out: Path, *, command: str, reading: Reading | None = None
) -> list[Path]:
    """Write a scatter and a sheet of thumbnails per layer, index.html and show.json."""
    places = {}
    for layer, x in points.layers.items():
        place = project(x, projection, seed)
        low, high = place.min(axis=0), place.max(axis=0)
        scale = max(float((high - low).max()), 1e-12)  # one in both directions; a margin around the square from 0 to 1
        places[layer] = np.asarray(0.5 + 0.92 * (place - (low + high) / 2) / scale)
    colours = colouring(points.labels)
    small: dict[int, Image.Image] = {}  # by row
    if points.source is not None:
        rows = {str(i): [i] for i in range(len(points.ids))}
        pictures = thumbnails(points.source, rows, reading=reading or Reading(), side=64)
        small = {int(row): each[0].picture for row, each in pictures.items() if each}
    folder = open_folder(out)
    title = f"{TITLES[projection]} of {points.name}"
    for layer, place in places.items():
        folder.write_sheet(f"scatter {layer}", _plot(place, colours, f"{title}, {layer}"))
        if small:
            picture = _thumbnail_map(place, small, colours)
            named = [(n, ImageColor.getrgb(c)[:3]) for n, c in zip(colours.names, colours.colours, strict=True) if n]
            row = (f"{title}, {layer}", [Panel(picture)])
            folder.write_sheet(f"thumbnails {layer}", sheet([row], side=max(picture.size), legend=named))
    text = f"{title}, {len(points.ids):,} samples. In t-SNE and UMAP distances between far groups mean nothing."
    scatter = {
        "text": text,
        "size": _SIZE,
        "legend": list(zip(colours.names, colours.colours, strict=True)),
        "colours": colours.colours,
        "names": colours.names,
        "layers": list(places),
        "points": [
            {
                "id": name,
                "text": (points.labels.text(i) if points.labels.labelled else ""),
                "group": int(colours.group[i]),
                "places": [[round(float(v), 4) for v in place[i]] for place in places.values()],
                "src": data_url(small[i]) if i in small else "",
            }
            for i, name in enumerate(points.ids)
        ],
    }
    facts = {"data": points.name, "samples": f"{len(points.ids):,}", "layers": ", ".join(places)}
    content = {
        "command": command,
        "created": records.now(),
        "projection": projection,
        "seed": seed,
        "layers": list(places),
        "data": {"name": points.name, "samples": points.ids},
        **points.facts,
        "versions": records.versions(),
    }
    folder.finish(page(title, facts, (), scatter=scatter), content)
    return [folder.path / name for name in folder.files]


def _plot(place: FloatArray, colours: Colouring, title: str) -> Image.Image:
    """Return the scatter, drawn by matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    low, high = place.min(axis=0) - _MARGIN, place.max(axis=0) + _MARGIN
    width, height = np.maximum((high - low) * _INCHES, _LEAST_INCHES)
    figure = Figure(figsize=(width + 2.2, height + 0.4), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, (name, colour) in enumerate(zip(colours.names, colours.colours, strict=True)):
        rows = colours.group == number
        x, y = place[rows].T
        label = _shortened(name.replace("$", r"\$")) or None
        axes.scatter(x, 1 - y, s=14, color=colour, linewidths=0.3, edgecolors="white", label=label)
    axes.set_xlim(low[0], high[0])
    axes.set_ylim(1 - high[1], 1 - low[1])
    axes.set_aspect("equal", adjustable="box")  # "datalim" would set the limits above aside
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(_shortened(title.replace("$", r"\$"), 90), fontsize="medium")
    if any(colours.names):
        figure.legend(loc="outside right upper", fontsize="small", markerscale=2, frameon=False)
    return drawn(figure)


def _shortened(text: str, most: int = 28) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _thumbnail_map(place: FloatArray, small: Mapping[int, Image.Image], colours: Colouring) -> Image.Image:
    """Return the pictures at their places, in frames of their colours, without those that others would cover."""
    canvas = Image.new("RGB", (_MAP, _MAP), (255, 255, 255))
    taken: list[tuple[int, int]] = []
    for row, picture in small.items():
        x, y = (int(v * (_MAP - _THUMB)) for v in place[row])
        if any(abs(x - other[0]) < _THUMB and abs(y - other[1]) < _THUMB for other in taken):
            continue
        taken.append((x, y))
        inner = fitted(Panel(picture), _THUMB - 6)
        frame = Image.new("RGB", (inner.width + 6, inner.height + 6), colours.colours[colours.group[row]])
        frame.paste(inner, (3, 3))
        canvas.paste(frame, (x, y))
    log.info(f"thumbnails: {len(taken)} of {len(small)} images drawn, the others would lie over them")
    corners = np.array(taken)
    left, top = np.maximum(corners.min(axis=0) - _THUMB, 0).tolist()
    right, bottom = np.minimum(corners.max(axis=0) + 2 * _THUMB, _MAP).tolist()
    return canvas.crop((left, top, right, bottom))
