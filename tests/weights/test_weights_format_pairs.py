"""Every ResNet-50 format to every other: the same as going through the canonical names, in memory and through files."""

from pathlib import Path

import pytest
import torch
import torchvision
from test_weights_formats import RESNET50

from sslbench.weights.convert import convert
from sslbench.weights.formats.recognise import recognise
from sslbench.weights.formats.tables import load_table
from sslbench.weights.reading.files import WeightsFile, read
from sslbench.weights.save import save

COUNTER = "num_batches_tracked"
FORMATS = sorted({name.partition(".")[0] for name in RESNET50} | {"byol_pytorch", "module", "timm", "torchvision"})


@pytest.fixture(scope="module")
def canonical():
    """A ResNet-50's names; every dimension at most 4, every tensor of its own, counters 0 as a new module has them."""
    with torch.device("meta"):
        shapes = {key: tensor.shape for key, tensor in torchvision.models.resnet50().state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    tensors = {
        key: torch.tensor(0) if key.endswith(COUNTER) else torch.randn([min(n, 4) for n in shape], generator=generator)
        for key, shape in shapes.items()
        if not key.startswith("fc.")
    }
    assert len(tensors) == 318
    return tensors


def holds(table, name):
    return any(pattern.match(name) is not None for rule in table.rules for pattern in rule.canonical)


def to(name, tensors):
    """The format's keys; counters are left out, or put in as 0, as the format has them."""
    table = load_table(name)
    counters = {key.replace("running_mean", COUNTER): torch.tensor(0) for key in tensors if "running_mean" in key}
    return table.from_canonical({key: t for key, t in {**counters, **tensors}.items() if holds(table, key)})


def file_of(name, tensors):
    content = tensors
    for step in reversed(load_table(name).file.state_dict[0].split(".")):
        content = {step: content} if step else content
    return WeightsFile(Path(f"{name}.pth"), "0" * 64, content, "torch zip")


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) and a[key].dtype == b[key].dtype for key in a)


def test_each_format_to_each_other_agrees_with_the_way_through_the_canonical_names(canonical):
    wanted = {name: to(name, canonical) for name in FORMATS}
    read_back = {name: recognise(file_of(name, wanted[name]), format=name).canonical for name in FORMATS}
    assert len(FORMATS) > 20
    distinct = {}  # of the sources that give equal tensors, one stands for all
    for source, tensors in read_back.items():
        if not any(same(tensors, others) for others in distinct.values()):
            distinct[source] = tensors
    for source, tensors in distinct.items():
        for target in FORMATS:
            assert same(to(target, tensors), wanted[target]), (source, target)


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_of_a_format_without_heads_is_read_right_without_naming_it(canonical, name):
    found = recognise(file_of(name, to(name, canonical)))
    backbone = {key: t for key, t in canonical.items() if key in found.canonical}
    assert same(found.canonical, backbone)
    assert {key for key in canonical if key not in backbone} <= {key for key in canonical if key.endswith(COUNTER)}


def test_a_file_that_goes_through_all_formats_comes_back_bit_for_bit(canonical, tmp_path):
    first = here = save(tmp_path / "start.pth", canonical, backbone="resnet50", metadata={})
    known = None  # a file of 'swav' without its head, for one, is not told from any other network
    # The other formats cannot record the images that these networks expect, so `convert` refuses the pair.
    of_one_kind = [name for name in FORMATS if not recognise(file_of(name, to(name, canonical)), format=name).choices]
    assert len(of_one_kind) >= 20
    for name in [*of_one_kind, "torchvision"]:
        there = tmp_path / f"{name}.next.pth"
        convert(here, there, to=name, format=known, overwrite=True)
        here, known = there, name
    assert same(recognise(read(here)).canonical, recognise(read(first)).canonical)
