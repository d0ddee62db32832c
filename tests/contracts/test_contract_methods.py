"""What every pretraining method promises, whatever it does."""

import copy
import dataclasses
import random

import numpy as np
import pytest
import torch
from helpers import runs
from helpers.small_methods import differences, make, one_update
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from sslbench.backbones.build import build
from sslbench.errors import UsageError
from sslbench.names import find_module, list_names
from sslbench.runtime.seeds import restore_random_states
from sslbench.train import checkpoints
from sslbench.train.method import Method, Step, find_method
from sslbench.train.optimizers.optimizer import make_optimizer
from sslbench.train.parameter_groups import parameter_groups
from sslbench.train.state import from_checkpoint, new_state, to_checkpoint
from sslbench.weights import heads

STILL = {"momentum": 1.0, "final_momentum": 1.0, "center_momentum": 1.0, "beta": 0.0}
"""Settings with which targets stand still: a centre that moves at once raises the loss, as does a covariance that
grows from zero."""


def of_targets(method):
    """Return the settings that let the targets of a method with a schedule of its decay stand still."""
    own = {field.name for field in dataclasses.fields(find_method(method).config_type)}
    return {name: value for name, value in STILL.items() if name in own} if "final_momentum" in own else {}


def optimizer_of(made, lr=0.02):
    settings = runs.settings("simclr", optimizer={"name": "sgd", "lr": lr}).optimizer
    return make_optimizer(parameter_groups(made, settings), settings)


PATCHES_ONLY = f"{runs.VIT},class_token=False,global_pool=avg,fc_norm=False"
VARIANTS = {
    "byol, nearest of a queue": ("byol", {"queue": 32}),
    "dcl, weighted positives": ("dcl", {"sigma": 0.5}),
    "dinov2, centred": ("dinov2", {"centering": "center", "center_momentum": 1.0, "patch_prototypes": None}),
    "dinov2, nested heads": ("dinov2", {"nested": [0.25, 1.0], "mask_shape": "inverse_block"}),
    "ibot, patches by a head of their own": ("ibot", {"patch_prototypes": 12, "mask_shape": "random"}),
    "ijepa, patches only": ("ijepa", {}, PATCHES_ONLY),
    "ijepa, registers": ("ijepa", {}, f"{runs.VIT},reg_tokens=2"),
    "lejepa, a ResNet": ("lejepa", {}, runs.RESNET),
    "moco, version 1": ("moco", {"projector": [8], "queue": 16384}),
    "moco_v3, a transformer": ("moco_v3", {"projector": [16, 16, 8], "predictor_last_norm": True}, runs.VIT),
    "mmcr, few dimensions of each image": ("mmcr", {"spread_weight": 0.5}),
    "msn, unequal shares": ("msn", {"power_law": 0.25}),
    "npid, NCE": ("npid", {"contrast": "nce", "momentum": 0.98, "negatives": 32}),
    "pirl, NCE": ("pirl", {"contrast": "nce", "projector": [8]}),
    "supervised, smoothed labels": ("supervised", {"label_smoothing": 0.1}),
    "swav, hard codes": ("swav", {"queue": 0, "queue_start": 0, "hard_updates": 5, "frozen_updates": 3}),
    "swav, two sets of prototypes": ("swav", {"prototypes": [12, 7], "momentum": 0.9}),
}
"""Forms of methods that their small settings in `helpers.runs` leave out: method, settings, and a backbone."""


def make_form(name, **changes):
    """Return a method, or one of `VARIANTS`, and a batch."""
    method, own, *backbone = VARIANTS.get(name, (name, {}))
    small = (*runs.METHODS[method][:2], *backbone) if backbone else None
    return make(method, small=small, **{**own, **of_targets(method), **changes})


@pytest.fixture(params=sorted(runs.METHODS))
def method(request):
    return request.param


@pytest.fixture(params=[*sorted(runs.METHODS), *VARIANTS])
def form(request):
    return request.param


