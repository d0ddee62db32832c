"""Results in the metadata of a Hugging Face model card (`model-index`)."""

from pathlib import Path
from typing import Any

import yaml

from sslbench.errors import ResultError
from sslbench.leaderboard.columns import data_name
from sslbench.leaderboard.model import Board, Column, Row, measured
from sslbench.paths import not_written, temporary_beside
from sslbench.results import MetricValue, Result

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
