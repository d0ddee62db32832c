"""What holds for every format: part of the tensors, part of the rules, any order, and keys that nobody knows."""

import dataclasses
import random
from pathlib import Path

import pytest
import torch
from helpers.offenders import offenders

from sslbench import names
from sslbench.errors import WeightsError
from sslbench.weights.convert import _holds
from sslbench.weights.formats.recognise import recognise
from sslbench.weights.formats.tables import load_table
from sslbench.weights.reading.files import WeightsFile

KEYS = Path(__file__).parent / "keys"
# The largest ViTs have the names of the smaller ones, several times over.
LARGE = ("dinov2_chunked24", "dinov2_chunked40", "dinov2_swiglu", "huggingface_dinov2_swiglu")
DRAWS = 4


def formats():
    every = [name for name in names.list_names("format") if (KEYS / f"{name}.txt").is_file()]
    assert len(every) >= 29
    return [name for name in every if name not in ("plain", *LARGE)]


def entries(name):
    """Return the tensors of a format's file, each with its own value and none taking memory, and their place in it."""
    first, *lines = (KEYS / f"{name}.txt").read_text().splitlines()
    tensors = {}
    for number, line in enumerate(lines):
        key, shape, dtype = line.split()
        sizes = [] if shape == "-" else [min(int(size), 48) for size in shape.split("x")]
        tensors[key] = torch.tensor(number % 120, dtype=getattr(torch, dtype)).expand(sizes)
    return tensors, first.removeprefix("# at:").strip()


def recognised(name, tensors, where):
    content = dict(tensors)
    for step in reversed(where.split(".") if where else []):
        content = {step: content}
    own = {"format": name.replace("_", " "), "version": 1, "backbone": "resnet18"}
    content |= own if name.startswith("sslbench") else {}
    return recognise(WeightsFile(Path("w.pth"), "0" * 64, content, "torch zip"), format=name)


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def goes_there_and_back_in_part(name):
    found = recognised(name, *entries(name))
    table = load_table(f"{name}:{found.network}" if found.network else name)
    # what one key of the file becomes has to be there as a whole
    pieces = [rule for rule in table.rules if len(rule.canonical) > 1]
    keys, drawn = sorted(found.canonical), random.Random(name)
    for _ in range(DRAWS):
        some = drawn.sample(keys, min(len(keys), drawn.randint(1, 20)))
        part = {key: found.canonical[key] for key in some if not any(_fits(rule, key) for rule in pieces)}
        assert all(_holds(table, key) for key in part)
        written = table.from_canonical(part, prefix=found.prefix)
        back = table.split(written)
        assert equal(back.canonical, part) and not back.unknown, some


def test_part_of_the_canonical_tensors_goes_there_and_back():
    assert offenders(formats(), goes_there_and_back_in_part) == []


def _fits(rule, key):
    return any(pattern.match(key) is not None for pattern in rule.canonical)


def is_the_same_in_any_order(name):
    tensors, where = entries(name)
    shuffled = list(tensors.items())
    random.Random(name).shuffle(shuffled)
    one, other = recognised(name, tensors, where), recognised(name, dict(shuffled), where)
    assert equal(one.canonical, other.canonical) and equal(one.heads, other.heads)
    assert (one.network, one.prefix, set(one.ignored)) == (other.network, other.prefix, set(other.ignored))


def test_the_order_of_keys_changes_nothing():
    assert offenders(formats(), is_the_same_in_any_order) == []


def knows_less_without_some_rules(name):
    tensors, _ = entries(name)
    table, drawn = load_table(name), random.Random(name)
    whole = table.split(tensors)
    for _ in range(DRAWS):
        kept = drawn.sample(table.rules, drawn.randint(0, len(table.rules)))
        part = dataclasses.replace(table, rules=tuple(kept)).split(tensors)
        assert all(torch.equal(part.canonical[key], whole.canonical[key]) for key in part.canonical)
        assert set(part.dropped) == set(whole.dropped) and part.heads.keys() == whole.heads.keys()
        lost = {key for key in whole.canonical if not any(_fits(rule, key) for rule in kept)}
        assert part.canonical.keys() == whole.canonical.keys() - lost, kept
        assert bool(lost) == (len(part.unknown) > len(whole.unknown)), kept


def test_without_some_rules_their_keys_are_unknown_and_the_others_as_before():
    assert offenders(formats(), knows_less_without_some_rules) == []


def refuses_a_key_that_nobody_knows(name):
    tensors, where = entries(name)
    with pytest.raises(WeightsError, match="is not of format"):
        recognised(name, {**tensors, "a.surprise.of.mine": torch.ones(1)}, where)


def test_a_key_that_nobody_knows_is_refused():
    strict = [name for name in formats() if not load_table(name).is_general]
    assert len(strict) >= 20 and offenders(strict, refuses_a_key_that_nobody_knows) == []