def test_every_method_is_complete_with_one_file_and_one_recipe(method):
    """A recipe in small is what a new method is tried with by all tests, so it has to work for those there are."""
    assert issubclass(find_method(method), Method) and len(runs.METHODS) >= 12
    made, batch = make(method, small=runs.recipe_in_small(method))
    loss = one_update(made.train(), optimizer_of(made), batch, Step(0, 40, 20))
    assert torch.isfinite(loss.value)


def test_a_module_that_defines_no_method_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_mine").mkdir()
    (tmp_path / "of_mine" / "empty.py").write_text("")
    (tmp_path / "of_mine" / "half.py").write_text(
        "from sslbench.train import method\nclass Method(method.Method): ...\n"
    )
    with pytest.raises(UsageError, match=r"empty\.py defines no pretraining method"):
        find_method("of_mine.empty")
    with pytest.raises(UsageError, match=r"half\.py: the class Method has no config_type"):
        find_method("of_mine.half")


RISES_FIRST = ("densecl", "dino", "dinov2, centred", "dinov2, nested heads", "ibot", "moco")
"""Methods whose targets of the first updates are too easy: of a queue without content, of a copy of the network."""


def test_the_loss_falls_on_a_fixed_batch(form):
    torch.manual_seed(0)
    made, batch = make_form(form)
    made.train()
    optimizer, (first, updates) = optimizer_of(made), (5, 20) if form in RISES_FIRST else (0, 10)
    values = [float(one_update(made, optimizer, batch, Step(i, 40, 20)).value.detach()) for i in range(updates)]
    assert sum(values[-5:]) < sum(values[first : first + 5]), values
    assert all(value == value for value in values)


def offenders(check):
    """Return the methods that fail a check, with the reason."""
    found = []
    for method in runs.METHODS:
        try:
            check(method)
        except Exception as error:  # noqa: BLE001  told with the method
            found.append(f"{method}: {error!r}")
    return found


def test_the_augmentation_that_a_refusal_proposes_exists():
    proposed = {name: find_method(name).needs.augment for name in runs.METHODS if find_method(name).needs}
    assert {name: each for name, each in proposed.items() if each not in list_names("augment")} == {}


def test_an_update_uses_every_trained_parameter_and_no_other_and_of_a_deep_copy_changes_the_copy_alone():
    def check(method):
        made, batch = make(method)
        names = {name for name, _ in made.named_parameters() if name.startswith("backbone.")}
        assert names == {f"backbone.{name}" for name, _ in made.backbone.named_parameters()}
        before, copied = copy.deepcopy(made.state_dict()), copy.deepcopy(made).train()
        optimizer, step = optimizer_of(copied), Step(0, 40, 20)
        loss = copied(batch, step)
        loss.value.backward()
        assert [name for name, p in copied.named_parameters() if p.requires_grad == (p.grad is None)] == []
        assert loss.value.dim() == 0 and loss.embeddings.dim() == 2
        assert len(loss.embeddings) % len(batch.indices) == 0 and not loss.embeddings.requires_grad
        assert not any(part.requires_grad or part.dim() for part in loss.parts.values())
        copied.before_update(step)
        optimizer.step()
        copied.after_update(step)
        assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())

    assert offenders(check) == []


class Constants(TorchFunctionMode):
    """Results of operations without gradient, such as targets: recorded once, then repeated whatever the parameters."""

    def __init__(self):
        super().__init__()
        self.kept, self.position = [], None

    def __torch_function__(self, func, types, args=(), kwargs=None):
        stopped = not torch.is_grad_enabled() or func in (torch.Tensor.detach, torch.Tensor.data.__get__)
        found = func(*args, **(kwargs or {}))
        if not stopped or not isinstance(found, torch.Tensor) or any(found is argument for argument in args):
            return found
        if self.position is None:
            with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
                self.kept.append(found.clone())
            return found
        self.position += 1
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            return self.kept[self.position - 1].clone()


STOPPED = {"capi", "msn", "simsiam", "swav", "tico", "vqkd"}
"""Methods whose targets follow from trained parameters, but get no gradient; their slope is that with fixed targets."""


