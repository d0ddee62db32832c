"""Features of the patches of images: principal components as colours, attention, nearest patches."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.grids import last_map_of_cells
from sslbench.backbones.layers import Layer, resolve_layers
from sslbench.data.clips import frames_of
from sslbench.data.open import kind_alone, open_as, open_data
from sslbench.data.source import Source
from sslbench.data.splits import limit
from sslbench.errors import UsageError
from sslbench.evaluation.preparation import load, with_preprocessing
from sslbench.evaluation.record import weights_used
from sslbench.evaluation.request import Request
from sslbench.evaluation.settings import RunSettings
from sslbench.evaluation.similarity import part_to_encode
from sslbench.names import did_you_mean
from sslbench.results import records
from sslbench.runtime.progress import Progress, stage_progress
from sslbench.show.choices import VIEWS, Point, View
from sslbench.show.encoded import EncodedImage, attention_blocks, encode_images, full_size, has_attention
from sslbench.show.page import Section, open_folder, page
from sslbench.show.patches import (
    fit_colours,
    foreground,
    grid_points,
    nearest_patches,
    similarities,
    unit_patches,
)
from sslbench.show.pictures import Panel, blend, data_url, fitted, heat, marked, sheet

log = logging.getLogger("sslbench")

MOST_IMAGES = 64
"""Largest number of images of a page, whose features are all kept."""

_SIDE = 192  # pixels of a picture on the page
_ANSWERS = 8  # images beside a given point, those with the nearest patches


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Choice of pictures.

    Attributes:
        views: pictures to draw; None: all that the network has.
        points: their nearest patches are drawn; others are found by a click on the page.
        only_foreground: colours of the foreground alone, as DINOv2's.
    """

    views: tuple[View, ...] | None = None
    points: tuple[Point, ...] = ()
    only_foreground: bool = False


def images_of(request: Request, run: RunSettings) -> Source:
    """Return a sample of the images of a location: of the parts it has, the first of test, val, all, train."""
    if kind := kind_alone(request.data):
        parts = open_as(request.data, kind)
    else:
        parts = open_data(
            request.data,
            image_column=request.image_column,
            label_column=request.label_column,
            decoder=run.decoder,
        )
    source = part_to_encode(parts)
    return source if request.limit is None else limit(source, request.limit, run.seed)


def show_images(
    request: Request, run: RunSettings, chosen: Pictures, out: Path, *, command: str, progress: Progress | None = None
) -> list[Path]:
    """Write sheets of the patches of images, index.html and show.json."""
    backbone = _with_whole_images(load(request, run), request, run)
    last, reason = ("", "") if request.layers else _last_map(backbone)
    layers = resolve_layers(backbone, request.layers or (last,))
    blocks = _blocks(backbone, layers, chosen)
    source = images_of(request, run)
    if frames_of(source.images) > 1:
        raise UsageError(
            f"show of patches takes images, and {source.name} has videos",
            "Show a record of them (sslbench show RECORD.json), or their features (sslbench show features).",
        )
    if len(source) > MOST_IMAGES:
        raise UsageError(
            f"--limit {len(source)}: at most {MOST_IMAGES} images are shown", f"Give --limit {MOST_IMAGES}."
        )
    points = _located(chosen.points, source)
    sizes = {point: full_size(source, row, backbone) for point, row in points.items()}
    images = encode_images(
        backbone, source, layers, blocks, run, stage_progress(progress, f"{backbone.title} on {source.name}")
    )
    cells = {
        layer.text: [
            (point, next(i for i, image in enumerate(images) if image.row == row), sizes[point])
            for point, row in points.items()
        ]
        for layer in layers
    }
    placed = {
        name: [(point, i, images[i].cell(name, (point.x, point.y), size)) for point, i, size in each]
        for name, each in cells.items()
    }
    folder = open_folder(out)
    views = chosen.views or VIEWS
    sections: list[Section] = []
    facts: dict[str, Any] = {}
    if "pca" in views:
        sections.append(_pca(images, layers, chosen.only_foreground, facts))
    if blocks:
        sections += [_attention(images, block) for block in blocks]
    nearest: dict[str, Any] | None = None
    if "nearest" in views:
        sections += [_nearest(images, name, each, facts) for name, each in placed.items() if each]
        nearest = _answers(images, layers)
    for section in sections:
        side = _SIDE if len(section.rows[0][1]) < 8 else 128
        folder.write_sheet(section.title, sheet(section.rows, side=side))
    weights = weights_used(backbone, request.weights)
    about = {
        "weights": f"{weights.name} ({weights.backbone}, sha256 {weights.sha256[:16]})",
        "images": source.name if len(images) == len(source) else f"{source.name}, {len(images)} of them readable",
        "layers": ", ".join(layer.text for layer in layers) + reason,
    }
    folder.finish(
        page(f"Patches of {weights.name}", about, sections, nearest=nearest),
        {
            "command": command,
            "created": records.now(),
            "weights": weights,
            "layers": [layer.text for layer in layers],
            "attention": blocks,
            "preprocessing": backbone.preprocessing.record(),
            "precision": run.precision,
            "data": {
                "name": source.name,
                "fingerprint": source.images_fingerprint(),
                "images": [image.id for image in images],
            },
            "seed": run.seed,
            **facts,
            "versions": records.versions(),
        },
    )
    return [folder.path / name for name in folder.files]


