"""One contract for every table in model_converters/: it knows its own files, nobody else's, and the way back."""

import random
from pathlib import Path

import pytest
import torch
from helpers.offenders import offenders

from sslbench import names
from sslbench.backbones.alexnet import recognise_alexnet
from sslbench.backbones.build import build
from sslbench.weights.formats.places import tensors_at
from sslbench.weights.formats.recognise import recognise
from sslbench.weights.formats.tables import load_table
from sslbench.weights.reading.files import WeightsFile

KEYS = sorted((Path(__file__).parent / "keys").glob("*.txt"))
VIT_FORMATS = set(
    "dino dinov2 dinov2_chunked12 dinov2_chunked24 dinov2_chunked40 dinov2_swiglu "
    "huggingface_beit huggingface_beit_pretraining transformers5_beit "
    "huggingface_dinov2 huggingface_dinov2_swiglu huggingface_vit ibot lightly_vit mae mmpretrain_vit "
    "moco_v3_vit msn open_clip openai_clip simmim "
    "aimv2 dinov3 dinov3_swiglu huggingface_aimv2 huggingface_clip huggingface_dinov3 huggingface_dinov3_swiglu "
    "huggingface_siglip huggingface_siglip2 ijepa perception_encoder perception_encoder_vision transformers5_dinov2 "
    "transformers5_dinov2_swiglu transformers5_dinov3 transformers5_dinov3_swiglu transformers5_vit "
    "torchvision_vit torchvision_vit_files".split()
)
# Formats of a ResNet-50, by the name of its key list.
RESNET50 = (
    "barlow_twins byol byol_deepmind caffe2_resnet caffe2_resnet.no_blobs caffe2_resnet_jigsaw cirtorch classyvision "
    "detectron2 detectron2.fpn detectron2.moco detectron2_c4 detectron2_caffe2 huggingface_resnet lightly "
    "lightly.momentum mmpretrain mmpretrain.mmselfsup mmpretrain.moco moco moco.query_only moco_v3 simsiam solo_learn "
    "solo_learn.momentum swav swav.deepclusterv2 vicreg vissl vissl.linear_evaluation"
).split()
ALEXNET = "caffe2_alexnet caffe2_alexnet_jigsaw deepcluster_alexnet rotnet vissl_alexnet".split()


def entries(path):
    """Where the tensors lie, and the tensors: each has its own value, none takes memory."""
    first, *lines = path.read_text().splitlines()
    tensors = {}
    for number, line in enumerate(lines):
        key, shape, dtype = line.split()
        sizes = [] if shape == "-" else [int(size) for size in shape.split("x")]
        tensors[key] = torch.tensor(number, dtype=getattr(torch, dtype)).expand(sizes)
    return first.removeprefix("# at:").strip(), tensors


def file_with(path, tensors, where):
    content = dict(tensors)
    for step in reversed(where.split(".") if where else []):
        content = {step: content, "epoch": 7}
    if path.stem.startswith("sslbench"):
        content |= {"format": path.stem.replace("_", " "), "version": 1, "backbone": "resnet18"}
    return WeightsFile(path, "0" * 64, content, "torch zip")


def shapes(tensors):
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def expected_of(path, tensors):
    return shapes(tensors) if path.name.startswith("plain") else None


def test_every_format_has_a_key_list_and_every_key_list_a_format():
    formats = set(names.list_names("format"))
    assert {path.name.partition(".")[0] for path in KEYS} == formats
    assert {name.partition(".")[0] for name in (*RESNET50, *ALEXNET)} | VIT_FORMATS <= formats


def test_a_table_says_what_it_is_and_where_it_is_defined():
    files = {name: load_table(name).file for name in names.list_names("format")}
    assert [n for n, file in files.items() if not file.title or not file.source.startswith("https://")] == []


def recognised(path, tensors, **options):
    file = file_with(path, tensors, entries(path)[0])
    return recognise(file, expected=expected_of(path, tensors), **options)


def is_read_and_comes_back(path):
    """Check a file of a format: known whatever the order of its keys, and by name; back bit for bit the same."""
    where, tensors = entries(path)
    found = recognised(path, tensors)
    # smaller tensors, to be copied and compared: of 2, 3 and 16 parts still
    tensors = {key: tensor[(slice(48),) * tensor.ndim] for key, tensor in tensors.items()}
    shuffled = list(tensors.items())
    random.Random(0).shuffle(shuffled)
    mixed = recognised(path, dict(shuffled))
    for one in (found, mixed):
        assert (one.format, one.where) == (path.name.partition(".")[0], where)
        assert one.canonical
    named = recognised(path, tensors, format=found.format)
    assert list(found.canonical) == list(named.canonical), "another order when the format is named"
    back = load_table(found.format).from_canonical({**mixed.canonical, **mixed.heads}, prefix=mixed.prefix)
    assert back.keys() == tensors.keys() - set(found.dropped)
    for key, tensor in back.items():
        assert tensor.dtype == tensors[key].dtype and torch.equal(tensor, tensors[key]), key


def test_a_file_of_every_format_is_read_in_any_order_and_by_name_and_comes_back_bit_for_bit():
    assert offenders(KEYS, is_read_and_comes_back) == []


def has_torchvision_names_and_shapes(name):
    wanted = shapes(entries(KEYS[0].with_name("torchvision.txt"))[1])
    path = KEYS[0].with_name(f"{name}.txt")
    found = recognised(path, entries(path)[1])
    backbone = {key: shape for key, shape in wanted.items() if not key.startswith("fc.")}
    if not any(key.endswith("num_batches_tracked") for key in found.canonical):
        backbone = {key: shape for key, shape in backbone.items() if not key.endswith("num_batches_tracked")}
        assert len(backbone) == 265
    assert shapes(found.canonical) == backbone


def test_resnet50_formats_give_torchvision_names_and_shapes():
    assert offenders(RESNET50, has_torchvision_names_and_shapes) == []


def has_names_and_shapes_of_an_alexnet(path):
    found = recognised(path, entries(path)[1])
    backbone = build(recognise_alexnet(shapes(found.canonical)))
    wanted = shapes(backbone.module.state_dict())
    optional = {key for key in wanted if key.endswith("num_batches_tracked")}
    assert wanted.keys() - optional <= found.canonical.keys() <= wanted.keys()
    assert all(wanted[key] == shape for key, shape in shapes(found.canonical).items())


def test_alexnet_formats_give_the_names_and_shapes_of_a_backbone():
    paths = [path for path in KEYS if path.name.partition(".")[0] in ALEXNET]
    assert len(paths) >= len(ALEXNET) and offenders(paths, has_names_and_shapes_of_an_alexnet) == []


def test_a_plain_file_is_not_recognised_without_the_backbone():
    path = KEYS[0].with_name("plain.txt")
    where, tensors = entries(path)
    assert tensors_at(file_with(path, tensors, where).content, where)
    with pytest.raises(Exception, match="no known format"):
        recognise(file_with(path, tensors, where))
