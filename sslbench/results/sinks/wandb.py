"""Weights & Biases: one run per record, in the project that `WANDB_PROJECT` names."""

import os
from pathlib import Path
from typing import Any

NEEDS = "wandb"


def send(record: dict[str, Any], file: Path) -> None:
    """Write the metrics as the summary of a run, and all other facts of the record as its config."""
    import wandb

    facts = {key: value for key, value in record.items() if key != "metrics"}
    # A record that is written again replaces the run of its id. A training that is evaluated may have a run open.
    with wandb.init(
        id=record["id"],
        resume="allow",
        name=file.stem,
        group=record["protocol"]["name"],
        config=facts,
        reinit="create_new",
        dir=os.environ.get("WANDB_DIR"),  # wandb itself reads it once per process
    ) as run:
        run.summary.update({name: metric["value"] for name, metric in record["metrics"].items()})