def _with_whole_images(backbone: Backbone, request: Request, run: RunSettings) -> Backbone:
    """Return the backbone with a preprocessing that cuts nothing off."""
    values = dict(request.preprocessing)
    if values.get("crop") is not None:
        raise UsageError("--crop has no effect on show, which shows whole images", "Give --resize.")
    if "scales" in values:
        raise UsageError("--scales has no effect on show: patches of other scales are other patches", "Leave it out.")
    own = backbone.preprocessing
    if "resize" not in values and own.crop is not None:
        values["resize"] = min(own.crop)
        values["resized_side"] = "shorter"
    squash = {"squash": None} if own.squash is not None else {}
    used, _ = with_preprocessing(backbone, {**values, **squash, **run.decoding(), "crop": None, "scales": (1.0,)})
    return used


def _last_map(backbone: Backbone) -> tuple[str, str]:
    """Return the last layer with a map of several cells, and the reason where it is not the last one with a map."""
    side, last = backbone.preprocessing.resize, backbone.last_map
    if side is None:
        return last, ""
    size = (side, side) if isinstance(side, int) else side
    found = last_map_of_cells(backbone, size)
    if found == last:
        return last, ""
    reason = f"{last} has a map of 1 x 1 for images of {size[0]} x {size[1]} pixels"
    log.info(f"{reason}, so {found} is shown; a larger --resize shows {last}")
    return found, f" ({reason})"


def _blocks(backbone: Backbone, layers: Sequence[Layer], chosen: Pictures) -> tuple[str, ...]:
    """Return the blocks whose attention is drawn; () where the network has none and nobody asked for it."""
    if chosen.views is not None and "attention" not in chosen.views:
        return ()
    if chosen.views is None and not has_attention(backbone):
        log.info(f"{backbone.name} has no attention of a class token, so none is shown")
        return ()
    return attention_blocks(backbone, layers)


def _located(points: Sequence[Point], source: Source) -> dict[Point, int]:
    """Return the row of the image of each point, named by its id or the last part of it."""
    found = {}
    for point in points:
        rows = [i for i, name in enumerate(source.ids) if name == point.image]
        rows = rows or [i for i, name in enumerate(source.ids) if Path(name).name == point.image]
        if len(rows) > 1:
            raise UsageError(f"--point: several of the shown images are called '{point.image}'", "Give the whole id.")
        if not rows:
            raise UsageError(
                f"--point: none of the {len(source)} shown images is called '{point.image}'",
                f"{did_you_mean(point.image, source.ids)} A larger --limit shows more images.",
            )
        found[point] = rows[0]
    return found


def _pca(
    images: Sequence[EncodedImage], layers: Sequence[Layer], only_foreground: bool, facts: dict[str, Any]
) -> Section:
    """Return the pictures of principal components: one row per image, one column per layer."""
    columns: list[list[Panel]] = []
    explained = {}
    for layer in layers:
        grids = [image.maps[layer.text] for image in images]
        kept = foreground(grids) if only_foreground else [np.ones(grid.shape[:2], dtype=np.bool_) for grid in grids]
        patches = np.concatenate([grid[mask] for grid, mask in zip(grids, kept, strict=True)])
        colours = fit_colours(patches if len(patches) else np.concatenate([g.reshape(-1, g.shape[2]) for g in grids]))
        explained[layer.text] = colours.explained
        panels = []
        for grid, mask in zip(grids, kept, strict=True):
            pixels = colours.rgb(grid)
            pixels[~mask] = 0
            caption = f"{layer.text}, {grid.shape[0]} x {grid.shape[1]}"
            panels.append(Panel(Image.fromarray(pixels), caption, blocky=True))
        columns.append(panels)
    facts["pca"] = {"explained variance": explained, "foreground only": only_foreground}
    shares = "; ".join(f"{name}: {100 * share.sum():.0f} %" for name, share in explained.items())
    text = (
        "The first three principal components of the patches as red, green and blue, from one PCA over all images. "
        f"Variance explained by the three: {shares}."
    )
    if only_foreground:
        text += " Black patches are background, by the sign of the first component of all patches."
    rows = [(image.id, [Panel(image.picture), *(column[i] for column in columns)]) for i, image in enumerate(images)]
    return Section("pca", text, rows, _SIDE)


