"""What every preset promises, tested on every preset there is."""

from helpers.offenders import offenders

from sslbench.config import build
from sslbench.library.presets import load_preset
from sslbench.names import list_names
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import find
from sslbench.protocols._parts.presets import full_settings

NAMES = sorted(list_names("preset"))


def is_complete_and_builds(name):
    preset = load_preset(name)
    assert preset.title and preset.version >= 1 and not preset.modified and len(preset.sha256) == 16
    assert any(char.isdigit() for char in preset.source) or ".py" in preset.source, "names no paper and no file"
    build(find(preset.protocol).settings, preset.settings, name)
    build(Preprocessing, preset.preprocessing, name)
    assert preset.family == preset.protocol or (preset.family, preset.protocol) == ("linear", "linear-online")


def test_every_preset_is_complete_and_its_settings_build():
    assert offenders(NAMES, is_complete_and_builds) == []


def declares_selection_on_test(name):
    protocol, content = full_settings(name)
    asked = "test" in (content.get("select"), content.get("select_on"))
    assert load_preset(name).selects_on_test == asked
    _, defaults = full_settings(protocol)
    assert "test" not in (defaults.get("select"), defaults.get("select_on"))


def test_what_is_selected_on_test_is_declared_and_no_default_does_it():
    assert offenders(NAMES, declares_selection_on_test) == []


def test_no_two_presets_of_a_protocol_are_the_same():
    contents = [full_settings(name) for name in NAMES]
    assert all(contents.count(one) == 1 for one in contents)
