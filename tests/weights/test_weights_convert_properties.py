"""What holds for every format: part of the tensors, part of the rules, any order, and keys that nobody knows."""

import dataclasses
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench import names
from sslbench.errors import WeightsError
from sslbench.weights.convert import _holds
from sslbench.weights.formats.recognise import recognise
from sslbench.weights.formats.tables import load_table
from sslbench.weights.reading.files import WeightsFile

KEYS = Path(__file__).parent / "keys"
# The largest ViTs have the names of the smaller ones, several times over.
LARGE = ("dinov2_chunked24", "dinov2_chunked40", "dinov2_swiglu", "huggingface_dinov2_swiglu")
FORMATS = [
    name for name in names.list_names("format") if (KEYS / f"{name}.txt").is_file() and name not in ("plain", *LARGE)
]
FEW = settings(max_examples=4, deadline=None)


def entries(name):
    """Where the tensors of a format's file lie, and the tensors: each has its own value, none takes memory."""
    first, *lines = (KEYS / f"{name}.txt").read_text().splitlines()
    tensors = {}
    for number, line in enumerate(lines):
        key, shape, dtype = line.split()
        sizes = [] if shape == "-" else [int(size) for size in shape.split("x")]
        tensors[key] = torch.tensor(number % 120, dtype=getattr(torch, dtype)).expand(sizes)
    return first.removeprefix("# at:").strip(), tensors


def recognised(name, tensors, where):
    content = dict(tensors)
    for step in reversed(where.split(".") if where else []):
        content = {step: content}
    own = {"format": name.replace("_", " "), "version": 1, "backbone": "resnet18"}
    content |= own if name.startswith("sslbench") else {}
    return recognise(WeightsFile(Path("w.pth"), "0" * 64, content, "torch zip"), format=name)


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("name", FORMATS)
@FEW
@given(data=st.data())
def test_part_of_the_canonical_tensors_goes_there_and_back(name, data):
    where, tensors = entries(name)
    found = recognised(name, tensors, where)
    table = load_table(f"{name}:{found.network}" if found.network else name)
    some = data.draw(st.lists(st.sampled_from(sorted(found.canonical)), min_size=1, max_size=20, unique=True))
    # what one key of the file becomes has to be there as a whole
    pieces = [rule for rule in table.rules if len(rule.canonical) > 1]
    part = {key: found.canonical[key] for key in some if not any(_fits(rule, key) for rule in pieces)}
    assert all(_holds(table, key) for key in part)
    written = table.from_canonical(part, prefix=found.prefix)
    back = table.split(written)
    assert equal(back.canonical, part) and not back.unknown


def _fits(rule, key):
    return any(pattern.match(key) is not None for pattern in rule.canonical)


@pytest.mark.parametrize("name", FORMATS)
def test_the_order_of_keys_changes_nothing(name):
    where, tensors = entries(name)
    shuffled = list(tensors.items())
    random.Random(name).shuffle(shuffled)
    shuffled = dict(shuffled)
    one, other = recognised(name, tensors, where), recognised(name, shuffled, where)
    assert equal(one.canonical, other.canonical) and equal(one.heads, other.heads)
    assert (one.network, one.prefix, set(one.ignored)) == (other.network, other.prefix, set(other.ignored))


@pytest.mark.parametrize("name", FORMATS)
@FEW
@given(data=st.data())
def test_without_some_rules_their_keys_are_unknown_and_the_others_as_before(name, data):
    _, tensors = entries(name)
    table = load_table(name)
    kept = data.draw(st.lists(st.sampled_from(table.rules), unique=True))
    whole = table.split(tensors)
    part = dataclasses.replace(table, rules=tuple(kept)).split(tensors)
    assert all(torch.equal(part.canonical[key], whole.canonical[key]) for key in part.canonical)
    assert set(part.dropped) == set(whole.dropped) and part.heads.keys() == whole.heads.keys()
    lost = {key for key in whole.canonical if not any(_fits(rule, key) for rule in kept)}
    assert part.canonical.keys() == whole.canonical.keys() - lost
    assert bool(lost) == (len(part.unknown) > len(whole.unknown))


STRICT = [name for name in FORMATS if not load_table(name).is_general]


@pytest.mark.parametrize("name", STRICT)
def test_a_key_that_nobody_knows_is_refused(name):
    where, tensors = entries(name)
    with pytest.raises(WeightsError, match="is not of format"):
        recognised(name, {**tensors, "a.surprise.of.mine": torch.ones(1)}, where)


def test_most_formats_are_strict():
    assert len(FORMATS) >= 25 and len(STRICT) >= 20