def _attention(images: Sequence[EncodedImage], block: str) -> Section:
    """Return the class token's attention: one row per image, the mean of the heads and each head."""
    rows = []
    for image in images:
        heads = image.attention[block]
        maps = [("mean", heads.mean(axis=0)), *((f"head {i}", head) for i, head in enumerate(heads))]
        panels = [
            Panel(heat(each, 0.0, float(each.max())), f"{name}, {100 * float(each.sum()):.0f} %", blocky=True)
            for name, each in maps
        ]
        rows.append((image.id, [Panel(image.picture), *panels]))
    text = (
        f"Attention of the class token in {block} to the patches, each map from 0 (black) to its largest weight "
        "(yellow). Percentages are the share of the attention on patches; the rest is on the class token and registers."
    )
    return Section(f"attention {block}", text, rows, 128)


def _nearest(
    images: Sequence[EncodedImage],
    layer: str,
    points: Sequence[tuple[Point, int, tuple[int, int]]],
    facts: dict[str, Any],
) -> Section:
    """Return, for each given point, the images with the nearest patches, and their similarities."""
    patches = [unit_patches(image.maps[layer]) for image in images]
    rows, listed = [], []
    for point, own, cell in points:
        size = images[own].maps[layer].shape[:2]
        query = patches[own][cell[0] * size[1] + cell[1]]
        found = nearest_patches(query[None], patches)
        order = [i for i in np.argsort(-found.similarity[0], kind="stable").tolist() if i != own][:_ANSWERS]
        panels = [Panel(marked(fitted(Panel(images[own].picture), 2 * _SIDE), cell, size), "point")]
        for i in [own, *order]:
            h, w = images[i].maps[layer].shape[:2]
            place = divmod(int(found.patch[0, i]), w)
            over = heat(similarities(query, patches[i], (h, w)), 0.0, 1.0)
            base = fitted(Panel(images[i].picture), 2 * _SIDE)
            caption = "its own image" if i == own else f"{images[i].id}\n{found.similarity[0, i]:.3f}"
            panels.append(Panel(marked(blend(base, over, 0.6), place, (h, w)), caption))
            listed.append(
                {
                    "layer": layer,
                    "point": dataclasses.asdict(point),
                    "image": images[i].id,
                    "row": place[0],
                    "column": place[1],
                    "grid": [h, w],
                    "cosine": round(float(found.similarity[0, i]), 6),
                }
            )
        rows.append((f"{point.image} at {point.x:g}, {point.y:g}", panels))
    facts["nearest"] = [*facts.get("nearest", []), *listed]
    text = (
        f"Patches of {layer} nearest to given points, by cosine, from 0 (black) to 1 (yellow); the frame is around the "
        f"nearest of an image, and of the images the {_ANSWERS} with the nearest are shown."
    )
    return Section(f"nearest {layer}", text, rows, _SIDE)


def _answers(images: Sequence[EncodedImage], layers: Sequence[Layer]) -> dict[str, Any]:
    """Return the images of the page, and the nearest patches of evenly spaced points in each."""
    found, sides = [], []
    for layer in layers:
        patches = [unit_patches(image.maps[layer.text]) for image in images]
        grids: list[Mapping[str, Any]] = []
        for own, image in enumerate(images):
            h, w = image.maps[layer.text].shape[:2]
            points, size = grid_points((h, w), len(images))
            answer = nearest_patches(patches[own][points], patches)
            thousandths = np.round(1000 * answer.similarity).astype(int).tolist()
            rows = [list(pair) for pair in zip(answer.patch.tolist(), thousandths, strict=True)]
            sides += list(size)
            grids.append({"size": [h, w], "points": list(size), "found": rows})
        found.append({"name": layer.text, "grids": grids})
    pictures = []
    for image in images:
        small = fitted(Panel(image.picture), _SIDE)
        source = image.picture if max(image.picture.size) < 2 * _SIDE else fitted(Panel(image.picture), 2 * _SIDE)
        pictures.append({"name": image.id, "src": data_url(source), "width": small.width, "height": small.height})
    number = f"{min(sides)} to {max(sides)}" if min(sides) < max(sides) else f"{sides[0]}"
    text = f"Computed in advance for a grid of {number} points a side in each image."
    return {"layers": found, "images": pictures, "text": text}
