"""configs/RECIPES.md against the composed recipes: each value that a recipe sets stands there with its source."""

import copy
import dataclasses
import functools
import math
import re
from pathlib import Path

import yaml
from helpers.offenders import offenders

from sslbench import names, paths
from sslbench.config import build
from sslbench.library import recipes
from sslbench.pretraining import PretrainSettings
from sslbench.pretraining.preparation import _plan
from sslbench.train.method import find_method

TABLE = Path(paths.builtin_dir("configs")) / "RECIPES.md"
ROW = re.compile(r"\| `([^`]+)` \| `(.*)` \| (.+) \|")


@functools.cache
def sections():
    """Recipe -> {setting: (value, source)}."""
    found = {}
    for part in re.split(r"^## ", TABLE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        name, _, text = part.partition("\n")
        rows = [ROW.fullmatch(line) for line in text.splitlines() if line.startswith("| `")]
        assert all(rows), f"{name}: a row is not of the form | `setting` | `value` | source |"
        found[name] = {row[1]: (yaml.safe_load(row[2].replace(r"\|", "|")), row[3]) for row in rows}
    return found


@functools.cache
def composed(name):
    return recipes.compose_pretraining(name, {}, {}).values


def value_at(values, key):
    if view := re.fullmatch(r"views\[(\d+)\]", key):
        return values["augment"]["views"][int(view[1])]
    for part in key.split("."):
        values = values[part]
    return values


def test_every_recipe_is_in_the_table():
    assert sorted(sections()) == sorted(names.list_names("method"))


def has_its_values_in_the_table(name):
    values, table = composed(name), sections()[name]
    for key, (value, source) in table.items():
        assert value_at(values, key) == value, key
        assert len(source) > 2, f"{key} has no source"
    own = {f"method.{key}" for key in values["method"] if key != "name"}
    views = {f"views[{i}]" for i in range(len(values["augment"]["views"]))}
    always = {"backbone", "epochs", "batch_size", "sync_bn", "optimizer.name", "optimizer.lr", "optimizer.weight_decay"}
    always |= {"optimizer.lr_scaling", "optimizer.decay_norm", "optimizer.decay_bias", "schedule.lr"}
    clipped = {"clip_norm", "clip_each"} if values["clip_norm"] else set()
    assert own | views | always | clipped <= set(table)


def test_the_table_holds_the_values_of_every_recipe():
    assert offenders(names.list_names("method"), has_its_values_in_the_table) == []


def starts_whole_and_shortened(name):
    whole = copy.deepcopy(composed(name))
    fields = dataclasses.fields(find_method(whole["method"]["name"]).config_type)
    whole["method"] |= {field.name: "random" for field in fields if field.metadata.get("required")}
    one = copy.deepcopy(whole) | {"epochs": 1}
    recipes._shorten(one, {}, whole["epochs"])
    for values in (whole, one):
        settings = build(PretrainSettings, values, name)
        settings.check()
        plan = _plan(settings, "fp32", 100)
        assert all(0 <= plan.rates.lr(progress / 10) < math.inf for progress in range(11))


def test_every_recipe_starts_with_its_own_epochs_and_with_one():
    assert offenders(names.list_names("method"), starts_whole_and_shortened) == []


def test_parts_of_a_recipe_become_shorter_with_it_unless_they_are_chosen():
    def schedule(name, **given):
        composed = recipes.compose_pretraining(name, {key.replace("__", "."): v for key, v in given.items()}, {})
        return composed.values["schedule"], composed

    found, composed = schedule("simclr", epochs=1)
    assert found["warmup_epochs"] == 0.1
    assert composed.origins["schedule.warmup_epochs"] == "recipe simclr, in proportion to epochs=1"
    assert schedule("simclr", epochs=20)[0]["warmup_epochs"] == 10  # it fits
    assert schedule("simclr", epochs=1, schedule__warmup_epochs=0.5)[0]["warmup_epochs"] == 0.5
    assert schedule("rotnet", epochs=21)[0]["lr"]["milestones"] == [6, 12, 18, 20]
    assert schedule("dino", epochs=3)[1].values["method"]["temperature_epochs"] == 0.3


def test_a_value_that_changed_is_seen():
    table = sections()["simclr"]
    values = recipes.compose_pretraining("simclr", {"optimizer.lr": 0.31}, {}).values
    assert value_at(values, "optimizer.lr") != table["optimizer.lr"][0]
