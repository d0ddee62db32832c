"""Trackio: one run per record, in the project of TRACKIO_PROJECT, else `sslbench`; TRACKIO_SPACE_ID names a Space."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

NEEDS = "trackio"


def send(record: dict[str, Any], file: Path) -> None:
    """Log the metrics of a run, and all other facts of the record as its config."""
    import trackio

    facts = {key: value for key, value in record.items() if key != "metrics"}
    values = {name: metric["value"] for name, metric in record["metrics"].items() if metric["value"] is not None}
    # Trackio prints where it logs to; the output of a command is its table. A record that is written again has the
    # name of its run, in which the last values count.
    with contextlib.redirect_stdout(sys.stderr):
        run: Any = trackio.init(
            os.environ.get("TRACKIO_PROJECT", "sslbench"),
            name=file.stem,
            group=record["protocol"]["name"],
            config=facts,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        run.log(values, step=0)
        run.finish()
