"""Presets: found by their names, the user's own among them, and compared value by value."""

import dataclasses

import pytest
from helpers.sample_record import sample

from sslbench.errors import UsageError
from sslbench.library.presets import find_presets, load_preset
from sslbench.names import list_names
from sslbench.protocols._parts.presets import differences
from sslbench.results import records

MINE = """
title: kNN of a paper
source: somebody 2026, table 3
protocol: knn
settings: {k: [7]}
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A user's folder on the search path, to write presets into."""
    monkeypatch.setenv("SSLBENCH_PATH", str(tmp_path))

    def write(name, text=MINE):
        file = tmp_path / "benchmarks" / "presets" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return write


def test_a_bare_name_is_the_preset_of_the_protocol_that_was_named():
    assert [p.name for p in find_presets(["dino"], ["knn", "svm"])] == ["knn/dino"]
    assert [p.name for p in find_presets(["knn/dino", "svm/voc07"], [])] == ["knn/dino", "svm/voc07"]
    assert find_presets(["low-shot/vissl_voc07"], [])[0].protocol == "low-shot"
    assert find_presets(["vissl_voc07"], ["low-shot"])[0].name == "low_shot/vissl_voc07"


@pytest.mark.parametrize(
    ("asked", "protocols", "message"),
    [
        ("dnio", ["knn"], r"knn: no preset 'dnio'\nDid you mean 'dino'"),
        ("knn/dinoo", ["knn"], r"no preset called 'knn/dinoo'\nDid you mean 'knn/dino'"),
        ("dino", [], r"exists for several protocols\nWrite it as PROTOCOL/NAME: .*knn/dino"),
        ("knn/dino", ["svm"], "is for knn, which is not among the protocols named: svm"),
    ],
)
def test_a_preset_that_cannot_be_meant_gets_the_nearest_name(asked, protocols, message):
    with pytest.raises(UsageError, match=message):
        find_presets([asked], protocols)


def test_a_users_presets_are_found_and_a_changed_shipped_one_is_marked(mine):
    file = mine("knn/paper")
    assert "knn/paper" in list_names("preset") and "presets/knn/paper" not in list_names("benchmark")
    own = find_presets(["paper"], ["knn"])[0]
    assert (own.settings, own.modified) == ({"k": [7]}, False)
    assert load_preset(str(file)).settings == own.settings
    assert find_presets([str(file)], ["knn"])[0].protocol == "knn"
    mine("knn/dino")
    assert load_preset("knn/dino").modified


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("settings", "setings"), "unknown key 'setings'\nDid you mean 'settings'"),
        (("source: somebody 2026, table 3", ""), "the key 'source' is missing"),
        (("title", "name"), "remove the key 'name', which follows from the file's path"),
    ],
)
def test_a_wrong_file_is_named(mine, change, message):
    mine("knn/paper", MINE.replace(*change))
    with pytest.raises(UsageError, match=f"paper.yaml: .*{message}"):
        load_preset("knn/paper")


def test_differences_are_the_settings_that_differ_and_a_protocol_stands_for_its_defaults():
    assert {d.key: (d.a, d.b) for d in differences("knn/dino", "knn/npid")} == {
        "k": ((20,), (200,)),
        "preprocessing.interpolation": ("bicubic", "bilinear"),
    }
    found = {d.key: (d.a, d.b) for d in differences("knn/default", "knn/vissl") if "preprocessing" not in d.key}
    assert found == {"k": ((10, 20, 100, 200), (200,)), "temperature": (0.07, 0.1), "metric": ("cosine", "dot")}
    assert differences("knn", "knn/default") == []
    across = {d.key: (d.a, d.b) for d in differences("knn/dino", "svm/voc07")}
    assert across["protocol"] == ("knn", "svm") and across["folds"] == (None, 3) and across["k"] == ((20,), None)
    with pytest.raises(UsageError, match="no preset called 'knn/dnio'\nDid you mean 'knn/dino'"):
        differences("knn/dnio", "knn")


def test_a_record_differs_from_another_one_and_from_a_preset_in_its_layer(mine, tmp_path):
    one = sample()
    results = (one, dataclasses.replace(one, id="", layer="res4"))
    a, b = (str(records.write_without_scores(result, tmp_path / result.layer).file) for result in results)
    assert [(d.key, d.a, d.b) for d in differences(a, b)] == [("layers", "avgpool", "res4")]
    mine("knn/paper", MINE + "layers: [res4, res5]\n")
    for record, own in ((a, ("avgpool", ["res4", "res5"])), (b, None)):
        found = {d.key: (d.a, d.b) for d in differences(record, "knn/paper")}
        assert found.get("layers") == own, "a layer of the preset is no difference"