def test_the_gradient_is_the_slope_of_the_loss(method):
    """Central differences in float64, with the same draws; towards late layers, before fewer kinks of ReLU.

    Nothing that changes the loss may be detached; but see STOPPED.
    """
    torch.manual_seed(0)
    made, batch = make(method)
    made.double().train()
    batch = dataclasses.replace(batch, views=tuple(view.double() for view in batch.views))
    start = copy.deepcopy((made.state_dict(), made.local_state()))
    late = ("backbone.layer4", "backbone.blocks.1.")
    parameters = {
        name: parameter
        for name, parameter in made.named_parameters()
        if parameter.requires_grad and (name.startswith(late) or not name.startswith("backbone."))
    }
    directions = [torch.randn_like(p) * p.detach().abs().mean().clamp(min=1e-3) for p in parameters.values()]
    constants = Constants()

    def loss():
        torch.manual_seed(1)
        with constants:
            return made(batch, Step(30, 40, 20)).value

    gradients = torch.autograd.grad(loss(), list(parameters.values()))
    expected = float(sum((g * d).sum() for g, d in zip(gradients, directions, strict=True)))

    def slope(width, fixed):
        ends = []
        for sign in (1, -1):
            made.after_update(Step(30, 40, 20))  # drops sums over the passes of an update
            made.load_state_dict(start[0])
            made.load_local_state(copy.deepcopy(start[1]))
            with torch.no_grad():
                for parameter, direction in zip(parameters.values(), directions, strict=True):
                    parameter.add_(direction, alpha=sign * width)
            constants.position = 0 if fixed else None
            ends.append(float(loss().detach()))
            assert not fixed or constants.position == number
        return (ends[0] - ends[1]) / (2 * width)

    number, fixed = len(constants.kept), method in STOPPED
    slopes = []
    for width in (1e-6, 1e-5, 1e-7, 1e-4):  # kinks spoil the wide ones, rounding the narrow ones
        slopes.append(slope(width, fixed))
        if abs(slopes[-1] - expected) < 1e-3 * abs(expected):
            return
    raise AssertionError((slopes, expected))


def test_bfloat16_changes_the_loss_by_rounding_only(form):
    """Losses are computed in float32 of outputs with 8 bits; gradients follow from both."""
    values = []
    for enabled in (False, True):
        torch.manual_seed(0)
        made, batch = make_form(form)
        torch.manual_seed(1)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = made.train()(batch, Step(0, 40, 20))
        assert loss.value.dtype == torch.float32 and torch.isfinite(loss.value)
        values.append(float(loss.value.detach()))
    loss.value.backward()
    assert abs(values[1] - values[0]) < 0.05 * max(abs(values[0]), 1), values


def state_of(made):
    """Return a training state around a method, in its product's form."""
    settings = runs.settings("simclr", optimizer={"name": "sgd", "lr": 0.02}).optimizer
    return new_state(made, torch.device("cpu"), settings, seed=0)


def not_restored(make_one, batch, folder):
    """Return the values of a method that its checkpoint after an epoch of two updates does not bring back.

    Then both go on by an update, with random numbers from the checkpoint.
    """
    state = state_of(make_one().train())
    first = state.method.first_pass
    for step in (Step(i, 4, 2) for i in range(-2 if first else 0, 2)):
        if step.index < 0:
            with torch.no_grad():
                state.method(batch, step)
            state.method.after_update(step)
        else:
            one_update(state.method, state.optimizer, batch, step)
    path = checkpoints.write(folder, 2, to_checkpoint(state), keep=1)
    again = state_of(make_one().train())
    again.method.train()
    torch.manual_seed(9), np.random.seed(9), random.seed(9)
    content = checkpoints.read(path)
    from_checkpoint(again, content)
    found = differences(state.method, again.method, "method")
    found += differences(state.optimizer.state_dict(), again.optimizer.state_dict(), "optimizer")
    losses = []
    for each in (again, state):
        restore_random_states(content["processes"][0]["random"])
        losses.append(one_update(each.method, each.optimizer, batch, Step(2, 4, 2)).value.item())
    return found + ([] if losses[0] == losses[1] else [f"the next loss: {losses[0]} after {losses[1]}"])


