"""Reading what the topics of dense tasks, robustness and copies record: options, numbered arrays, kinds of cases."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from golden_cases import Case

Runner = Callable[[Case], None]


def options(case: Case, **defaults: Any) -> dict[str, Any]:
    """Return the arguments of a case; those that are absent are the reference's defaults, given here."""
    return defaults | case.args


def series(arrays: dict[str, np.ndarray], *names: str) -> dict[str, np.ndarray]:
    """Return the arrays `name/0`, `name/1`, ... or `name/a` by what follows the name, in order of the numbers.

    A single array may be called `name` alone; it is then number 0. Of several names the first that occurs is taken.
    """
    for name in names:
        if found := {key[len(name) + 1 :]: value for key, value in arrays.items() if key.startswith(f"{name}/")}:
            return dict(sorted(found.items(), key=lambda item: _order(item[0])))
        if name in arrays:
            return {"0": arrays[name]}
    return {}


def numbered(arrays: dict[str, np.ndarray], *names: str) -> list[np.ndarray]:
    """Return the values of `series`."""
    return list(series(arrays, *names).values())


def by_kind(kinds: dict[str, Runner]) -> Runner:
    """Return the runner of a topic, which runs each case by its kind.

    Args:
        kinds: runners by a regular expression; the first that occurs in the case's callable counts, or, if none does,
            in its name.
    """

    def run(case: Case) -> None:
        for text in (case.call, case.name):
            for pattern, runner in kinds.items():
                if re.search(pattern, text):
                    runner(case)
                    return
        raise AssertionError(f"{case.id}: no runner knows this kind of case: {list(kinds)}")

    return run


def _order(place: str) -> list[Any]:
    """Return a key that sorts numbers as numbers, between words."""
    parts: Iterable[str] = re.split(r"(\d+)", place)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]
