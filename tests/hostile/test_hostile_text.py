"""Malformed text ends in one clear message, in bounded time and memory: never in a traceback or a hang."""

import json
import os

import pytest
from hostile import child, text_cases

LONG = int(os.environ.get("SSLBENCH_HOSTILE", "0"))
"""Further mutations of each kind; `make hostile` asks for many."""


@pytest.fixture(scope="module", autouse=True)
def heavy_modules():
    """What every command imports, so that a child need not."""
    import sslbench.api  # noqa: F401
    import sslbench.cli.eval_command  # noqa: F401
    import sslbench.data.open  # noqa: F401
    from sslbench.names import find_module, list_names

    for kind in ("source", "protocol"):
        for name in list_names(kind):
            find_module(kind, name)


def failures(cases, tmp_path, *, seconds=child.SECONDS):
    """The cases that ended badly, each with the last lines of what it said."""
    found, count = [], 0
    for i, (name, write) in enumerate(cases):
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
