"""Hostile cases run one after another, each in a child process, and the list of those that ended badly."""

import os
import random
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from hostile import child

LONG = int(os.environ.get("SSLBENCH_HOSTILE", "0"))
"""Mutations of each kind; `make hostile` asks for many. 0: a fixed sample of the cases."""

Case = tuple[str, Callable[[Path], list[str]]]
"""A name, and a function that writes files into an empty folder and returns the words of the command."""

Judge = Callable[[child.Outcome, Path], str]
"""From the outcome of a case and its folder to what is wrong with it, or ''."""


def chosen(cases: Iterable[Case]) -> list[Case]:
    """Return all cases for `make hostile`, else a few in which every kind occurs, the same every time."""
    cases = list(cases)
    if LONG:
        return cases
    random.Random(0).shuffle(cases)  # an attack then meets any kind of input
    missing = set[str]().union(*(kinds(name) for name, _ in cases))
    some = []
    while missing:
        some.append(max(cases, key=lambda case: len(kinds(case[0]) & missing)))
        missing -= kinds(some[-1][0])
    return some


def kinds(name: str) -> set[str]:
    """Return the kinds of input and of attack of a case: the words of its name, and all before a colon as one.

    Of a document with a changed value, these are the kind of document and the value, not the value's place.

    >>> sorted(kinds("preset: settings.k is huge"))
    ['huge', 'preset']
    """
    start, _, attack = name.partition(": ")
    words = re.findall("[a-z]+", f"{start} {attack.rpartition(' is ')[2]}".lower())
    return {*words, start.lower()} if attack else set(words)


def unclear(outcome: child.Outcome, folder: Path) -> str:
    """Return what is wrong with the end of a command: a traceback, a signal, silence or a raw escape sequence."""
    if not outcome.is_clear:
        return f"exit {outcome.code} after {outcome.seconds:.1f} s"
    if "\x1b" in outcome.out + outcome.err:
        return "a raw escape sequence"
    return f"{folder / 'ran'} was written" if (folder / "ran").exists() else ""


def failures(
    cases: Iterable[Case], folder: Path, *, judges: tuple[Judge, ...] = (), memory: int = child.BYTES
) -> list[str]:
    """Return the cases that ended badly, each with the last lines of what it said.

    Args:
        cases: to run.
        folder: where each gets a folder of its own.
        judges: of every outcome, beside `unclear`.
        memory: of each child, in bytes.
    """
    found, some = [], chosen(cases)
    assert len(some) >= 5
    for i, (name, write) in enumerate(some):
        place = folder / str(i)
        place.mkdir()
        environment = dict(os.environ)
        try:
            outcome = child.run(write(place), place, memory=memory)
        finally:
            os.environ.clear()
            os.environ.update(environment)
        for judge in (unclear, *judges):
            if wrong := judge(outcome, place):
                said = " | ".join(outcome.err.strip().splitlines()[-2:])[-300:]
                found.append(f"{name}: {wrong}: {said}")
                break
        subprocess.run(["rm", "-rf", str(place)], check=True)  # folders deeper than Python's own way can remove
    return found


def report(found: list[str]) -> None:
    """Fail with the whole list."""
    assert not found, f"{len(found)} cases:\n" + "\n".join(found)
