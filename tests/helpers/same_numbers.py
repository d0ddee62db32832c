"""Numbers and keys that must not move: of all records, scores and logs that the tests write, before and after a change.

    PYTHONPATH=tests python -m pytest -q -n 2 -p helpers.same_numbers --numbers-to before
    # change the code
    PYTHONPATH=tests python -m pytest -q -n 2 -p helpers.same_numbers --numbers-to after
    PYTHONPATH=tests python -m helpers.same_numbers before after

It knows nothing of the code, only the files that users read, so that it outlives every move. Numbers are compared to
the last bit, on one machine: another processor rounds otherwise. Identities of records may change, but two records have
to share one afterwards exactly where they did.
"""

import hashlib
import json
import os
import sys
import zipfile
from collections import defaultdict
from pathlib import Path

import pytest

MEASURED = ("metrics", "per_class", "per_class_metrics", "groups", "ranges", "selected", "variants", "calibration")
LOGGED = ("step", "loss", "parts", "lr")


def pytest_addoption(parser):
    parser.addoption("--numbers-to", type=Path, required=True, help="new folder for what the tests write")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item):
    """Read what the test has written, before its folder goes."""
    folder = item.funcargs.get("tmp_path")
    numbers = numbers_in(folder) if folder is not None and folder.is_dir() else {}
    if numbers:
        out = item.config.getoption("--numbers-to")
        out.mkdir(parents=True, exist_ok=True)
        with (out / f"{os.getpid()}.jsonl").open("a") as lines:
            lines.write(json.dumps({"test": item.nodeid, "numbers": numbers}) + "\n")


def files_in(folder):
    """Yield the files at any depth, without a call within a call per folder."""
    folders = [folder]
    while folders:
        for path in folders.pop().iterdir():
            if path.is_dir() and not path.is_symlink():
                folders.append(path)
            else:
                yield path


def numbers_in(folder):
    """Return what the records, scores and logs below a folder hold: place without the identity -> content."""
    found = {}
    for path in sorted(files_in(folder)):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".json" and (record := of_record(path)) is not None:
            found[name.replace(record["id"], "ID")] = record
        elif path.name.endswith(".scores.npz") and zipfile.is_zipfile(path):
            name = name.replace(path.name.split(".")[-3].rpartition("-")[2], "ID")
            with zipfile.ZipFile(path) as arrays:
                found[name] = {entry: digest(arrays.read(entry)) for entry in sorted(arrays.namelist())}
        elif path.name == "metrics.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
            found[name] = [{key: line[key] for key in LOGGED if key in line} for line in lines]
    return found


def of_record(path):
    try:
        content = json.loads(path.read_text())
    except (ValueError, OSError):
        return None
    if not isinstance(content, dict) or not {"id", "metrics", "protocol"} <= content.keys():
        return None
    return {key: content[key] for key in ("id", *MEASURED) if key in content}


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def read(folder):
    """Return test -> numbers of all processes."""
    lines = [line for path in sorted(Path(folder).glob("*.jsonl")) for line in path.read_text().splitlines()]
    return {entry["test"]: entry["numbers"] for entry in map(json.loads, lines)}


def differences(before, after):
    """Return lines about tests in both whose numbers differ, and about identities that were divided or merged."""
    lines, identities = [], (defaultdict(set), defaultdict(set))
    for test in sorted(before.keys() & after.keys()):
        one, other = before[test], after[test]
        if one.keys() != other.keys():
            lines.append(f"{test}: other files: {', '.join(sorted(one.keys() ^ other.keys()))}")
        for name in sorted(one.keys() & other.keys()):
            content = [{**value, "id": ""} if isinstance(value, dict) else value for value in (one[name], other[name])]
            if content[0] != content[1]:
                lines.append(f"{test}: {name}: other numbers")
            if "id" in one[name]:
                identities[0][one[name]["id"]].add(other[name].get("id"))
                identities[1][other[name].get("id")].add(one[name]["id"])
    for words, of in zip(("is now divided into", "now stands for"), identities, strict=True):
        lines += [f"identity {key} {words} {', '.join(map(str, ids))}" for key, ids in of.items() if len(ids) > 1]
    return lines


def main(before, after):
    one, other = read(before), read(after)
    lines = differences(one, other)
    print(*lines, sep="\n")
    print(f"{len(one.keys() & other.keys()):,} tests in both, {len(one.keys() ^ other.keys()):,} in one only")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
