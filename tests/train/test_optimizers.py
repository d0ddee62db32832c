"""Parameter groups as users know them from VISSL, DINO, timm and BEiT; rates; optimizers that go on after a restart."""

import copy
import dataclasses
import io
import logging
import sys

import pytest
import timm
import timm.optim
import torch
import torchvision
from helpers.drawn_rectangles import recipe as small_recipe
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sslbench import paths
from sslbench.backbones.build import build as build_backbone
from sslbench.config import build, read_yaml, result_settings
from sslbench.detection import recipe as detection
from sslbench.detection.models.build import build_detector
from sslbench.detection.train import make_optimizer as of_detector
from sslbench.distributed.parallel import zero_optimizer
from sslbench.errors import UsageError
from sslbench.names import modules
from sslbench.protocols._parts.dense import task as dense_settings
from sslbench.protocols.finetune import settings as finetune_recipe
from sslbench.protocols.finetune import settings as finetune_settings
from sslbench.protocols.finetune.settings import Rates
from sslbench.protocols.linear_online import settings as linear_online
from sslbench.protocols.linear_online import settings as online_recipe
from sslbench.protocols.linear_online.heads import Head, Heads, LinearBank
from sslbench.train.optimizers.optimizer import OptimizerSettings, PartSettings, make_optimizer, scaled_lr, set_rates
from sslbench.train.parameter_groups import parameter_groups


