"""Settings: what is accepted, what is refused, and where a value came from."""

import dataclasses
from typing import Literal

import pytest

from sslbench.config import build, describe, read_yaml, resolve, setting, shortened
from sslbench.errors import UsageError
from sslbench.paths import builtin_dir, is_shipped


@dataclasses.dataclass(frozen=True)
class Inner:
    size: int = 3


@dataclasses.dataclass(frozen=True)
class Settings:
    k: tuple[int, ...] = setting((1, 5), "neighbours that vote")
    rate: float = setting(0.1, "step", unit="1/s")
    metric: Literal["cosine", "l2"] = setting("cosine", "distance")
    name: str | None = setting(None, "a name")
    flag: bool = setting(False, "a switch")
    shape: tuple[int, int] | None = setting(None, "height, width")
    inner: Inner = setting(Inner(), "more")


def test_values_of_the_right_type_are_taken_as_they_are():
    values = {
        "k": [10, 20],
        "rate": 1,
        "metric": "l2",
        "name": "x",
        "flag": True,
        "shape": [3, 4],
        "inner": {"size": 7},
    }
    assert build(Settings, values, "test") == Settings((10, 20), 1.0, "l2", "x", True, (3, 4), Inner(7))


def test_one_value_stands_for_a_list_and_yaml_text_for_a_float():
    settings = build(Settings, {"k": 20, "rate": "1e-3"}, "test")
    assert settings.k == (20,)
    assert settings.rate == 0.001


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"metrik": "l2"}, "unknown key 'metrik'\nDid you mean 'metric'?"),
        ({"metric": "cosin"}, "metric: 'cosin' is not possible\nDid you mean 'cosine'?"),
        ({"k": [1.5]}, "k: should be a whole number, not 1.5"),
        ({"k": "ten"}, "k: should be a whole number, not 'ten'"),
        ({"rate": "fast"}, "rate: should be a number, not 'fast'"),
        ({"rate": True}, "rate: should be a number, not True"),
        ({"flag": "False"}, "flag: should be true or false, not 'False'"),
        ({"flag": 0}, "flag: should be true or false, not 0"),
        ({"shape": [1, 2, 3]}, "shape: should be [a whole number, a whole number] or null, not [1, 2, 3]"),
        ({"inner": {"sise": 1}}, "inner: unknown key 'sise'\nDid you mean 'size'?"),
        ({"inner": 3}, "inner: should be Inner, not 3"),
    ],
)
def test_wrong_keys_and_values_are_refused_with_the_nearest_name(values, message):
    with pytest.raises(UsageError) as error:
        build(Settings, values, "file.yaml")
    assert str(error.value) == f"file.yaml: {message}"


def test_a_missing_required_key_is_named():
    @dataclasses.dataclass(frozen=True)
    class Required:
        title: str

    with pytest.raises(UsageError, match="the key 'title' is missing"):
        build(Required, {}, "file.yaml")


def test_later_layers_win_and_every_value_knows_its_origin():
    layers = [("benchmark x", {"rate": 0.5, "metric": "l2"}), ("command line", {"rate": 0.7})]
    settings, origins = resolve(Settings, layers)
    assert (settings.rate, settings.metric, settings.flag) == (0.7, "l2", False)
    assert (origins["rate"], origins["metric"], origins["flag"]) == ("command line", "benchmark x", "default")


def test_an_error_names_the_layer_it_is_in():
    with pytest.raises(UsageError, match=r"^benchmark x: rate"):
        resolve(Settings, [("benchmark x", {"rate": "much"}), ("command line", {})])


@dataclasses.dataclass(frozen=True)
class Training:
    steps: int = setting(1000, "updates")
    warmup: int = setting(100, "warm-up", part_of="steps")
    drops: tuple[int, ...] = setting((600, 900), "drops of the rate", part_of="steps")
    epochs: float = setting(30, "epochs")
    first: float = setting(3, "first epochs", part_of="epochs")
    schedule: dict[str, object] | str = setting("cosine", "schedule", part_of="epochs")


@pytest.mark.parametrize(
    ("published", "chosen", "expected"),
    [
        ({}, {"steps": 950}, {}),
        ({}, {"steps": 900}, {"drops": (540, 810)}),
        ({}, {"steps": 100}, {"warmup": 10, "drops": (60, 90)}),
        ({}, {"steps": 2}, {"warmup": 0, "drops": (1, 2)}),
        ({}, {"steps": 100, "warmup": 100}, {"drops": (60, 90)}),
        ({"steps": 100, "warmup": 50, "drops": [80]}, {"steps": 10}, {"warmup": 5, "drops": (8,)}),
        ({"steps": 100}, {"steps": 2000}, {}),  # longer than published
        ({}, {"epochs": 2}, {"first": 0.2}),
        (
            {"schedule": {"name": "multistep", "values": [1, 0.1], "milestones": [20]}},
            {"epochs": 15},
            {"schedule": {"name": "multistep", "values": [1, 0.1], "milestones": [10]}},
        ),
        ({"schedule": {"name": "step", "values": [1, 0.1]}}, {"epochs": 15}, {}),
    ],
)
def test_parts_that_no_longer_fit_are_shortened_in_proportion(published, chosen, expected):
    layers = [("published", published), ("command line", chosen)]
    assert shortened(Training, layers) == expected
    whole, _ = resolve(Training, [layers[0], ("in proportion", expected), layers[1]])
    assert all(type(drop) is int for drop in whole.drops)


def test_settings_describe_themselves():
    row = describe(Settings)[1]
    assert (row.name, row.type, row.default, row.unit, row.meaning) == ("rate", "a number", 0.1, "1/s", "step")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "occurs twice"),
        ("a: [1\n", "not valid YAML"),
        ("- 1\n", "should hold a mapping"),
        ("a: !!python/object/apply:os.system ['true']\n", "not valid YAML"),
        ("a: &b [1]\nc: *b\n", "aliases"),
    ],
)
@pytest.mark.parametrize("shipped", [False, True], ids=["user's", "shipped"])
def test_yaml_is_read_strictly(tmp_path, monkeypatch, text, message, shipped):
    monkeypatch.setattr("sslbench.config.is_shipped", lambda path: shipped)
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_yaml(path)


def test_shipped_files_are_read_fast_and_the_same(tmp_path, monkeypatch):
    own = tmp_path / "x.yaml"
    own.write_text("a: 2026-11-28\nb: [on, 0x1F, 1e3, ~, '*']\n")
    files = [own, *sorted(builtin_dir("model_converters").glob("*.yaml")), *builtin_dir("configs").glob("*.yaml")]
    assert len(files) > 50 and [file for file in files if not is_shipped(file)] == [own]
    assert not is_shipped(builtin_dir("configs") / ".." / "x.yaml")
    found = []
    for shipped in (False, True):
        monkeypatch.setattr("sslbench.config.is_shipped", lambda path, shipped=shipped: shipped)
        found.append([read_yaml(file, may_be_empty=True) for file in files])
    assert found[0] == found[1]
