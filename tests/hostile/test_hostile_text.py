"""Malformed text ends in one clear message, in bounded time and memory: never in a traceback or a hang."""

import contextlib
import importlib
import json
import os
import random

import pytest
from hostile import child, text_cases

LONG = int(os.environ.get("SSLBENCH_HOSTILE", "0"))
"""Further mutations of each kind; `make hostile` asks for many."""


@pytest.fixture(scope="module", autouse=True)
def heavy_modules(tmp_path_factory):
    """What a command imports, imported here once: a child then begins in milliseconds."""
    folder = tmp_path_factory.mktemp("first")
    data = text_cases.photos(folder)
    for words in ([*text_cases.PIXELS, "--data", str(data)], ["check-data", str(data)], ["leaderboard", "results"]):
        outcome = child.run(words, folder, seconds=300)
        assert outcome.code == 0, outcome.err
        for name in outcome.modules:
            with contextlib.suppress(Exception):  # parts of a package that only it can import
                importlib.import_module(name)


def chosen(cases, n=30):
    """All cases for `make hostile`, else some of them, the same every time."""
    cases = list(cases)
    return cases if LONG or len(cases) <= n else random.Random(0).sample(cases, n)


def failures(cases, tmp_path, *, seconds=child.SECONDS):
    """The cases that ended badly, each with the last lines of what it said."""
    found, count = [], 0
    for i, (name, write) in enumerate(chosen(cases)):
        folder = tmp_path / str(i)
        folder.mkdir()
        environment = dict(os.environ)
        try:
            outcome = child.run(write(folder), folder, seconds=seconds)
        finally:
            os.environ.clear()
            os.environ.update(environment)
        count += 1
        raw = "\x1b" in outcome.out + outcome.err
        if not outcome.is_clear or raw:
            said = " | ".join(outcome.err.strip().splitlines()[-2:])[-300:]
            found.append(
                f"{name}: exit {outcome.code} after {outcome.seconds:.1f} s{', raw escape' if raw else ''}: {said}"
            )
    assert count > 10
    return found


def report(found):
    assert not found, f"{len(found)} cases:\n" + "\n".join(found)


def test_yaml(tmp_path):
    report(failures(text_cases.yaml_cases(n=LONG), tmp_path))


def test_manifests(tmp_path):
    report(failures(text_cases.manifest_cases(), tmp_path))


def test_voc_trees(tmp_path):
    report(failures(text_cases.voc_cases(), tmp_path))


def test_tables(tmp_path):
    report(failures(text_cases.table_cases(n=LONG), tmp_path))


def test_records(tmp_path):
    sane = tmp_path / "sane"
    sane.mkdir()
    data = text_cases.photos(sane)
    outcome = child.run([*text_cases.PIXELS, "--data", str(data), "--out", "results"], sane)
    assert outcome.code == 0, outcome.err
    record = json.loads(next((sane / "results").rglob("*.json")).read_text())
    report(failures(text_cases.record_cases(record, n=LONG), tmp_path))
