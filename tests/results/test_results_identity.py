"""What names a measurement, and what two results must share to be compared."""

import dataclasses

import pytest
from sample_record import PREPROCESSING, identified

from sslbench.results import comparability_key


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
    "layer": {"layer": "res4"},
    "crop": {"preprocessing": {**PREPROCESSING, "crop": [192, 192]}},
    "precision": {"precision": "bf16"},
    "protocol": {"protocol__name": "svm"},
    "version": {"protocol__version": 2},
    "setting": {"protocol__settings": {"k": [20], "temperature": 0.07}},
    "train": {"data__train__fingerprint": "00"},
    "test": {"data__test__fingerprint": "00"},
    "seed": {"seed": 1},
}
CIRCUMSTANCES = {
    "name": {"weights__name": "copy.torch"},
    "path": {"weights__path": None},
    "data name": {"data__train__name": "copy/ (train)"},
    "origin": {"preprocessing": {**PREPROCESSING, "origin": "flag --crop"}},
    "tuple": {"preprocessing": {**PREPROCESSING, "crop": (224, 224)}},
    "order": {"protocol__settings": {"temperature": 0.07, "k": [20, 200]}},
    "hardware": {"hardware": None},
    "time": {"created": "2027-01-01T00:00:00+00:00", "timings": {}},
    "benchmark": {"benchmark": None},
    "command": {"command": "sslbench eval --batch-size 7 --workers 3"},
}


def test_the_id_names_what_is_measured(result):
    ids = {name: identified(change(result, **what)).id for name, what in MEASURED.items()}
    assert len({result.id, *ids.values()}) == 1 + len(MEASURED)
    assert all(len(i) == 16 and set(i) <= set("0123456789abcdef") for i in ids.values())


@pytest.mark.parametrize("what", CIRCUMSTANCES)
def test_circumstances_do_not_change_the_id(result, what):
    assert identified(change(result, **CIRCUMSTANCES[what])).id == result.id


@pytest.mark.parametrize(
    "what",
    [
        *(MEASURED[name] for name in ("protocol", "version", "setting", "train", "test")),
        {"data__train__n_used": 38},
        {"data__test__n_used": 3},
        {"data__unreadable": ()},
        {"headline": "top5"},
    ],
)
def test_what_makes_results_incomparable(result, what):
    assert comparability_key(change(result, **what)) != comparability_key(result)


@pytest.mark.parametrize(
    "what", [*(MEASURED[name] for name in ("weights", "backbone", "layer", "crop", "precision", "seed"))]
)
def test_what_is_compared_does_not(result, what):
    assert comparability_key(change(result, **what)) == comparability_key(result)