class Model(nn.Module):
    """As methods are: a backbone and a head."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.projector = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2, bias=False))


@pytest.fixture(scope="module")
def vit():
    with torch.device("meta"):
        network = timm.create_model("vit_tiny_patch16_224", depth=3, num_classes=0, init_values=1e-5)
        return Model(network)


def resnet():
    with torch.device("meta"):
        network = torchvision.models.resnet18()
        network.fc = nn.Identity()
        return Model(network)


def small():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Model(network)


def decayed(model, **settings):
    groups = parameter_groups(model, OptimizerSettings(**settings))
    return {name for group in groups if group["weight_decay_factor"] for name in group["names"]}


def names(model):
    return {name for name, _ in model.named_parameters()}


def factors(model, **settings):
    groups = parameter_groups(model, OptimizerSettings(**settings))
    return {name: group["lr_factor"] for group in groups for name in group["names"]}


def test_every_trainable_parameter_is_in_exactly_one_group_beside_its_name(vit):
    for model in (vit, resnet()):
        model.projector[0].weight.requires_grad_(False)
        groups = parameter_groups(model, OptimizerSettings(layer_decay=0.7, decay_norm=False, decay_bias=False))
        model.projector[0].weight.requires_grad_(True)
        found = {name: id(p) for group in groups for name, p in zip(group["names"], group["params"], strict=True)}
        assert found == {n: id(p) for n, p in model.named_parameters() if n != "projector.0.weight"}
        assert sum(len(group["names"]) for group in groups) == len(found)
        assert all(group["names"] for group in groups)


def test_a_batchnorm_bias_is_decayed_only_if_both_norms_and_biases_are():
    model = resnet()
    bn = {n for n in names(model) if ".bn" in n or ".downsample.1." in n or "projector.1." in n}
    bn_bias = {n for n in bn if n.endswith("bias")}
    assert decayed(model) == names(model)
    assert decayed(model, decay_norm=False) == names(model) - bn
    assert decayed(model, decay_bias=False) == names(model) - bn_bias - {"projector.0.bias"}
    assert decayed(model, decay_norm=False, decay_bias=False) == names(model) - bn - {"projector.0.bias"}


def test_dinos_and_timms_rules_for_vision_transformers(vit):
    """DINO: nothing of one dimension and no bias; positions and tokens are decayed. timm: not those either."""
    no_vectors = {n for n, p in vit.named_parameters() if p.dim() > 1}
    assert decayed(vit, decay_norm=False, decay_bias=False) == no_vectors
    assert {"backbone.pos_embed", "backbone.cls_token"} <= no_vectors
    skipped = vit.backbone.no_weight_decay()
    expected = no_vectors - {f"backbone.{name}" for name in skipped}
    assert decayed(vit, decay_norm=False, decay_bias=False, no_decay=("pos_embed", "cls_token")) == expected
    theirs = timm.optim.param_groups_weight_decay(vit.backbone, 0.05, no_weight_decay_list=tuple(skipped))
    plain = {id(p) for group in theirs if group["weight_decay"] for p in group["params"]}
    assert plain == {id(p) for n, p in vit.named_parameters() if n in expected and n.startswith("backbone.")}


def test_no_decay_names_whole_parts_and_a_name_that_is_none_is_said(caplog):
    model = resnet()
    left = names(model) - decayed(model, no_decay=("backbone.layer1", "conv1.weight", "projector"))
    assert left == {n for n in names(model) if n.startswith(("backbone.layer1.", "projector.")) or "conv1.weight" in n}
    with caplog.at_level(logging.WARNING, "sslbench"):
        assert decayed(model, no_decay=("onv1", "layer")) == names(model)
    assert "no parameter is called 'onv1'. Did you mean 'conv1'" in caplog.text


def test_the_head_may_have_another_rate_and_weight_decay():
    settings = OptimizerSettings(lr=0.2, weight_decay=1e-4, head_lr_factor=10, head_weight_decay=0.0, decay_norm=False)
    optimizer = make_optimizer(parameter_groups(small(), settings), settings)
    set_rates(optimizer, lr=0.1, weight_decay=0.5)
    for group in optimizer.param_groups:
        head = group["names"][0].startswith("projector")
        assert group["lr"] == (1.0 if head else 0.1)
        assert group["weight_decay"] == (0.5 if not head and group["weight_decay_factor"] else 0.0)


def test_layer_decay_of_a_vision_transformer_counts_as_beit_does(vit):
    found = factors(vit, layer_decay=0.5)
    first = ("backbone.patch_embed.proj.weight", "backbone.pos_embed", "backbone.cls_token")
    assert [found[name] for name in first] == [0.5**4] * 3
    for i in range(3):
        block = {factor for name, factor in found.items() if name.startswith(f"backbone.blocks.{i}.")}
        assert block == {0.5 ** (3 - i)}
    assert found["backbone.norm.weight"] == found["projector.0.weight"] == 1


def test_layer_decay_of_a_resnet_counts_its_blocks():
    found = factors(resnet(), layer_decay=0.5, head_lr_factor=3)
    assert found["backbone.conv1.weight"] == found["backbone.bn1.bias"] == 0.5**9
    assert found["backbone.layer1.0.conv1.weight"] == 0.5**8
    assert found["backbone.layer4.1.bn2.weight"] == 0.5
    assert found["projector.0.weight"] == 3


def test_a_frozen_block_does_not_move_the_others():
    model = resnet()
    model.backbone.layer1.requires_grad_(False)
    assert factors(model, layer_decay=0.5)["backbone.conv1.weight"] == 0.5**9


def test_what_cannot_be_grouped_is_refused():
    with pytest.raises(UsageError, match=r"layer_decay needs a backbone of numbered blocks.*\n.*layer_decay=null"):
        parameter_groups(small(), OptimizerSettings(layer_decay=0.5))
    with pytest.raises(UsageError, match="no parameter is trainable"):
        parameter_groups(small().requires_grad_(False), OptimizerSettings())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -0.1}, "optimizer: lr should be 0 or more, not -0.1"),
        ({"lr": float("nan")}, "optimizer: lr should be"),
        ({"base_batch_size": 0}, "optimizer: base_batch_size should be 1 or more"),
        ({"layer_decay": 0.0}, "optimizer: layer_decay should be above 0"),
        ({"momentum": 1.0}, "optimizer: momentum should be from 0 to below 1"),
        ({"betas": (0.9, 1.5)}, "optimizer: betas should be from 0 to below 1, not 1.5"),
        ({"nesterov": True, "momentum": 0.0}, "nesterov needs optimizer.momentum"),
    ],
)
def test_impossible_settings_are_named(settings, message):
    with pytest.raises(UsageError, match=message):
        OptimizerSettings(**settings)


@given(st.floats(1e-4, 10), st.integers(1, 8192), st.integers(1, 8192))
def test_the_rate_follows_the_images_per_update(lr, images, base):
    settings = OptimizerSettings(lr=lr, base_batch_size=base)
    rate = {s: scaled_lr(dataclasses.replace(settings, lr_scaling=s), images) for s in ("none", "linear", "sqrt")}
    assert rate["none"] == lr
    assert rate["linear"] == pytest.approx(lr * images / base)
    assert rate["sqrt"] ** 2 == pytest.approx(rate["none"] * rate["linear"])
    assert scaled_lr(settings, base) == lr


NAMES = sorted(modules("optimizer"))


def run(model, optimizer, first, last):
    for i in range(first, last):
        generator = torch.Generator().manual_seed(i)
        for p in model.parameters():
            p.grad = torch.empty_like(p).copy_(torch.randn(p.shape, generator=generator))
        set_rates(optimizer, lr=0.1 / (i + 1), weight_decay=0.01 * i, momentum=0.5 + 0.1 * i)
        optimizer.step()


def new(name, memory_format=torch.contiguous_format):
    settings = OptimizerSettings(name=name, lr=0.1, decay_norm=False, decay_bias=False, head_lr_factor=2.0)
    model = small().to(memory_format=memory_format)
    return model, make_optimizer(parameter_groups(model, settings), settings)


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_and_restored_optimizer_goes_on_bit_by_bit(name):
    model, optimizer = new(name)
    run(model, optimizer, 0, 2)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    run(model, optimizer, 2, 4)
    file.seek(0)
    content = torch.load(file, weights_only=True)
    again, other = new(name)
    again.load_state_dict(content["model"])
    other.load_state_dict(content["optimizer"])
    run(again, other, 2, 4)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_state_in_another_memory_layout_is_the_same_state(name):
    """A fused step does not look at strides, so state from a contiguous copy would meet the wrong elements."""
    model, optimizer = new(name, torch.channels_last)
    run(model, optimizer, 0, 2)
    state = copy.deepcopy(optimizer.state_dict())
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    for values in state["state"].values():
        values.update({k: v.clone(memory_format=torch.contiguous_format) for k, v in values.items()})
    run(model, optimizer, 2, 4)
    again, other = new(name, torch.channels_last)
    again.load_state_dict(weights)
    other.load_state_dict(state)
    run(again, other, 2, 4)
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("sgd", lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.3, foreach=False)),
        ("adamw", lambda p: torch.optim.AdamW(p, 0.1, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.3, foreach=False)),
    ],
)
def test_sgd_and_adamw_are_torchs(name, reference):
    settings = OptimizerSettings(name=name, lr=0.1, weight_decay=0.3, nesterov=True, betas=(0.8, 0.95), eps=1e-4)
    ours, theirs = small(), small()
    pairs = (ours, make_optimizer(parameter_groups(ours, settings), settings)), (theirs, reference(theirs.parameters()))
    for i in range(3):
        for model, optimizer in pairs:
            generator = torch.Generator().manual_seed(i)
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=generator)
            optimizer.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_lars_and_larc_get_their_options():
    lars = make_optimizer(
        parameter_groups(small(), OptimizerSettings()),
        OptimizerSettings(name="lars", trust_coefficient=0.02, exclude_norm_and_bias=True, momentum=0.8),
    )
    larc = make_optimizer(
        parameter_groups(small(), OptimizerSettings()), OptimizerSettings(name="larc", clip=True, eps=1e-3)
    )
    wanted = {"denominator": "joint", "trust_coefficient": 0.02, "exclude_1d": True, "momentum": 0.8}
    assert wanted.items() <= lars.param_groups[0].items()
    wanted = {"denominator": "separate", "clip": True, "eps": 1e-3, "exclude_1d": False}
    assert wanted.items() <= larc.param_groups[0].items()


def test_rates_reach_every_group_and_adamws_momentum_is_its_first_beta():
    _, optimizer = new("adamw")
    set_rates(optimizer, lr=0.5, momentum=0.7)
    assert {group["lr"] for group in optimizer.param_groups} == {0.5, 1.0}
    assert {group["betas"] for group in optimizer.param_groups} == {(0.7, 0.999)}
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 1e-4}
    set_rates(optimizer, lr=0.5, weight_decay=0.2)
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.2}
    _, sgd = new("sgd")
    set_rates(sgd, lr=0.5, momentum=0.7)
    assert {group["momentum"] for group in sgd.param_groups} == {0.7}


def test_zero_with_one_process_is_the_plain_optimizer():
    settings = OptimizerSettings(name="larc")
    a, b = small(), small()
    optimizers = [
        make_optimizer(parameter_groups(model, settings), settings, sharded=sharded)
        for model, sharded in ((a, zero_optimizer), (b, None))
    ]
    for model, optimizer in zip((a, b), optimizers, strict=True):
        run(model, optimizer, 0, 2)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_the_files_of_the_optimizer_group():
    files = sorted((paths.builtin_dir("configs") / "optimizer").glob("*.yaml"))
    assert [f.stem for f in files] == sorted(NAMES)
    for file in files:
        assert build(OptimizerSettings, read_yaml(file), file.name).name == file.stem


def test_a_constant_rate_ignores_the_schedule():
    """SimSiam's predictor (Chen and He 2021, section 4.2)."""
    settings = OptimizerSettings(constant_lr=("projector",), head_lr_factor=2.0)
    optimizer = make_optimizer(parameter_groups(small(), settings), settings)
    set_rates(optimizer, lr=0.01, peak_lr=0.5)
    rates = {name: group["lr"] for group in optimizer.param_groups for name in group["names"]}
    assert {rate for name, rate in rates.items() if name.startswith("projector")} == {1.0}
    assert {rate for name, rate in rates.items() if name.startswith("backbone")} == {0.01}


