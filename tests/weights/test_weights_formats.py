"""Tables of formats: what they know, how they fit together, and what is written to each."""

import random
from pathlib import Path

import pytest
import torch
import torchvision
from helpers.offenders import offenders
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench import names
from sslbench.backbones.alexnet import recognise_alexnet
from sslbench.backbones.build import build, family_of, laid_out
from sslbench.backbones.convert import convert
from sslbench.errors import UsageError, WeightsError
from sslbench.weights.formats import rules
from sslbench.weights.formats.places import tensors_at
from sslbench.weights.formats.recognise import recognise
from sslbench.weights.formats.tables import load_table, parse_table
from sslbench.weights.reading.files import WeightsFile, read
from sslbench.weights.reading.model_config import NO_CONFIG
from sslbench.weights.save import save

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


@pytest.mark.parametrize(
    ("path", "backbone"),
    [
        ("vissl_regnet", "timm:regnety_002"),
        ("vissl_regnet.x", "timm:regnetx_002"),
        ("simclr_v2", "resnet50,sk_ratio=0.0625"),
        ("simclr_v2.vissl", "resnet50,sk_ratio=0.0625"),
        ("simclr_v2_plain", "resnet50"),
    ],
)
def test_trunks_of_vissl_and_simclr_v2_give_the_names_and_shapes_of_a_backbone(path, backbone):
    path = KEYS[0].with_name(f"{path}.txt")
    canonical = shapes(recognised(path, entries(path)[1]).canonical)
    assert family_of(backbone).recognise(canonical, "", "", NO_CONFIG) == backbone
    with laid_out():
        assert canonical == shapes(build(backbone).module.state_dict())


def test_a_regnet_of_vissl_has_no_colours_until_they_are_named():
    path = KEYS[0].with_name("vissl_regnet.txt")
    found = recognised(path, entries(path)[1])
    assert list(found.choices) == ["rgb", "bgr"]
    stems = [
        recognised(
            path,
            entries(path)[1] | {"_feature_blocks.conv1.stem.0.weight": torch.arange(864.0).view(32, 3, 3, 3)},
            format=f"vissl_regnet:{name}",
        ).canonical["stem.conv.weight"]
        for name in found.choices
    ]
    assert torch.equal(stems[0], stems[1].flip(1)) and not torch.equal(*stems)


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