def test_a_checkpoint_holds_everything_that_updates_change(form, tmp_path):
    """Tensors, random states, counters and lists, through all attributes; the next loss is the same bit for bit."""
    _, batch = make_form(form)
    assert not_restored(lambda: make_form(form)[0], batch, tmp_path) == []


class _Forgetful:
    """State that a checkpoint of a method does not hold."""

    def __init__(self):
        self.values, self.number, self.draws = [], 0, torch.Generator().manual_seed(0)


@pytest.mark.parametrize("kind", ["buffer", "tensor", "list", "number", "generator"])
def test_state_that_is_not_saved_is_found(kind, tmp_path):
    _, batch = make("simclr")

    def forgetful():
        made, _ = make("simclr")
        made.own = _Forgetful()
        made.register_buffer("extra", torch.zeros(2), persistent=False)
        made.tensor = torch.zeros(2)
        changes = {
            "buffer": lambda: made.extra.add_(1),
            "tensor": lambda: made.tensor.add_(1),
            "list": lambda: made.own.values.append(1),
            "number": lambda: setattr(made.own, "number", made.own.number + 1),
            "generator": lambda: torch.rand(1, generator=made.own.draws),
        }
        made.after_update = lambda step: changes[kind]()
        return made

    names = {"buffer": "_buffers.extra", "tensor": "tensor", "list": "own.values", "number": "own.number"}
    (found,) = not_restored(forgetful, batch, tmp_path)
    assert found.startswith(f"method.{names.get(kind, 'own.draws')}")


def test_what_is_exported_fits_the_backbone_strictly():
    def check(method):
        made, _ = make(method)
        for name, network in made.exports().items():
            fresh = build(runs.METHODS[method][2], seed=1).module
            fresh.load_state_dict(network.state_dict())
            assert name in ("student", "teacher")

    assert offenders(check) == []


def test_heads_are_sequences_that_take_the_output_of_the_exported_backbone():
    """What `pretrain` writes beside the backbone: built again from kinds and tensors, it is the same network."""

    def check(method):
        made, batch = make(method)
        made.eval()
        for exported, network in made.exports().items():
            with torch.no_grad():
                x = network(batch.views[0]) if made.space == "RGB" else None
                for name, head in made.heads(exported).items():
                    tensors = heads.head_tensors(name, head, head.state_dict())
                    own = {key.removeprefix(f"{name}."): tensor for key, tensor in tensors.items()}
                    again = heads.build_head(heads.layer_kinds(head), own, name)
                    assert torch.equal(again(x), head(x))
                    x = head(x)
        assert not {"head", "projector"} & dict(made.named_children()).keys() or made.heads("student")

    assert offenders(check) == []


def test_an_update_on_a_gpu_reads_no_value_and_mixes_no_devices():
    """Tensors without numbers on a GPU that need not be there: what waits for a value or finds one on the CPU fails.

    Not with masks or a memory, which are drawn on the CPU, with values that a network without numbers does not have.
    """

    def moved(value):
        if isinstance(value, tuple):
            return tuple(moved(each) for each in value)
        return torch.empty_like(value, device="cuda") if isinstance(value, torch.Tensor) else value

    def check(method):
        if vars(find_module("method", method)).keys() & {
            "inverse_block_masks",
            "random_numbers",
            "masked_rows",
            "MemoryBank",
        }:
            return
        made, batch = make(method)
        made.train()
        with FakeTensorMode(allow_non_fake_inputs=True):
            made._apply(moved)
            there = {f.name: moved(getattr(batch, f.name)) for f in dataclasses.fields(batch) if f.name != "indices"}
            for i in range(2):
                step = Step(i, 40, 20)
                loss = made(dataclasses.replace(batch, **there), step)
                made.before_update(step)
                made.after_update(step)
            assert loss.value.device.type == "cuda" and loss.value.shape == ()
        checked.append(method)

    checked = []
    assert offenders(check) == [] and len(checked) > len(runs.METHODS) / 2
