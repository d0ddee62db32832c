"""Promises of every data format, tested on every one there is, found by its file."""

import dataclasses
import pickle

import numpy as np
import pytest
from sample_data import FORMATS, sample_module

from sslbench.config import describe
from sslbench.data.format import all_formats, builtin_format
from sslbench.data.open import are_label_maps, open_data, open_label_maps, open_objects, open_pairs, open_videos
from sslbench.data.source import Source
from sslbench.errors import UsageError

SAMPLES = [name for name in FORMATS if builtin_format(name).samples is not None]


def make(name, root):
    return sample_module(name).make(root)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_says_what_it_reads(name):
    found = builtin_format(name)
    assert found.title and (found.samples or found.objects or found.maps or found.pairs or found.videos)


def test_formats_of_last_resort_are_asked_last():
    order = [found.last_resort for found in all_formats()]
    assert order == sorted(order) and any(order)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_location_is_recognised_by_exactly_one_format(tmp_path, name):
    spec = make(name, tmp_path)
    taking = [found for found in all_formats() if found.samples is not None and found.samples.recognises(spec)]
    sure = [found for found in taking if not found.last_resort]
    assert (sure or taking) == [builtin_format(name)]


@pytest.mark.parametrize("name", SAMPLES)
def test_options_say_what_they_mean_and_unknown_ones_are_refused(tmp_path, name):
    options = builtin_format(name).samples.options
    assert dataclasses.is_dataclass(options) and all(row.meaning for row in describe(options))
    with pytest.raises(UsageError, match=r"unknown key 'no_such_option'|takes no options"):
        open_data(f"{make(name, tmp_path)}?no_such_option=1")


@pytest.mark.parametrize("name", SAMPLES)
def test_columns_that_a_format_does_not_have_are_refused(tmp_path, name):
    spec, understood = make(name, tmp_path), builtin_format(name).samples.columns
    columns = {
        "image": "image_column",
        "label": "label_column",
        "attribute": "attribute_columns",
        "value": "value_columns",
    }
    for kind, argument in columns.items():
        if kind not in understood:
            with pytest.raises(UsageError, match="has no column 'nothing'"):
                open_data(spec, **{argument: ("nothing",) if argument.endswith("s") else "nothing"})


@pytest.mark.parametrize("name", FORMATS)
def test_objects_and_label_maps_are_recognised_by_at_most_one_format(tmp_path, name):
    """Samples are not always of a format's own kind (VOC without annotations), so none may be found."""
    spec = make(name, tmp_path)
    taking = [f for f in all_formats() if f.objects is not None and f.objects.recognises(spec)]
    assert taking in ([], [builtin_format(name)])
    if taking and name != "several":
        assert all(len(source) for source in open_objects(spec).values())
    if sample_module(name).LABELS == "none":
        assert are_label_maps(spec)
        for source in open_label_maps(spec).values():
            assert len(source) and source.read_map(0).semantic.shape == (4, 5)
            assert source.fingerprint() == pickle.loads(pickle.dumps(source)).fingerprint()  # noqa: S301 - our own bytes


TUPLES = [name for name in FORMATS if builtin_format(name).pairs or sample_module(name).LABELS == "tracks"]


@pytest.mark.parametrize("name", TUPLES)
def test_pairs_and_videos_are_complete_picklable_and_the_same_every_time(tmp_path, name):
    spec = make(name, tmp_path)
    opened = open_pairs if builtin_format(name).pairs else open_videos
    faces = [face for found in all_formats() for face in (found.pairs, found.videos) if face is not None]
    assert sum(face.recognises(spec) for face in faces) == 1
    (source, again) = (next(reversed(opened(spec).values())) for _ in range(2))
    assert source.labels.kind == sample_module(name).LABELS and list(source.ids) == sorted(set(source.ids))
    assert source.fingerprint() == again.fingerprint()
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own bytes
    assert copy.fingerprint() == source.fingerprint()
    part = source.select([1])
    assert part.fingerprint() != source.fingerprint() and part.ids == source.ids[1:2]
    every, of_part = source.every_image(), part.every_image()
    for old, new in zip(source.tuples.rows(1), part.tuples.rows(0), strict=True):
        assert every.images.path(old) == of_part.images.path(new)
        assert every.images.read(old) is not None
    assert part.images.path(0) == source.images.path(1) == every.images.path(source.tuples.rows(1)[0])


@pytest.mark.parametrize("name", SAMPLES)
def test_a_source_is_complete_ordered_picklable_and_the_same_every_time(tmp_path, name):
    spec = make(name, tmp_path)
    splits, again = open_data(spec), open_data(spec)
    assert set(splits) in ({"train", "test"}, {"all"})
    for split, source in splits.items():
        assert isinstance(source, Source) and len(source) > 0
        assert list(source.ids) == sorted(set(source.ids))
        assert source.labels.kind == sample_module(name).LABELS
        assert len(source.labels.classes) >= 2
        assert source.images.digests().shape == (len(source), 16)
        assert source.fingerprint() == again[split].fingerprint()
        copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own bytes
        first, second = source.images.read(1), copy.images.read(1)
        assert np.array_equal(np.frombuffer(bytes(first), np.uint8), np.frombuffer(bytes(second), np.uint8))
        part = source.select([0, 2])
        assert part.ids == (source.ids[0], source.ids[2])
        assert part.images.path(1) == source.images.path(2)
        assert part.fingerprint() != source.fingerprint()
