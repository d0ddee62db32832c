"""Promises of every data format, tested on every one there is, found by its file."""

import dataclasses
import functools
import os
import pickle

import numpy as np
import pytest
from sample_data import FORMATS, sample_module

from sslbench.config import describe
from sslbench.data.format import all_formats, builtin_format
from sslbench.data.open import kind_alone, open_as, open_data, open_objects
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.targets import kinds
from sslbench.targets.label_maps import LabelMaps
from sslbench.targets.objects import Boxes
from sslbench.targets.target import SeveralImages

SAMPLES = [name for name in FORMATS if builtin_format(name).samples is not None]
PIXELS = [name for name in FORMATS if kinds()[sample_module(name).LABELS].of_pixels]
TUPLES = [name for name in FORMATS if issubclass(kinds()[sample_module(name).LABELS], SeveralImages)]


@pytest.fixture(scope="module")
def location(tmp_path_factory):
    """`location(name)` is a small data set of a format, made once and only read."""
    return functools.cache(lambda name: sample_module(name).make(tmp_path_factory.mktemp(name)))


def test_a_format_says_what_it_reads():
    silent = [
        name
        for name, found in ((name, builtin_format(name)) for name in FORMATS)
        if not found.title or not (found.samples or found.readers)
    ]
    assert FORMATS and silent == []


def test_formats_of_last_resort_are_asked_last():
    order = [found.last_resort for found in all_formats()]
    assert order == sorted(order) and any(order)


ARGUMENTS = {
    **{"image": {"image_column": "nothing"}, "label": {"label_column": "nothing"}},
    **{"attribute": {"attribute_columns": ("nothing",)}, "value": {"value_columns": ("nothing",)}},
}


@pytest.mark.parametrize("name", SAMPLES)
def test_exactly_one_format_recognises_a_location_and_refuses_unknown_options_and_columns(location, name):
    spec, samples = location(name), builtin_format(name).samples
    taking = [found for found in all_formats() if found.samples is not None and found.samples.recognises(spec)]
    sure = [found for found in taking if not found.last_resort]
    assert (sure or taking) == [builtin_format(name)]
    assert dataclasses.is_dataclass(samples.options) and all(row.meaning for row in describe(samples.options))
    with pytest.raises(UsageError, match=r"unknown key 'no_such_option'|takes no options"):
        open_data(f"{spec}?no_such_option=1")
    for kind in sorted(set(ARGUMENTS) - set(samples.columns)):
        with pytest.raises(UsageError, match="has no column 'nothing'"):
            open_data(spec, **ARGUMENTS[kind])


@pytest.mark.parametrize("name", FORMATS)
def test_objects_and_label_maps_are_recognised_by_at_most_one_format(location, name):
    """Samples are not always of a format's own kind (VOC without annotations), so none may be found."""
    spec = location(name)
    taking = [f for f in all_formats() if Boxes in f.readers and f.readers[Boxes].recognises(spec, {})]
    assert taking in ([], [builtin_format(name)])
    if taking and name != "several":
        assert all(len(source) for source in open_objects(spec).values())
    if sample_module(name).LABELS == "none":
        assert kind_alone(spec)
        for source in open_as(spec, LabelMaps).values():
            assert len(source) and source.target.maps.read_map(0).semantic.shape == (4, 5)
            assert source.fingerprint() == pickle.loads(pickle.dumps(source)).fingerprint()  # noqa: S301 - our own bytes


@pytest.mark.parametrize("name", TUPLES)
def test_pairs_and_videos_are_complete_picklable_and_the_same_every_time(location, name):
    spec = location(name)
    kind = kinds()[sample_module(name).LABELS]
    readers = [(found, of, reader) for found in all_formats() for of, reader in found.readers.items()]
    taking = [f for f, of, reader in readers if issubclass(of, SeveralImages) and reader.recognises(spec, {})]
    assert taking == [builtin_format(name)]
    (source, again) = (next(reversed(open_as(spec, kind).values())) for _ in range(2))
    assert source.target.name == sample_module(name).LABELS and list(source.ids) == sorted(set(source.ids))
    assert source.fingerprint() == again.fingerprint()
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own bytes
    assert copy.fingerprint() == source.fingerprint()
    part = source.select([1])
    assert part.fingerprint() != source.fingerprint() and part.ids == source.ids[1:2]
    every, of_part = source.every_image(), part.every_image()
    for old, new in zip(source.target.rows(1), part.target.rows(0), strict=True):
        assert every.images.path(old) == of_part.images.path(new)
        assert every.images.read(old) is not None
    assert part.images.path(0) == source.images.path(1) == every.images.path(source.target.rows(1)[0])


@pytest.mark.parametrize("name", PIXELS)
def test_values_of_pixels_are_picklable_and_the_same_every_time(location, name):
    kind = kinds()[sample_module(name).LABELS]
    (source, again) = (next(iter(open_as(location(name), kind).values())) for _ in range(2))
    assert isinstance(source.target, kind) and source.fingerprint() == again.fingerprint()
    assert pickle.loads(pickle.dumps(source)).fingerprint() == source.fingerprint()  # noqa: S301 - our own bytes
    assert source.select([1]).fingerprint() != source.fingerprint()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_source_is_complete_ordered_picklable_and_the_same_every_time(location, name):
    splits, again = open_data(location(name)), open_data(location(name))
    assert set(splits) in ({"train", "test"}, {"all"})
    for split, source in splits.items():
        assert isinstance(source, Source) and len(source) > 0
        assert list(source.ids) == sorted(set(source.ids))
        assert source.target.name == sample_module(name).LABELS
        assert len(source.target.classes) >= 2
        assert source.images.digests().shape == (len(source), 16)
        assert source.fingerprint() == again[split].fingerprint()
        copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own bytes
        first, second = source.images.read(1), copy.images.read(1)
        assert np.array_equal(np.frombuffer(bytes(first), np.uint8), np.frombuffer(bytes(second), np.uint8))
        part = source.select([0, 2])
        assert part.ids == (source.ids[0], source.ids[2])
        assert part.images.path(1) == source.images.path(2)
        assert part.fingerprint() != source.fingerprint()


@pytest.mark.parametrize("name", FORMATS)
def test_a_folder_that_may_not_be_listed_is_named_wherever_it_lies(tmp_path, monkeypatch, name):
    """Refused is every folder that is listed for these data; only what no source is made of may be left out."""
    spec, listed, closed = sample_module(name).make(tmp_path), {}, None

    def guarded(real):
        def list_folder(path="."):
            if isinstance(path, int):  # what removes a folder lists it by its descriptor
                return real(path)
            found = os.path.realpath(path)
            listed[found] = None
            if found == closed:
                raise PermissionError(13, "Permission denied", str(path))
            return real(path)

        return list_folder

    def sources():
        label = sample_module(name).LABELS
        kind = LabelMaps if label == "none" else kinds()[label]
        found = open_data(spec) if name in SAMPLES and not kind.of_pixels else open_as(spec, kind)
        return {split: source.fingerprint() for split, source in found.items()}

    with monkeypatch.context() as patch:  # what removes tmp_path lists folders by their descriptors
        for function in ("scandir", "listdir"):
            patch.setattr(os, function, guarded(getattr(os, function)))
        whole = sources()
        for closed in [path for path in listed if path.startswith(os.path.realpath(tmp_path))]:
            try:
                assert sources() == whole, f"{closed} was passed over"
            except DataError as error:
                assert f"{closed}: Permission denied" in str(error)
