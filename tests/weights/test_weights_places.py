"""Networks under any key, prefix and wrapper of a file: the right one is read, and every other one can be."""

import random
import re

import torch
from helpers.offenders import offenders

from sslbench.errors import WeightsError
from sslbench.weights.formats.places import WRAPPERS
from sslbench.weights.formats.recognise import recognise
from sslbench.weights.reading.files import WeightsFile

RESNET = [
    "conv1.weight",
    *(f"bn1.{leaf}" for leaf in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
    *(f"layer{i}.{j}.conv{k}.weight" for i in (1, 2) for j in (0, 1) for k in (1, 2)),
    *(f"layer{i}.{j}.bn{k}.{leaf}" for i in (1, 2) for j in (0, 1) for k in (1, 2) for leaf in ("weight", "bias")),
    "layer2.0.downsample.0.weight",
    "layer2.0.downsample.1.weight",
]
VIT = [
    "cls_token",
    "pos_embed",
    *(f"patch_embed.proj.{leaf}" for leaf in ("weight", "bias")),
    *(
        f"blocks.{i}.{name}.{leaf}"
        for i in (0, 1)
        for name in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
        for leaf in ("weight", "bias")
    ),
    *(f"norm.{leaf}" for leaf in ("weight", "bias")),
]
STAGES = {"conv1": "0", "bn1": "1", "layer1": "4", "layer2": "5"}
NAMES = ("net", "model", "backbone", "encoder", "module", "state", "my_model", "trunk", "weights", "x")
# Names of the network that is read, and of another one.
ROLES = (
    ("online_net", "target_net"),
    ("teacher", "student"),
    ("net_ema", "net"),
    ("encoder_q", "encoder_k"),
    ("body", "momentum_body"),
)


def network(names, number):
    """Tensors by name; convolutions have four dimensions, all values are the network's number."""
    return {name: torch.full((1,) * (4 if "conv" in name or "proj.weight" in name else 1), number) for name in names}


def as_lightly_saves(names):
    return {name: ".".join([STAGES[name.partition(".")[0]], name.partition(".")[2]]) for name in names}


def wrapped(keys, drawn):
    """Key -> key with names of wrappers behind some of its segments, or before them all."""
    nodes = sorted({key[: m.end()] for key in keys for m in re.finditer(r"\.", key)} | {""})
    chosen = drawn.sample(nodes, drawn.choice((0, 0, 1, 2, min(4, len(nodes)))))
    names = {
        node: "".join(f"{name}." for name in drawn.sample(sorted(WRAPPERS), drawn.choice((1, 2)))) for node in chosen
    }
    return {key: "".join([names.get("", ""), *_steps(key, names)]) for key in keys}


def _steps(key, names):
    begin = ""
    for step in re.findall(r"[^.]+\.?", key):
        begin += step
        yield step + names.get(begin, "")


def put(content, path, tensors):
    for step in path:
        content = content.setdefault(step, {})
    content |= tensors


def drawn_file(seed):
    """Content of a file, its networks (canonical names), and the number of the one to read; None if nothing tells."""
    drawn = random.Random(seed)
    names = drawn.choice((RESNET, VIT))
    saved = as_lightly_saves(names) if names is RESNET and drawn.random() < 0.3 else {name: name for name in names}
    roles = drawn.choice((("net",), (drawn.choice(NAMES),), *ROLES, ("first", "second")))
    outer = drawn.sample(NAMES, drawn.choice((0, 1, 2)))
    shared = drawn.random() < 0.5  # one dict with a prefix for each network, or a dict for each
    content = {"epoch": 3, "optimizer": {"state": {str(i): {"exp_avg": torch.zeros(2)} for i in range(9)}}}
    flat = 1 if shared and len(roles) == 2 and drawn.random() < 0.3 else None  # in that dict without a prefix
    networks = {}
    for number, role in drawn.sample(list(enumerate(roles)), len(roles)):
        networks[number] = network(names, number)
        keys = wrapped(list(saved.values()), drawn)
        inner = drawn.choice(("", "", "backbone.", "net.body."))
        tensors = {inner + keys[saved[name]]: tensor for name, tensor in networks[number].items()}
        if shared:
            start = "" if number == flat else f"{role}."
            put(content, outer, {start + key: tensor for key, tensor in tensors.items()})
            if flat is None:  # else nobody could tell whether it belongs to that network
                put(content, outer, {"loss.weight": torch.zeros(2)})
        else:
            put(content, [*outer, role], tensors)
    tied = roles == ("first", "second") or (flat and roles[0] == "body")
    return content, networks, None if tied else 0


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def is_found(seed):
    content, networks, right = drawn_file(seed)
    file = WeightsFile("w.pth", "0" * 64, content, "torch zip")
    try:
        found = recognise(file)
        assert right is not None, "one is taken although nothing tells which"
        assert same(found.canonical, networks[right]), f"another than {right}: {found.where} {found.prefix}"
        others, ways = networks.keys() - {right}, found.others
    except WeightsError as error:
        assert right is None, str(error)
        others, ways = networks.keys(), re.findall(r"--format ([^\s,]+)", error.remedy)
    reached = [recognise(file, format=way).canonical for way in ways]
    assert len(reached) == len(others), ways
    assert all(any(same(networks[number], other) for other in reached) for number in others)


def test_of_networks_nested_under_any_keys_prefixes_and_wrappers_the_right_one_is_read_and_all_are_named():
    assert offenders(range(30), is_found) == []
