"""Results in the files of other programs: timm's CSV, the folder of MTEB, model cards of the Hugging Face Hub."""

import datetime
import json
import re
from pathlib import Path
from typing import Any

import yaml

from sslbench.errors import ResultError
from sslbench.leaderboard.columns import data_name
from sslbench.leaderboard.model import Board, Column, Row, measured
from sslbench.leaderboard.tables import number, write_text
from sslbench.metrics.catalog import find
from sslbench.paths import not_written, temporary_beside
from sslbench.results import MetricValue, Result
from sslbench.results.records import slug
from sslbench.text import csv_text

_TIMM_HEADINGS = "model top1 top1_err top5 top5_err param_count img_size crop_pct interpolation benchmark layer".split()
_TASKS = {
    **dict.fromkeys(
        ("knn", "linear", "linear-online", "finetune", "svm", "low-shot", "lsr", "robustness"), "image-classification"
    ),
    **dict.fromkeys(("segmentation", "segmentation-knn"), "image-segmentation"),
    "detection": "object-detection",
    "depth": "depth-estimation",
    "zero-shot": "zero-shot-image-classification",
}
"""Tasks of the Hub by protocol; the others measure features."""


def to_timm_csv(board: Board, path: Path) -> None:
    """Write a CSV as timm's results-imagenet.csv: results with a top-1 accuracy; `benchmark` and `layer` stand last.

    `param_count` is in millions, without a classifier. `crop_pct` is crop / resize, 1 for images that are not cropped.

    Raises:
        ResultError: no result has a top-1 accuracy.
    """
    lines = []
    for row, column, cell, _ in measured(board):
        top1, top5 = (cell.metrics[name].value if name in cell.metrics else None for name in ("top1", "top5"))
        if top1 is None:
            continue
        accuracies = [number(each) for v in (top1, top5) for each in (v, None if v is None else 100 - v)]
        images = cell.records[0].preprocessing
        counts = [record.costs.parameters for record in cell.records if record.costs and record.costs.parameters]
        crop, squash, resize = (_side(images.get(name)) for name in ("crop", "squash", "resize"))
        size = crop or squash or resize
        shown = [number(size), f"{crop / resize:.3f}" if crop and resize else "1.000" if size else ""]
        millions = number(counts[0] / 1e6 if counts else None)
        lines.append(
            [row.label, *accuracies, millions, *shown, images.get("interpolation", ""), column.name, row.layer]
        )
    if not lines:
        raise ResultError("no result has a top-1 accuracy, which timm's CSV holds", "Use --csv.")
    write_text(path, csv_text([_TIMM_HEADINGS, *lines]))


def _side(size: object) -> float | None:
    """Return the first side of a size; None without one."""
    first = size[0] if isinstance(size, list | tuple) and size else size
    return float(first) if isinstance(first, int | float) else None


def to_mteb(board: Board, folder: Path) -> None:
    """Write MODEL/REVISION/TASK.json per result, as in the cache of MTEB, rates as fractions, and `model_meta.json`.

    Tasks have the names of columns: MTEB's own (16 images per class, features that are not standardised, k-means on
    batches) are measured otherwise, and their names would promise the same number.
    """
    for row, column, cell, metric in measured(board):
        name, revision = f"{row.label} {row.layer}", row.sha256[:40] or "no_revision_available"
        place = folder / slug(name) / revision
        write_text(place / "model_meta.json", _text({"name": name, "revision": revision}))
        task = re.sub(r"[^\w.-]+", "-", column.name)  # MTEB makes the name of the file of it
        record, values = cell.records[0], {**cell.metrics, "main_score": metric}
        scores = {
            key: round(each.value / find(column.metric if key == "main_score" else key).scale, 6)
            for key, each in values.items()
            if each.value is not None
        }
        stage = None if record.costs is None else record.costs.stages.get(record.protocol.name)
        result = {
            "dataset_revision": record.data.test.fingerprint,
            "task_name": task,
            "mteb_version": None,
            "scores": {"test": [{**scores, "hf_subset": "default", "languages": ["eng-Latn"]}]},
            "evaluation_time": None if stage is None else stage.seconds,
            "kg_co2_emissions": None,
            "date": datetime.datetime.fromisoformat(record.created).timestamp(),
        }
        write_text(place / f"{task}.json", _text(result))


def _text(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def to_model_card(board: Board, path: Path) -> None:
    """Write the measured rows as `model-index` of a model card; text and other metadata of an existing card stay.

    The leading metric of each result is written with its 95 % interval, layer and settings; rates are percent.

    Raises:
        ResultError: the file is no model card, there is no measured result, or it cannot be written.
    """
    from huggingface_hub import metadata_load
    from huggingface_hub.repocard import metadata_save

    remedy = "Give the README.md of a model, or a new file."
    if path.suffix != ".md":
        raise ResultError(f"{path} is no model card: its name does not end with .md", remedy)
    index: dict[str, list[dict[str, Any]]] = {}
    for row, column, cell, metric in measured(board):
        index.setdefault(row.weights, []).append(_entry(row, column, cell.records[0], metric))
    models = [{"name": name, "results": entries} for name, entries in index.items()]
    if not models:
        raise ResultError("a model card holds measured results, and there are floors and published numbers alone")
    try:
        old = metadata_load(path) if path.is_file() else None
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_beside(path, ".md") as temporary:
            if path.is_file():
                temporary.write_bytes(path.read_bytes())
            metadata_save(temporary, {"library_name": "sslbench", **(old or {}), "model-index": models})
            temporary.replace(path)
    except (ValueError, yaml.YAMLError) as error:
        raise ResultError(f"{path} is no model card: {error}", remedy) from error
    except OSError as error:
        raise ResultError(not_written(path, error)) from error


def _entry(row: Row, column: Column, record: Result, metric: MetricValue) -> dict[str, Any]:
    """Return the entry of a result: task, data and metric."""
    key, data = column.group.key, data_name(record.data.test.name)
    args = {name: round(v, 4) for name in ("value", "low", "high", "n") if (v := getattr(metric, name)) is not None}
    args |= {"layer": row.layer, "settings": key.settings, "protocol_version": key.version}
    return {
        "task": {"type": _TASKS.get(key.protocol, "image-feature-extraction"), "name": key.protocol},
        "dataset": {"type": data, "name": data, "config": f"{column.name} {row.layer}"},
        "metrics": [{"type": column.metric, "value": args.pop("value"), "name": column.title, "args": args}],
    }
