"""What names a measurement; columns and rows of boards are tried by `contracts/test_contract_identity.py`."""

import dataclasses

import pytest
from helpers.sample_record import PREPROCESSING, identified, sample

from sslbench.identity import Measurement, encoding_of, row_key
from sslbench.results import DataPart, PresetUsed, RequestedParts

PRESET = PresetUsed(name="knn/dino", version=1, source="a paper", sha256="aa")
FURTHER = DataPart(name="another set", fingerprint="aa" * 16, n=4, n_used=4, classes=())


def change(result, **changes):
    """The result with nested fields changed: `weights__name='x'` changes `result.weights.name`."""
    for name, value in changes.items():
        first, _, rest = name.partition("__")
        result = dataclasses.replace(
            result, **{first: change(getattr(result, first), **{rest: value}) if rest else value}
        )
    return result


MEASURED = {
    "weights": {"weights__sha256": "00" * 32},
    "backbone": {"weights__backbone": "resnet50-s2d"},
    "code": {"weights__code": {"timm": "1.0.0"}},
    "dtype": {"feature_dtype": "float16"},
    "code of the protocol": {"protocol__code": "0f"},
    "no benchmark": {"benchmark": None},
    "benchmark": {"benchmark__name": "knn/others"},
    "benchmark's version": {"benchmark__version": 3},
    "benchmark's file": {"benchmark__sha256": "00" * 32},
    "benchmark's metric": {"benchmark__metric": "top5"},
    "changed benchmark": {"benchmark__modified": False},
    "preset": {"preset": PRESET},
    "preset's name": {"preset": dataclasses.replace(PRESET, name="knn/others")},
    "preset's version": {"preset": dataclasses.replace(PRESET, version=2)},
    "preset's file": {"preset": dataclasses.replace(PRESET, sha256="bb")},
    "changed preset": {"preset": dataclasses.replace(PRESET, modified=True)},
    "layer": {"layer": "res4"},
    "crop": {"preprocessing": {**PREPROCESSING, "crop": [192, 192]}},
    "precision": {"precision": "bf16"},
    "protocol": {"protocol__name": "svm"},
    "version": {"protocol__version": 2},
    "setting": {"protocol__settings": {"k": [20], "temperature": 0.07}},
    "train": {"data__train__fingerprint": "00"},
    "test": {"data__test__fingerprint": "00"},
    "further set": {"data__further": (FURTHER,)},
    "further set's name": {"data__further": (dataclasses.replace(FURTHER, name="a third"),)},
    "further set's images": {"data__further": (dataclasses.replace(FURTHER, fingerprint="bb" * 16),)},
    "seed": {"seed": 1},
    "trainings": {"seeds": 3},
    "calibration": {"calibration": "aa"},
}
CIRCUMSTANCES = {
    "name": {"weights__name": "copy.torch"},
    "path": {"weights__path": None},
    "data name": {"data__train__name": "copy/ (train)"},
    "origin": {"preprocessing": {**PREPROCESSING, "origin": "flag --crop"}},
    "tuple": {"preprocessing": {**PREPROCESSING, "crop": (224, 224)}},
    "order": {"protocol__settings": {"temperature": 0.07, "k": [20, 200]}},
    "hardware": {"hardware": None},
    "person": {"by": "Ana"},
    "time": {"created": "2027-01-01T00:00:00+00:00", "timings": {}},
    "format": {"weights__format": "moco"},
    "one training": {"seeds": 1},
    "asked": {"asked": RequestedParts(groups={"site": "aa"}, overlaps=False, floors=False)},
    "floors": {"floors": {}, "missing_floors": {"pixels": "none"}},
    "command": {"command": "sslbench eval --batch-size 7 --workers 3"},
}


def test_the_id_names_what_is_measured(result, monkeypatch):
    parts = {name.split("__")[0] for what in MEASURED.values() for name in what}
    assert parts == {field.name for field in dataclasses.fields(Measurement)}, "each has a case"
    ids = {name: identified(change(result, **what)).id for name, what in MEASURED.items()}
    assert len({result.id, *ids.values()}) == 1 + len(MEASURED)
    assert all(len(i) == 16 and set(i) <= set("0123456789abcdef") for i in ids.values())
    monkeypatch.setattr("sslbench.identity.ENCODING", 99)
    assert identified(result).id not in {result.id, *ids.values()}
    monkeypatch.undo()
    published = dataclasses.replace(PRESET, source="another paper")
    assert identified(change(result, preset=published)).id == ids["preset"], "the publication is text"


@pytest.mark.parametrize("what", CIRCUMSTANCES)
def test_circumstances_do_not_change_the_id(result, what):
    assert identified(change(result, **CIRCUMSTANCES[what])).id == result.id


def test_untrained_networks_of_several_seeds_are_one_row_although_their_outputs_differ(result):
    first, second = (
        change(result, weights__untrained=True, weights__sha256=sha, weights__code={"source": "a", "probe": sha})
        for sha in ("aa", "bb")
    )
    assert row_key(first) == row_key(second)
    assert row_key(first) != row_key(change(first, weights__code={"source": "b", "probe": "aa"}))


def test_the_name_of_a_record_stays_and_features_of_grey_pictures_have_an_encoding_of_their_own():
    assert sample().id == "421bfb87ecc45df0"
    assert [encoding_of({"mean": [0.5] * channels}) for channels in (1, 3, 4)] == [2, 1, 1]
