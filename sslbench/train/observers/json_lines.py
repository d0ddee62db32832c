"""metrics.jsonl: one JSON object per line of the log and per evaluation."""

import json
from pathlib import Path

from sslbench.train.meter import Line
from sslbench.train.observers import Run, scalars
from sslbench.weights.save import new_file


class JsonLines:
    """Appends every line as it comes, so that a run that was killed has left what it knew.

    When a run continues, what the earlier one wrote after its last checkpoint goes: these updates are done again, and
    no update stands in the file twice.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def started(self, run: Run) -> None:
        """Keeps the lines up to where the run continues; a new run begins with an empty file."""
        kept = [record for record in read(self.path) if run.start and record["step"] <= run.start]
        with new_file(self.path) as temporary:
            temporary.write_text("".join(map(_text, kept)), encoding="utf-8")

    def line(self, line: Line) -> None:
        """One object with step, epoch, loss, lr, ..."""
        self._append(scalars(line))

    def evaluated(self, record: dict[str, float | int]) -> None:
        """One object with step, epoch and the scores."""
        self._append(record)

    def finished(self) -> None:
        """Nothing is left to do."""

    def _append(self, record: dict[str, float | int]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_text(record))


def _text(record: dict[str, float | int]) -> str:
    return json.dumps(record) + "\n"


def read(path: Path) -> list[dict[str, float | int]]:
    """The objects in the file, without a last line that was cut off; [] when there is no file."""
    if not path.is_file():
        return []
    records = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return records
