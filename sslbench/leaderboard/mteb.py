"""Results as files of MTEB: `MODEL/REVISION/TASK.json`, as they lie in the folder `results` of its cache."""

import datetime
import json
import re
from pathlib import Path
from typing import Any

from sslbench.leaderboard.model import Board, measured
from sslbench.leaderboard.tables import write_text
from sslbench.metrics.catalog import find
from sslbench.results.records import slug


def to_mteb(board: Board, folder: Path) -> None:
    """Write a file per result, rates as fractions, and `model_meta.json` per row.

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
