"""A changed default changes numbers, so it raises the version of its protocol: results of two versions never mix.

`python tests/protocols/test_protocol_versions.py` writes versions.json anew, once the versions are right.
"""

import hashlib
import importlib
import json
import sys
from pathlib import Path

import pytest

from sslbench.config import describe
from sslbench.names import find_module, list_names

FILE = Path(__file__).with_name("versions.json")
NAMES = [*list_names("protocol"), "detection"]


def protocol(name):
    """(version, class of the settings) of a protocol."""
    if name == "detection":
        recipe = importlib.import_module("sslbench.detection.recipe").DetectionRecipe
        return importlib.import_module("sslbench.detection").VERSION, recipe
    module = find_module("protocol", name)
    return module.VERSION, module.Settings


def defaults(name):
    """Setting -> default, as text: what the hash is of."""
    return {row.name: repr(row.default) for row in describe(protocol(name)[1])}


def entry(name):
    text = json.dumps(defaults(name), sort_keys=True)
    return {"version": protocol(name)[0], "defaults": hashlib.sha256(text.encode()).hexdigest()[:16]}


def recorded():
    return json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_default_raises_the_version(name):
    known, found = recorded().get(name), entry(name)
    if known == found:
        return
    update = "and run: python tests/protocols/test_protocol_versions.py"
    values = ", ".join(f"{key}={value}" for key, value in defaults(name).items())
    if known is None:
        pytest.fail(f"'{name}' is new and not in versions.json yet: look at its defaults ({values}), {update}")
    if found["version"] <= known["version"]:
        pytest.fail(
            f"the settings of '{name}' or their defaults have changed, and its VERSION is still {found['version']}. "
            f"Old results would share a column with new ones. They are now: {values}.\n"
            f"Set VERSION = {known['version'] + 1} in the protocol's module, say why in CHANGELOG.md, {update}"
        )
    pytest.fail(f"'{name}' has VERSION {found['version']}, versions.json says {known['version']}: check it, {update}")


def test_every_recorded_protocol_exists():
    assert set(recorded()) <= set(NAMES), "remove the line of a protocol that is gone from versions.json"


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: entry(name) for name in sorted(NAMES)}, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {FILE}\n")