class TestParts:
    """Own rates of the parameters of a name."""

    def rates(self, parts, **settings):
        chosen = OptimizerSettings(lr=0.1, weight_decay=0.01, **settings)
        optimizer = make_optimizer(parameter_groups(small(), chosen, parts=parts), chosen)
        set_rates(optimizer, lr=0.05, weight_decay=0.02, part="")
        set_rates(optimizer, lr=0.7, weight_decay=0.3, part="projector")
        return {n: (g["lr"], g["weight_decay"]) for g in optimizer.param_groups for n in g["names"]}

    def test_the_named_parameters_have_their_rates_and_the_others_the_runs(self):
        found = self.rates({"projector": PartSettings(lr=0.7)})
        assert {rate for name, rate in found.items() if name.startswith("projector")} == {(0.7, 0.3)}
        assert {rate for name, rate in found.items() if not name.startswith("projector")} == {(0.05, 0.02)}

    def test_own_rates_replace_those_of_the_head(self):
        head = {"head_lr_factor": 2.0, "head_weight_decay": 0.5}
        replaced = self.rates({"projector": PartSettings(lr=0.7, weight_decay=0.3)}, **head)
        assert {rate for name, rate in replaced.items() if name.startswith("projector")} == {(0.7, 0.3)}
        kept = self.rates({"projector": PartSettings(schedule={"warmup_epochs": 1})}, **head)
        assert {rate for name, rate in kept.items() if name.startswith("projector")} == {(1.4, 0.5)}

    @pytest.mark.parametrize(
        ("parts", "message"),
        [
            ({"projecter": PartSettings(lr=1.0)}, "no trained parameter is called 'projecter'"),
            ({"projector": PartSettings(lr=1.0), "projector.0": PartSettings(lr=2.0)}, "belongs to 'projector' and to"),
        ],
    )
    def test_names_of_nothing_and_of_two_entries_are_refused(self, parts, message):
        with pytest.raises(UsageError, match=message):
            parameter_groups(small(), OptimizerSettings(), parts=parts)

    def test_a_schedule_of_a_constant_rate_is_refused(self):
        settings = OptimizerSettings(constant_lr=("projector",))
        with pytest.raises(UsageError, match="constant_lr keeps constant"):
            parameter_groups(small(), settings, parts={"projector": PartSettings(schedule={"lr": 0.5})})

    @pytest.mark.parametrize(
        "values", [{}, {"lr": -1.0}, {"lr": float("nan")}, {"weight_decay": 0.1, "schedule": {"weight_decay": 0.2}}]
    )
    def test_settings_without_effect_or_sense_are_refused(self, values):
        with pytest.raises(UsageError, match="groups: "):
            PartSettings(**values)


