"""TensorBoard: a row per record in the tab HPARAMS, `tensorboard --logdir results/tensorboard`."""

import json
from pathlib import Path
from typing import Any

NEEDS = "tensorboard"


def send(record: dict[str, Any], file: Path) -> None:
    """Write an event file below `tensorboard/` of the folder of results: metrics, weights, data and settings."""
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    protocol, folder = record["protocol"], file.parent.parent / "tensorboard" / file.parent.name / file.stem
    for earlier in folder.glob("events.out.tfevents.*"):
        earlier.unlink()
    facts = {"weights": record["weights"]["name"], "layer": record["layer"], "protocol": protocol["name"]}
    facts |= {"test": record["data"]["test"]["name"], "seed": record["seed"]}
    facts |= {name: json.dumps(value) for name, value in protocol["settings"].items()}
    values = {name: metric["value"] for name, metric in record["metrics"].items() if metric["value"] is not None}
    with SummaryWriter(str(folder)) as writer:
        # `add_hparams` would open a second event file.
        for summary in hparams(facts, values):  # type: ignore[no-untyped-call]
            writer.file_writer.add_summary(summary)
        for name, value in values.items():
            writer.add_scalar(name, value)
