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

from sslbench.backbones.build import build
from sslbench.errors import UsageError
from sslbench.runtime.seeds import restore_random_states
from sslbench.train import checkpoints
from sslbench.train.method import Method, Step, find_method
from sslbench.train.optimizers import make_optimizer, parameter_groups
from sslbench.train.state import from_checkpoint, new_state, to_checkpoint
from sslbench.weights import heads

# DINO's centre moves at once and raises its loss, as does TiCo's covariance, which grows from zero: for the loss to
# fall, what is predicted has to stand still.
STILL = {
    "data2vec2": {"momentum": 1.0, "final_momentum": 1.0},
    "dino": {"momentum": 1.0, "center_momentum": 1.0},
    "dinov2": {"momentum": 1.0},
    "ibot": {"momentum": 1.0, "center_momentum": 1.0},
    "ijepa": {"momentum": 1.0},
    "msn": {"momentum": 1.0, "final_momentum": 1.0},
    "tico": {"beta": 0.0},
}


def optimizer_of(made, lr=0.02):
    settings = runs.settings("simclr", optimizer={"name": "sgd", "lr": lr}).optimizer
    return make_optimizer(parameter_groups(made, settings), settings)


@pytest.fixture(params=sorted(runs.METHODS))
def method(request):
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


def test_the_loss_falls_on_a_fixed_batch(method):
    torch.manual_seed(0)
    made, batch = make(method, **STILL.get(method, {}))
    made.train()
    optimizer = optimizer_of(made)
    values = [float(one_update(made, optimizer, batch, Step(i, 40, 20)).value.detach()) for i in range(20)]
    assert sum(values[-5:]) < sum(values[:5]), values
    assert all(value == value for value in values)


def test_every_trained_parameter_takes_part_and_momentum_copies_get_no_gradient(method):
    made, batch = make(method)
    loss = made(batch, Step(0, 40, 20))
    loss.value.backward()
    unused = [name for name, p in made.named_parameters() if p.requires_grad and p.grad is None]
    assert unused == []
    assert [name for name, p in made.named_parameters() if not p.requires_grad and p.grad is not None] == []
    assert loss.value.dim() == 0 and loss.embeddings.dim() == 2
    assert not loss.embeddings.requires_grad and not any(part.requires_grad for part in loss.parts.values())


STOPPED = ("msn", "simsiam", "swav", "tico")
"""Methods whose targets follow from trained parameters, but get no gradient; tests of their own have the gradient."""


@pytest.mark.parametrize("method", sorted(set(runs.METHODS) - set(STOPPED)))
def test_the_gradient_is_the_slope_of_the_loss(method):
    """Central differences in float64, with the same draws; towards late layers, before fewer kinks of ReLU."""
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

    def loss():
        torch.manual_seed(1)
        return made(batch, Step(30, 40, 20)).value

    gradients = torch.autograd.grad(loss(), list(parameters.values()))
    expected = float(sum((g * d).sum() for g, d in zip(gradients, directions, strict=True)))

    def slope(width):
        ends = []
        for sign in (1, -1):
            made.load_state_dict(start[0])
            made.load_local_state(copy.deepcopy(start[1]))
            with torch.no_grad():
                for parameter, direction in zip(parameters.values(), directions, strict=True):
                    parameter.add_(direction, alpha=sign * width)
                ends.append(float(loss()))
        return (ends[0] - ends[1]) / (2 * width)

    slopes = [slope(width) for width in (1e-4, 1e-5, 1e-6, 1e-7)]  # kinks spoil the wide ones, rounding the narrow ones
    assert min(abs(found - expected) for found in slopes) < 1e-3 * abs(expected), (slopes, expected)


def test_bfloat16_changes_the_loss_by_rounding_only(method):
    """Losses are computed in float32 of outputs with 8 bits."""
    values = []
    for enabled in (False, True):
        torch.manual_seed(0)
        made, batch = make(method)
        torch.manual_seed(1)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = made.train()(batch, Step(0, 40, 20))
        assert loss.value.dtype == torch.float32
        values.append(float(loss.value.detach()))
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


def test_a_checkpoint_holds_everything_that_updates_change(method, tmp_path):
    """Tensors, random states, counters and lists, through all attributes; the next loss is the same bit for bit."""
    _, batch = make(method)
    assert not_restored(lambda: make(method)[0], batch, tmp_path) == []


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


def test_what_is_exported_fits_the_backbone_strictly(method):
    made, _ = make(method)
    for name, network in made.exports().items():
        fresh = build(runs.METHODS[method][2], seed=1).module
        fresh.load_state_dict(network.state_dict())
        assert name in ("student", "teacher")


def test_heads_are_sequences_that_take_the_output_of_the_exported_backbone(method):
    """What `pretrain` writes beside the backbone: built again from kinds and tensors, it is the same network."""
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
    assert method in ("colorization", "data2vec2", "ijepa", "jigsaw", "mae", "my_method", "simmim") or made.heads(
        "student"
    )


# Masks and memories are drawn on the CPU, with values that a network without numbers does not have.
DRAWN = {"data2vec2", "dinov2", "ibot", "ijepa", "npid", "pirl", "simmim"}


@pytest.mark.parametrize("method", sorted(runs.METHODS.keys() - DRAWN))
def test_an_update_on_a_gpu_reads_no_value_and_mixes_no_devices(method):
    """Tensors without numbers on a GPU that need not be there: what waits for a value or finds one on the CPU fails."""
    made, batch = make(method)
    made.train()

    def moved(value):
        if isinstance(value, tuple):
            return tuple(moved(each) for each in value)
        return torch.empty_like(value, device="cuda") if isinstance(value, torch.Tensor) else value

    with FakeTensorMode(allow_non_fake_inputs=True):
        made._apply(moved)
        there = {f.name: moved(getattr(batch, f.name)) for f in dataclasses.fields(batch) if f.name != "indices"}
        for i in range(2):
            step = Step(i, 40, 20)
            loss = made(dataclasses.replace(batch, **there), step)
            made.before_update(step)
            made.after_update(step)
        assert loss.value.device.type == "cuda" and loss.value.shape == ()


def test_half_precision_runs_and_stays_finite(method):
    made, batch = make(method)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = made(batch, Step(0, 40, 20))
    loss.value.backward()
    assert torch.isfinite(loss.value) and loss.value.dtype in (torch.float32, torch.float64)
