"""Finding and reading golden cases: inputs and outputs recorded from reference implementations.

A topic is a folder with `meta.json` (cases by name), `inputs.npz` and `expected.npz` (keys `case/name`) and, for
outputs that are no arrays, `expected.json`; or with one `cases.json`. A case is known by `topic/case`.
"""

import dataclasses
import functools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Case:
    """One recorded call.

    Attributes:
        topic: the topic's folder.
        name: of the case.
    """

    topic: Path
    name: str

    @property
    def id(self) -> str:
        return f"{self.topic.name}/{self.name}"

    @property
    def meta(self) -> dict[str, Any]:
        return _json(self.topic / "meta.json")["cases"][self.name]

    def inputs(self) -> dict[str, np.ndarray]:
        return _arrays(self.topic / "inputs.npz", self.name)

    def expected(self) -> dict[str, np.ndarray]:
        return _arrays(self.topic / "expected.npz", self.name)

    def expected_json(self) -> Any:
        """Recorded results that are no arrays."""
        return _json(self.topic / "expected.json")[self.name]


def roots() -> list[Path]:
    """The folders that hold topics: the one beside this file, and $SSLBENCH_GOLDEN when it is set."""
    extra = os.environ.get("SSLBENCH_GOLDEN")
    return [Path(__file__).parent / "cases", *([Path(extra)] if extra else [])]


def find_cases(folder: Path) -> list[Case]:
    """All cases of all topics below a folder, in order."""
    cases = []
    for topic in sorted(path for path in folder.iterdir() if path.is_dir()):
        names: set[str] = set()
        if (topic / "meta.json").is_file():
            names |= set(_json(topic / "meta.json")["cases"])
        if (topic / "expected.json").is_file():
            names |= set(_json(topic / "expected.json"))
        if (topic / "cases.json").is_file():
            names.add("cases.json")
        if not names:
            # A folder that cannot be read as a topic must not look like one that passed.
            names.add("no-cases-found")
        cases += [Case(topic, name) for name in sorted(names)]
    return cases


@functools.cache
def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@functools.cache
def _load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {key: file[key] for key in file.files}


def _arrays(path: Path, case: str) -> dict[str, np.ndarray]:
    return {key[len(case) + 1 :]: value for key, value in _load(path).items() if key.startswith(case + "/")}
