"""A protocol reads only what its key holds: two backbones have other ids, or protocols get the same of them."""

import dataclasses

import pytest
from helpers.targets import shifted_pairs

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.build import build
from sslbench.data.splits import TrainTest
from sslbench.detection.models.build import build_detector
from sslbench.detection.recipe import DetectionRecipe
from sslbench.evaluation import Request, RunSettings, make_task
from sslbench.evaluation.floors import untrained_like
from sslbench.evaluation.images import as_hashed
from sslbench.evaluation.preparation import Prepared, extract_settings, for_request
from sslbench.evaluation.record import Encoded, describe, measurement
from sslbench.features.extract import store_key
from sslbench.identity import record_id
from sslbench.names import list_names
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import OnImages, find

NAMES = [name for name in list_names("protocol") if name != "detection"]
NET = dataclasses.replace(build("resnet18w0.125"), preprocessing=Preprocessing(resize=256, crop=(224, 224)))
FLOOR = untrained_like(NET)
RUN = RunSettings(device="cpu", workers=0)
SOURCE = shifted_pairs(2)
CHANGES = {
    "resize": {"resize": 64},
    "crop": {"crop": (96, 96)},
    "squash": {"squash": (64, 64)},
    "interpolation": {"interpolation": "bicubic"},
    "mean": {"mean": (0.5, 0.5, 0.5)},
    "std": {"std": (0.5, 0.5, 0.5)},
    "decoder": {"decoder": ("fast", "reference")},
    "max_pixels": {"max_pixels": 1000},
    "space": {"space": "lightness"},
    "resized_side": {"resized_side": "longer", "crop": None},
    "scales": {"scales": (1.0, 0.5)},
    "trained_side": {"crop": (96, 128)},  # protocols get it from the sizes
}
"""Value of the preprocessing -> values of another backbone."""
OF_FILES = {"report": None, "format": "moco", "gem_power": 2.5, "usual_input": None, "untrained": True}
"""Field of a backbone that neither its name nor its tensors determine -> another value."""
HASHED = {"name", "kind", "module", "preprocessing", "versions", "heads", "calibration", "builder", "in_process"}
BY_NAME = {"aliases", "default_layer", "vissl_pools", "classifiers", "stems"}


def given(name, backbone, settings=()):
    """The id of a protocol's record on a backbone, and what the protocol gets of it: the backbone, or the features."""
    task = make_task(name, dict(settings))
    request = Request(weights="w.torch", data="data", tasks=(task,))
    backbone, origins = for_request(backbone, request, RUN)
    prepared = Prepared(request, RUN, backbone, backbone, (), TrainTest(SOURCE, SOURCE, "how"), origins, ())
    part = {"layer": SOURCE}
    subject = describe(prepared, backbone, "layer", Encoded(part, part, (), 0.0, 0), "a command")
    key = record_id(measurement(subject, task))
    if not isinstance(find(name).kind, OnImages):
        return key, store_key(backbone, SOURCE, extract_settings(RUN)).digest()
    read = as_hashed(backbone, task)
    # Origins and names are for messages.
    return key, dataclasses.replace(
        read, untrained=False, preprocessing=dataclasses.replace(read.preprocessing, origin="")
    )


def facts(received):
    """What can be compared of it."""
    if not isinstance(received, Backbone):
        return received
    return {
        field.name: getattr(received, field.name) for field in dataclasses.fields(received) if field.name != "module"
    }


def test_every_value_is_tried():
    assert {field.name for field in dataclasses.fields(Preprocessing)} == {*CHANGES, "origin"}
    assert {field.name for field in dataclasses.fields(Backbone)} == HASHED | BY_NAME | OF_FILES.keys()


@pytest.mark.parametrize("name", NAMES)
def test_other_values_of_the_preprocessing_give_another_id_or_are_not_read(name):
    """The trained size decided depths and normals, and was in no key: two sizes shared a record and a floor."""
    for backbone in (NET, FLOOR):
        key, read = given(name, backbone)
        for field, values in CHANGES.items():
            changed = dataclasses.replace(backbone.preprocessing, **values)
            other = given(name, dataclasses.replace(backbone, preprocessing=changed))
            assert key != other[0] or facts(read) == facts(other[1]), f"{name} reads {field}, its key does not"


@pytest.mark.parametrize("name", ["depth", "normals"])
def test_the_trained_size_is_in_the_key_where_it_sets_the_sizes(name):
    smaller = dataclasses.replace(NET, preprocessing=dataclasses.replace(NET.preprocessing, crop=(96, 128)))
    (key, read), (other, less) = given(name, NET), given(name, smaller)
    assert key != other and (read.preprocessing.trained_side, less.preprocessing.trained_side) == (224, 96)
    own = {"enlarge": "none"}
    assert given(name, NET, own)[0] == given(name, smaller, own)[0] != key


@pytest.mark.parametrize("name", NAMES)
def test_facts_of_a_file_that_no_key_holds_reach_no_protocol(name):
    key, read = given(name, NET)
    for field, value in OF_FILES.items():
        other = given(name, dataclasses.replace(NET, **{field: value}))
        assert (key, facts(read)) == (other[0], facts(other[1])), f"{name} reads {field}"


def test_protocols_get_no_attribute_of_samples_that_no_key_holds():
    source = dataclasses.replace(
        SOURCE,
        attributes={SOURCE.grouped_by: ("a", "b"), "weather": ("sun", "rain")},
        notes=("a note",),
        weights={"part": 2.0},
    )
    read = source.as_hashed()
    assert set(read.attributes) == {SOURCE.grouped_by} and read.notes == () and not read.weights
    assert read.fingerprint() == source.fingerprint()


class OnlyStatistics:
    """Preprocessing of which a detector may read what its key holds."""

    mean, std, channels = NET.preprocessing.mean, NET.preprocessing.std, 3


def test_a_detector_reads_the_statistics_of_its_backbone_only():
    backbone = dataclasses.replace(NET, preprocessing=OnlyStatistics())
    assert build_detector(backbone, DetectionRecipe(architecture="fpn"), 2) is not None
