"""File metrics.jsonl: one JSON object per log record and per evaluation."""

import json
from pathlib import Path

from sslbench.results import plain
from sslbench.train.meter import LogRecord
from sslbench.train.observers import Observer, RunInfo, scalars
from sslbench.weights.save import new_file


class JsonLines(Observer):
    """File of JSON lines, appended at once, so that a killed run leaves all its records.

    When a run continues, the records after its last checkpoint are removed: these updates are repeated, and no update
    is in the file twice.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def started(self, run: RunInfo) -> None:
        """Keep the records up to the update from which the run continues; a new run starts with an empty file."""
        records = [record for record in read(self.path) if run.start and record["step"] <= run.start]
        with new_file(self.path) as temporary:
            temporary.write_text("".join(map(_text, records)), encoding="utf-8")

    def line(self, line: LogRecord) -> None:
        """Append an object with step, epoch, loss, lr, ..."""
        self._append(scalars(line))

    def evaluated(self, record: dict[str, float | int]) -> None:
        """Append an object with step, epoch and the scores."""
        self._append(record)

    def _append(self, record: dict[str, float | int]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_text(record))


def _text(record: dict[str, float | int]) -> str:
    """Return a record as a line; numbers that are not finite, as after an overflow of fp16, are null: JSON has none."""
    return json.dumps(plain(record), allow_nan=False) + "\n"


def read(path: Path) -> list[dict[str, float | int]]:
    """Return the objects in a file, without a truncated last line; [] if the file does not exist."""
    if not path.is_file():
        return []
    records = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return records
