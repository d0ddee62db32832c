"""Finding, reading and running golden cases: inputs and outputs recorded from reference implementations.

A topic is a folder with `meta.json` (cases by name), `inputs.npz` and `expected.npz` (keys `case/name`) and, for
outputs that are no arrays, `expected.json`; or with one `cases.json`. A case is known by `topic/case`. Each module
`golden_*.py` names in PATTERNS the cases that it runs; they are imported when the first case runs.
"""

import dataclasses
import functools
import importlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest

NOT_BUILT_YET: tuple[str, ...] = ()
"""Patterns of cases that no runner knows yet. The list only shrinks."""


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
        """Description of the call; empty for a case that has recorded results alone."""
        return dict(_json_or_nothing(self.topic / "meta.json").get("cases", {}).get(self.name, {}))

    @property
    def args(self) -> dict[str, Any]:
        """Arguments of the call; those of nested groups stand beside the others."""
        return dict(_flat(self.meta.get("args") or {}))

    @property
    def call(self) -> str:
        """The reference function, in words."""
        return str(self.meta.get("callable") or "")

    def is_of(self, *projects: str) -> bool:
        """Tell whether the case was recorded from one of these projects."""
        repos = self.meta.get("repo") or ""
        return any(project in (repos if isinstance(repos, str) else " ".join(repos)) for project in projects)

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


def topics(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir())


def find_cases(root: Path) -> list[Case]:
    """All cases of all topics below a folder, in order."""
    return [case for topic in topics(root) for case in cases_of(topic)]


def cases_of(topic: Path) -> list[Case]:
    names = {*_json_or_nothing(topic / "meta.json").get("cases", {}), *_json_or_nothing(topic / "expected.json")}
    if (topic / "cases.json").is_file():
        names.add("cases.json")
    # A folder that cannot be read as a topic must not look like one that passed.
    return [Case(topic, name) for name in sorted(names or {"no-cases-found"})]


def runners_of(case: Case) -> list[Callable[[Case], None]]:
    return [run for pattern, run in _runners() if fnmatchcase(case.id, pattern)]


def is_not_built(case: Case) -> bool:
    return any(fnmatchcase(case.id, pattern) for pattern in NOT_BUILT_YET)


def run(case: Case) -> None:
    """Compare ours with a case; one of an unknown kind fails."""
    found = runners_of(case)
    if not found and is_not_built(case):
        pytest.skip("not built yet")
    assert len(found) == 1, f"{len(found)} runners know this kind of case; it is not in NOT_BUILT_YET either"
    found[0](case)


def run_topic(topic: Path) -> None:
    """Run all cases of a topic, and name all that fail."""
    failed: dict[str, BaseException] = {}
    skipped: dict[str, str] = {}
    for case in cases_of(topic):
        try:
            run(case)
        except pytest.skip.Exception as reason:
            skipped[case.name] = str(reason)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - all cases that fail are named
            failed[case.name] = error
    _load.cache_clear()
    if failed:
        listed = "\n\n".join(f"{name}: {type(error).__name__}: {error}" for name, error in failed.items())
        first = next(iter(failed.values()))
        raise AssertionError(
            f"{len(failed)} cases of {topic.name} differ; above, the first of them:\n{listed}"
        ) from first
    if skipped:
        pytest.skip("; ".join(f"{name}: {reason}" for name, reason in skipped.items()))


def option(args: Mapping[str, Any], *names: str, default: Any = None) -> Any:
    """Return the first of these arguments that a case has, or the reference's own default."""
    return next((args[name] for name in names if args.get(name) is not None), default)


def write_topic(
    root: Path,
    topic: str,
    cases: Mapping[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]],
    expected_json: Mapping[str, Any] | None = None,
) -> Path:
    """Write a topic as the recorded ones, and return its folder.

    Args:
        root: the folder above.
        topic: name of the topic.
        cases: name -> (meta, inputs, expected).
        expected_json: results that are no arrays, by name of the case.
    """
    folder = root / topic
    folder.mkdir()
    (folder / "meta.json").write_text(json.dumps({"cases": {name: case[0] for name, case in cases.items()}}))
    for file, position in (("inputs.npz", 1), ("expected.npz", 2)):
        np.savez(
            folder / file, **{f"{name}/{key}": x for name, case in cases.items() for key, x in case[position].items()}
        )
    if expected_json:
        (folder / "expected.json").write_text(json.dumps(expected_json))
    return folder


@functools.cache
def _runners() -> list[tuple[str, Callable[[Case], None]]]:
    modules = [importlib.import_module(path.stem) for path in sorted(Path(__file__).parent.glob("golden_*.py"))]
    return [pair for module in modules for pair in getattr(module, "PATTERNS", {}).items()]


def _flat(args: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in args.items():
        yield key, value
        if isinstance(value, Mapping):
            yield from _flat(value)


@functools.cache
def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _json_or_nothing(path: Path) -> Any:
    return _json(path) if path.is_file() else {}


@functools.cache
def _load(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        return {}
    with np.load(path) as file:
        return {key: file[key] for key in file.files}


def _arrays(path: Path, case: str) -> dict[str, np.ndarray]:
    return {key[len(case) + 1 :]: value for key, value in _load(path).items() if key.startswith(case + "/")}
