"""Patterns and rules: what a table may say, what it is refused for, and that every rule can be undone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench.errors import UsageError, WeightsError
from sslbench.weights.formats import rules
from sslbench.weights.formats.tables import parse_table


def table(rules, **more):
    values = {"title": "t", "source": "https://example.org", "rules": rules, **more}
    return parse_table("mine", values, where="mine.yaml")


def numbered(keys, shape=(2, 3)):
    return {key: torch.full(shape, float(number)) for number, key in enumerate(keys)}


@pytest.mark.parametrize(
    ("pattern", "key", "values"),
    [
        ("layer{i}.{j}.bn{k}.{leaf}", "layer1.0.bn2.weight", {"i": "1", "j": "0", "k": "2", "leaf": "weight"}),
        ("layer{i}.{j}.bn{k}.{leaf}", "layer1.0.bn.weight", None),
        ("layer{i}.{j}.bn{k}.{leaf}", "module.layer1.0.bn2.weight", None),
        ("layer{i}.{j}.bn{k}.{leaf}", "layer1.0.bn2.weight.extra", None),
        ("layer{i}.weight", "layer1.0.weight", None),
        ("a.{rest*}", "a.b.c", {"rest": "b.c"}),
        ("a.{rest*}", "a.", None),
        ("a.{rest*}", "a.b..c", None),
        ("a.{rest*}.weight", "a.b.c.weight", {"rest": "b.c"}),
        ("a+b.{i}", "a+b.1", {"i": "1"}),
        ("a+b.{i}", "aab.1", None),
        ("{rest*}", "x", {"rest": "x"}),
        ("a.{i}", "a.b\n", {"i": "b\n"}),
        ("s{i+1}.b{j}", "s10.b0", {"i": "9", "j": "0"}),
        ("s{i+1}.b{j}", "s0.b0", None),
        ("s{i+1}.b{j}", "s01.b0", None),
        ("s{i+1}.b{j}", "sx.b0", None),
    ],
)
def test_a_pattern_fits_whole_keys(pattern, key, values):
    assert rules.parse_pattern(pattern).match(key) == values
    assert values is None or rules.parse_pattern(pattern).fill(values) == key


@pytest.mark.parametrize("text", ["", "a.{", "a.{I}", "{a}{b}", "{a}.{a}", "x{rest*}", "{a*}.{b*}", "a.{i.j}", "}"])
def test_a_pattern_that_makes_no_sense_is_refused(text):
    with pytest.raises(ValueError, match="'"):
        rules.parse_pattern(text)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([["a.{i}", "b.{j}"]], "same holes"),
        ([["a.{i}", "b"]], "same holes"),
        ([["a.{i}", "b.{i*}"]], "same holes"),
        ([["a"]], r"\[foreign, canonical\]"),
        ([["a", "b", "c", "d"]], r"\[foreign, canonical\]"),
        ([["a", "b", "rotate"]], "unknown operation 'rotate'"),
        ([["a", "b", "transpos"]], "Did you mean 'transpose'"),
        ([["a.{i}", "b.{i}"], ["a.{j}", "c.{j}"]], "two rules have the same foreign key"),
        ([["a.{i}", "c.{i}"], ["b.{j}", "c.{j}"]], "two rules have the same canonical key"),
        ([[["a", "b"], ["c", "d"]]], "one key on at least one side"),
        ([["a{", "b"]], "a key with holes"),
        ([], "must not be empty"),
    ],
)
def test_a_rule_that_cannot_be_undone_is_refused_with_the_file(rules, message):
    with pytest.raises(UsageError, match=message) as caught:
        table(rules)
    assert caught.value.message.startswith("mine.yaml")


def test_an_unknown_entry_is_named_with_the_nearest():
    with pytest.raises(UsageError, match="Did you mean 'drop'"):
        table([["a", "b"]], dropp=["x"])


def test_a_key_that_fits_two_rules_is_refused_naming_both():
    with pytest.raises(WeightsError, match=r"'x\.1' fits two rules: \[x\.\{i\}, y\.\{i\}\] and \[\{a\}\.1, z\.\{a\}\]"):
        table([["x.{i}", "y.{i}"], ["{a}.1", "z.{a}"]]).to_canonical(numbered(["x.1"]))


def test_two_keys_with_one_target_are_refused_naming_both():
    with pytest.raises(WeightsError, match=r"'a\.1' and 'b' both become 'c\.1'"):
        table([["a.{i}", "c.{i}"], ["b", "c.1"]]).to_canonical(numbered(["a.1", "b"]))


def test_a_key_that_fits_nothing_is_refused():
    with pytest.raises(WeightsError, match=r"1 keys fit no rule: 'z'"):
        table([["a", "b"]]).to_canonical(numbered(["a", "z"]))


def test_a_tensor_without_a_name_in_the_format_is_refused():
    with pytest.raises(WeightsError, match="no name for 1 tensors: 'fc'"):
        table([["a", "b"]]).from_canonical(numbered(["b", "fc"]))


def test_ambiguous_holes_are_refused_and_not_guessed():
    mine = table([["{a}-{b}", "{b}-{a}"]])
    assert list(mine.to_canonical(numbered(["1-2"]))[0]) == ["2-1"]
    with pytest.raises(WeightsError, match="is not invertible for '1-2-3'"):
        mine.to_canonical(numbered(["1-2-3"]))


def test_drops_come_first_then_heads_then_rules():
    mine = table([["{rest*}", "{rest*}"]], prefix=["m."], heads=["fc.{leaf}"], drop=["m.fc.skip", "queue"])
    found = mine.split(numbered(["m.a.b", "m.fc.weight", "m.fc.skip", "queue"]))
    assert (list(found.canonical), list(found.heads)) == (["a.b"], ["fc.weight"])
    assert (found.dropped, found.heads_met, found.drops_met) == (
        ("m.fc.skip", "queue"),
        ("fc.*",),
        ("m.fc.skip", "queue"),
    )
    canonical, dropped = mine.to_canonical(numbered(["m.a.b", "m.fc.weight", "queue"]))
    assert (list(canonical), dropped) == (["a.b"], ("queue", "m.fc.weight"))


def test_a_file_has_one_prefix_throughout():
    mine = table([["{rest*}", "{rest*}"]], prefix=["", "m."])
    assert mine.split(numbered(["m.a", "m.b"])).prefix == "m."
    assert mine.split(numbered(["a", "b"])).prefix == ""
    assert mine.split(numbered(["m.a", "m.b", "m.c", "d"])).unknown == ("d",)


def test_keys_are_concatenated_and_split_again():
    mine = table([[["{p}.q", "{p}.k", "{p}.v"], "{p}.qkv"], ["kv", ["k", "v"]]])
    tensors = {name: torch.randn(4, 5) for name in ("b.k", "b.q", "b.v")} | {"kv": torch.randn(6, 2)}
    canonical, _ = mine.to_canonical(tensors)
    assert torch.equal(canonical["b.qkv"], torch.cat([tensors["b.q"], tensors["b.k"], tensors["b.v"]]))
    assert torch.equal(canonical["k"], tensors["kv"][:3])
    back = mine.from_canonical(canonical)
    assert back.keys() == tensors.keys() and all(torch.equal(back[key], tensors[key]) for key in back)


@pytest.mark.parametrize(
    "shapes", [{"q": (4,), "k": (4,)}, {"q": (4,), "k": (4,), "v": (5,)}], ids=["one is missing", "shapes differ"]
)
def test_what_cannot_be_concatenated_is_refused(shapes):
    with pytest.raises(WeightsError):
        table([[["q", "k", "v"], "qkv"]]).to_canonical({key: torch.ones(shape) for key, shape in shapes.items()})


def test_an_operation_that_does_not_fit_names_the_key_and_shape():
    with pytest.raises(WeightsError, match=r"'flip_channels' does not fit 'a' of shape \(2, 3\)"):
        table([["a", "b", "flip_channels"]]).to_canonical(numbered(["a"]))


RULES = [
    ["stem.conv.weight", "conv1.weight", "flip_channels"],
    ["res{s}.{b}.conv{k}.norm.{leaf}", "layer{s}.{b}.bn{k}.{leaf}"],
    ["res{s}.{b}.conv{k}.weight", "layer{s}.{b}.conv{k}.weight"],
    ["dense.{n}.kernel", "mlp.{n}.weight", "transpose"],
    ["proj.{n}.weight", "conv.{n}.weight", "conv_to_linear"],
    [["att.{n}.q.{leaf}", "att.{n}.k.{leaf}"], "blocks.{n}.qk.{leaf}"],
    ["other.{rest*}", "misc.{rest*}"],
]
MAKERS = [
    lambda a, b: {"stem.conv.weight": (2, 3, 2, 2)},
    lambda a, b: {f"res{a}.{b}.conv1.norm.bias": (3,), f"res{a}.{b}.conv1.norm.running_mean": (3,)},
    lambda a, b: {f"res{a}.{b}.conv{b}.weight": (2, 2, 1, 1)},
    lambda a, b: {f"dense.{a}.kernel": (2, 5)},
    lambda a, b: {f"proj.{b}.weight": (2, 5, 1, 1)},
    lambda a, b: {f"att.{a}.q.weight": (2, 3), f"att.{a}.k.weight": (2, 3)},
    lambda a, b: {f"other.{a}.x.{b}": (1,), f"other.{a}": ()},
]


@settings(max_examples=60, deadline=None)
@given(
    kept=st.sets(st.integers(0, len(RULES) - 1), min_size=1),
    numbers=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
    shuffled=st.randoms(use_true_random=False),
)
def test_any_subset_of_rules_and_any_order_of_keys_goes_there_and_back(kept, numbers, seed, shuffled):
    mine = table([RULES[number] for number in sorted(kept)])
    generator = torch.Generator().manual_seed(seed)
    keys = {key: shape for rule in kept for a, b in numbers for key, shape in MAKERS[rule](a, b).items()}
    order = list(keys)
    shuffled.shuffle(order)
    tensors = {key: torch.randn(keys[key], generator=generator) for key in order}
    canonical, dropped = mine.to_canonical(tensors)
    back = mine.from_canonical(canonical)
    assert dropped == () and back.keys() == tensors.keys()
    assert all(torch.equal(back[key], tensors[key]) for key in tensors)