def _two_layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))


@pytest.mark.parametrize("name", ["timm:lamb", "timm:adan", "timm:lion", "torch.optim:Adam"])
def test_optimizers_of_libraries_take_rates_decay_and_options(name):
    module = _two_layers()
    settings = OptimizerSettings(name=name, lr=0.1, weight_decay=0.01, decay_bias=False, options={"betas": [0.8, 0.9]})
    if name == "timm:adan":
        settings = dataclasses.replace(settings, options=None)
    optimizer = make_optimizer(parameter_groups(module, settings), settings)
    set_rates(optimizer, lr=0.05, weight_decay=0.02)
    assert {group["lr"] for group in optimizer.param_groups} == {0.05}
    assert sorted(group["weight_decay"] for group in optimizer.param_groups) == [0.0, 0.02]
    before = module[0].weight.detach().clone()
    module(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert not torch.equal(module[0].weight, before)
    if settings.options:
        assert tuple(optimizer.param_groups[0]["betas"]) == (0.8, 0.9)


OWN = """
import torch
from sslbench.train.optimizers.optimizer import OptimizerKind

OPTIMIZER = OptimizerKind(torch.optim.NAdam, uses={"betas": "betas"}, finetune_lr=0.001)
"""


@pytest.fixture
def own_optimizer(tmp_path, monkeypatch):
    """Name of an optimizer that a file defines, as those of the package do."""
    (tmp_path / "of_mine").mkdir()
    (tmp_path / "of_mine" / "nadam.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "of_mine.nadam"
    for name in ("of_mine.nadam", "of_mine"):
        sys.modules.pop(name, None)


def test_an_optimizer_is_one_file_for_every_kind_of_training(own_optimizer):
    chosen = OptimizerSettings(name=own_optimizer, betas=(0.7, 0.9), options={"momentum_decay": 0.01})
    optimizer = make_optimizer(parameter_groups(_two_layers(), chosen), chosen)
    assert isinstance(optimizer, torch.optim.NAdam)
    assert optimizer.param_groups[0]["betas"] == (0.7, 0.9) and optimizer.param_groups[0]["momentum_decay"] == 0.01

    finetuning = finetune_settings.Settings(optimizer=own_optimizer, betas=(0.8, 0.9))
    assert [rates.lr for rates in finetune_recipe.candidates(finetuning)] == [0.001]
    assert finetune_recipe.optimizer_settings(finetuning, Rates(0.1, 0.0)).head_lr_factor == 1.0

    online_settings = linear_online.Settings(optimizer=own_optimizer)
    options = online_recipe.optimizer_settings(online_settings)
    heads = Heads([LinearBank("x", [Head(0.1), Head(0.2)], widths=(3, 3), classes=2)])
    optimizer = make_optimizer(heads.groups(options, 256), options)
    assert isinstance(optimizer, torch.optim.NAdam) and {g["lr"] for g in optimizer.param_groups} == {0.1, 0.2}

    dense = dense_settings.HeadSettings(optimizer=own_optimizer, betas=(0.8, 0.9))
    assert result_settings(dense)["optimizer"] == own_optimizer
    assert "optimizer" not in result_settings(dense_settings.HeadSettings())  # records are those of versions without it

    detector = build_detector(build_backbone("resnet_basic_1-1-1-1w0.125"), small_recipe(optimizer=own_optimizer), 2)
    detection.check(detector.recipe)
    assert isinstance(of_detector(detector, detector.recipe), torch.optim.NAdam)


@pytest.mark.parametrize(
    "check",
    [
        lambda name: finetune_settings.Settings(optimizer=name),
        lambda name: linear_online.Settings(optimizer=name),
        lambda name: dense_settings.HeadSettings(optimizer=name),
        lambda name: detection.check(detection.DetectionRecipe(optimizer=name)),
    ],
)
def test_a_mistyped_optimizer_is_told_with_the_nearest_one(check):
    with pytest.raises(UsageError, match=r"no optimizer called 'sdg'\nDid you mean 'sgd'"):
        check("sdg")


def test_finetuning_with_an_optimizer_without_a_usual_rate_asks_for_one():
    finetune_settings.Settings(optimizer="lars", lr=(0.1,))
    with pytest.raises(UsageError, match=r"optimizer=lars has no usual learning rate\nGive lr="):
        finetune_settings.Settings(optimizer="lars")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("timm:lambb", None, "timm has no optimizer called 'lambb'"),
        ("adamq", None, "there is no optimizer called 'adamq'\nDid you mean 'adamw'\\? Those of timm are timm:NAME."),
        ("timm:lamb", {"beta": 1}, "optimizer timm:lamb does not take"),
        ("timm:adahessian", None, "second derivatives"),
        ("sgd", {"momentum": 0.9}, "optimizer.options has no effect on sgd"),
        ("collections:Counter", None, "Counter"),
        ("my_pkg.nothing", None, "there is no Python module 'my_pkg.nothing'"),
        ("sslbench.train.lock", None, r"lock\.py defines no optimizer\nDefine OPTIMIZER"),
    ],
)
def test_optimizers_that_do_not_exist_or_fit_are_refused(name, options, message):
    with pytest.raises(UsageError, match=message):
        settings = OptimizerSettings(name=name, options=options)
        make_optimizer(parameter_groups(_two_layers(), settings), settings)
