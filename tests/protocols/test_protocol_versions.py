"""A changed default changes numbers, so it raises the version of its protocol: results of two versions never mix.

A protocol of version 1 need not stand in versions.json.

`python tests/protocols/test_protocol_versions.py` writes versions.json anew, once the versions are right.
"""

import dataclasses
import hashlib
import json
import sys
from pathlib import Path

import pytest

from sslbench.config import describe
from sslbench.names import list_names
from sslbench.protocols import find

FILE = Path(__file__).with_name("versions.json")
NAMES = list_names("protocol")


def defaults(name):
    """Setting -> default, as text: what the hash is of. Records leave out the default of a setting that came later."""
    settings = find(name).settings
    later = {field.name for field in dataclasses.fields(settings) if field.metadata.get("added_later")}
    return {row.name: repr(row.default) for row in describe(settings) if row.name not in later}


def entry(name):
    text = json.dumps(defaults(name), sort_keys=True)
    return {"version": find(name).version, "defaults": hashlib.sha256(text.encode()).hexdigest()[:16]}


def recorded():
    return json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_default_raises_the_version(name):
    known, found = recorded().get(name), entry(name)
    if known == found or (known is None and found["version"] == 1):  # a new protocol has no results yet
        return
    update = "and run: python tests/protocols/test_protocol_versions.py"
    values = ", ".join(f"{key}={value}" for key, value in defaults(name).items())
    if known is not None and found["version"] <= known["version"]:
        pytest.fail(
            f"the settings of '{name}' or their defaults have changed, and its version is still {found['version']}. "
            f"Old results would share a column with new ones. They are now: {values}.\n"
            f"Set version={known['version'] + 1} in PROTOCOL of its module, say why in CHANGELOG.md, {update}"
        )
    pytest.fail(f"'{name}' has version {found['version']}, versions.json says {known}: check it, {update}")


def test_every_recorded_protocol_exists():
    assert set(recorded()) <= set(NAMES), "remove the line of a protocol that is gone from versions.json"


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: entry(name) for name in sorted(NAMES)}, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {FILE}\n")
