"""Every field of a record and every setting of a protocol: it separates results, or a reason says why it does not."""

import dataclasses
import typing

import pytest
from helpers.record_trees import change, make

from sslbench import names, protocols
from sslbench.config import result_settings
from sslbench.errors import ResultError
from sslbench.identity import record_id
from sslbench.leaderboard import table
from sslbench.leaderboard.compare import compare, differing, pairs
from sslbench.results import BenchmarkUsed, DataPart, ExcludedImage, Result

PART = DataPart(name="fog", fingerprint="ab" * 16, n=200, n_used=200, classes=())
FULL = make(
    data__further=(PART,),
    data__train_part="10 % of train",
    data__unreadable=(ExcludedImage(id="x.png", path="x", reason="cut"),),
    benchmark=BenchmarkUsed(name="knn/photos", version=1, sha256="00"),
)
SEPARATES = {
    "protocol.name": "svm",
    "protocol.version": 2,
    "protocol.code": "3f",
    "protocol.settings": {"k": [200], "temperature": 0.07},
    "benchmark.name": "knn/other",
    "benchmark.version": 2,
    "headline": "balanced_accuracy",
    "data.train.fingerprint": "00" * 16,
    "data.test.fingerprint": "00" * 16,
    "data.train.n_used": 799,
    "data.test.n_used": 199,
    "data.train_part": "80 % of train",
    "data.unreadable": (ExcludedImage(id="y.png", path="x", reason="cut"),),
    "data.further": (dataclasses.replace(PART, fingerprint="cd" * 16),),
}
IN_THE_ROW = {"weights", "layer", "preprocessing", "precision", "feature_dtype", "calibration"}
AVERAGED = {"seed", "seeds", "trainings", "ranges"}
MEASURED = {
    *("metrics", "per_class", "per_class_metrics", "groups", "overlaps", "train", "probabilities"),
    *(
        "selected",
        "variants",
        "converged",
        "references",
        "floors",
        "floor_ranges",
        "missing_floors",
        "timings",
        "costs",
        "notes",
    ),
}
AROUND = {
    *(
        "schema",
        "id",
        "created",
        "command",
        "request",
        "asked",
        "versions",
        "hardware",
        "working_folder",
        "by",
        "preset",
    ),
    *("scores_file", "weights_file", "objects_file", "checksum", "file"),
}
TEXT = {
    *("data.train.name", "data.test.name", "data.how", "benchmark.sha256", "benchmark.modified", "benchmark.metric"),
    # the fingerprint of the part has these
    *("data.train.n", "data.test.n", "data.train.classes", "data.test.classes", "data.train.groups"),
    *("data.test.groups", "data.labels", "data.label_noise", "data.split_seed", "data.known_by"),
}


def fields(cls=Result, start=""):
    """Dotted names of the fields of records, those of the protocol, the benchmark and the data one by one."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        name, kinds = start + field.name, typing.get_args(hints[field.name]) or (hints[field.name],)
        inner = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
        opened = name.partition(".")[0] in ("protocol", "benchmark", "data") and name not in ("data.unreadable",)
        yield from fields(inner, f"{name}.") if inner and opened and name != "data.further" else [name]


def test_every_field_of_a_record_is_known_to_separate_results_or_not():
    assert set(fields()) == {*SEPARATES, *IN_THE_ROW, *AVERAGED, *MEASURED, *AROUND, *TEXT}


@pytest.mark.parametrize("name", SEPARATES)
def test_what_separates_results_does_so_on_boards_and_in_comparisons(name):
    other = change(FULL, weights__name="b", weights__sha256="bb" * 32, **{name.replace(".", "__"): SEPARATES[name]})
    other = dataclasses.replace(other, id=record_id(other))
    found = differing(FULL, other)
    assert len(found) == 1 and found[0][1] != found[0][2], "named with both values"
    board = table([FULL, other])
    assert len({column.name for column in board.columns}) == 2
    assert all(sum(cell is not None for cell in row.cells) == 1 for row in board.rows)
    assert pairs([FULL], [other]) == []


def test_results_on_parts_of_train_stand_in_one_row():
    small, large = (
        make(layer=f"res5, {part}", data__train_part=part, protocol="finetune")
        for part in ("10 % of train", "80 % of train")
    )
    board = table([small, large])
    assert [column.name for column in board.columns] == [
        f"finetune/photos [{part}]" for part in ("10 % of train", "80 % of train")
    ]
    assert [(row.layer, all(row.cells)) for row in board.rows] == [("res5", True)]
    assert differing(small, large) == [("part of train", "10 % of train", "80 % of train")]


NOT_MEASURED = {"backend", "limit_iters", "max_memory", "program", "strategy", "tensorboard", "histograms", "wandb"}
"""Settings of protocols that say how the same numbers are computed, or what is logged.

Those of detection, `limit_iters` and `program`, are in its records as iterations and backend (`Protocol.recorded`).
"""
BY_CONTENT = {
    "image-text": {"text_features", "text_tower"},
    "zero-shot": {"text_features", "text_tower"},
    "finetune": {"train_list"},
    "robustness": {"class_names", "corrupted", "perturbations", "sets", "unknown"},
}
"""Settings whose content stands in the record: in the part of train, the classes, the further sets, the texts."""


def test_every_setting_of_every_protocol_is_in_the_record_or_its_content_is():
    for protocol in names.list_names("protocol"):
        cls = protocols.find(protocol).settings
        left_out = {f.name for f in dataclasses.fields(cls)} - set(result_settings(cls()))
        by_content = {f.name for f in dataclasses.fields(cls) if f.metadata.get("by_content")}
        assert by_content == BY_CONTENT.get(protocol, set()), protocol
        # One that came later is in the record where it is not at its default.
        later = {f.name for f in dataclasses.fields(cls) if f.metadata.get("added_later")} - NOT_MEASURED
        changed = cls()
        for name in later:
            object.__setattr__(changed, name, "another")
        assert later <= set(result_settings(changed)), protocol
        assert left_out - by_content - later <= NOT_MEASURED, protocol


def test_many_further_sets_make_no_long_heading():
    sets = tuple(dataclasses.replace(PART, name=f"fog-{i}", fingerprint=f"{i:02d}" * 16) for i in range(75))
    one, other, none = (
        make(name, data__further=further) for name, further in (("a", sets), ("b", sets[:3]), ("c", ()))
    )
    names = [column.name for column in table([one, other, none]).columns]
    assert len(names) == 3 and "knn/photos [no sets]" in names and max(map(len, names)) < 30
    assert len(differing(one, none)) == 75
    with pytest.raises(ResultError, match="and 55 more"):
        compare(one, none)
