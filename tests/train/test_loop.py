"""The training loop: accumulated passes, clipping, memory layout, meters, settings of methods."""

import copy
import dataclasses
import time
import typing
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from helpers import two_processes
from torch import nn

from sslbench.config import build
from sslbench.data.loading.batch import RawBatch
from sslbench.distributed.parallel import clip_gradients, wrap
from sslbench.errors import UsageError
from sslbench.names import find_module
from sslbench.train import loop
from sslbench.train.loop import RateSchedules, TrainingPlan
from sslbench.train.meter import TrainingMeter
from sslbench.train.method import Learner, Loss, find_method
from sslbench.train.optimizers.optimizer import OptimizerSettings
from sslbench.train.state import State, new_state


def test_parts_and_embeddings_of_all_passes_are_logged():
    weight = torch.nn.Parameter(torch.ones(()))

    class Two(Learner):
        def __init__(self):
            super().__init__()
            self.weight = weight

        def loss(self, batch, step):
            return Loss(self.weight * batch, torch.full((2, 3), batch), parts={"term": torch.tensor(batch)})

    learner = Two()
    state = State(learner, learner, torch.optim.SGD([weight], 0.1))
    plan = TrainingPlan(1, 1, RateSchedules(lambda where: 0.1, 0.1), accumulate=2)
    loss, mean = loop._forward_backward(state, plan, iter([1.0, 3.0]), None)
    assert float(mean) == float(loss.parts["term"]) == pytest.approx(2.0)
    assert loss.embeddings[:, 0].tolist() == [1, 1, 3, 3]
    assert float(weight.grad) == 2.0


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 2), nn.Linear(2, 2))


def with_gradients(module):
    """Gradients of very different lengths, and one parameter without any."""
    for number, parameter in enumerate(list(module.parameters())[:-1]):
        parameter.grad = torch.full_like(parameter, 10.0 ** (number - 2))
    return module


@pytest.mark.parametrize("largest", [0.05, 3.0])
def test_each_tensor_by_itself(largest):
    module = with_gradients(network())
    before = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    norm = clip_gradients(module.parameters(), largest, each=True)
    for parameter, gradient in zip(module.parameters(), before, strict=True):
        if gradient is None:
            assert parameter.grad is None
            continue
        length = gradient.square().sum().sqrt()
        wanted = gradient * min(1.0, largest / (length + 1e-6))
        torch.testing.assert_close(parameter.grad, wanted)
    wanted = torch.cat([gradient.flatten() for gradient in before if gradient is not None]).norm()
    torch.testing.assert_close(norm, wanted)


def test_the_two_ways_differ():
    each, together = with_gradients(network()), with_gradients(network())
    clip_gradients(each.parameters(), 1.0, each=True)
    clip_gradients(together.parameters(), 1.0)
    assert each[0].weight.grad.norm() > 100 * together[0].weight.grad.norm()


def clip_sharded(rank):
    """The clipped gradients of a network whose parameters are sharded over two processes."""
    module = network()
    plain = copy.deepcopy(module)
    sharded = wrap(module, torch.device("cpu"), "fsdp")
    images = torch.arange(24.0).view(4, 6)
    results = []
    for model in (plain, sharded):
        model(images).square().sum().backward()
        norm = clip_gradients(model.parameters(), 2.0, each=True)
        gradients = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in model.parameters()]
        results.append([norm.numpy(), *(gradient.numpy() for gradient in gradients)])
    return results


def test_each_tensor_of_a_sharded_network():
    for plain, sharded in two_processes.run(clip_sharded):
        for ours, wanted in zip(sharded, plain, strict=True):
            torch.testing.assert_close(torch.from_numpy(ours), torch.from_numpy(wanted))


class Tiny(nn.Module):
    block_methods = ()

    def __init__(self, conv):
        super().__init__()
        self.first, self.conv = nn.Conv2d(3, 16, 3), conv


@pytest.mark.parametrize(
    ("conv", "last"),
    [
        (nn.Conv2d(8, 16, 1, stride=2), False),
        (nn.Conv2d(16, 16, 1, stride=2), True),
        (nn.Conv2d(8, 16, 1), True),
        (nn.Conv2d(8, 16, 3, stride=2), True),
    ],
)
def test_what_onednn_writes_past_its_memory_is_not_laid_out_by_pixels(conv, last):
    state = new_state(Tiny(conv), torch.device("cpu"), OptimizerSettings(lr=0.1, lr_scaling="none"), seed=0)
    assert state.method.first.weight.is_contiguous(memory_format=torch.channels_last) == last
    assert state.rows_of_channels != last


def test_in_one_process_nothing_is_sharded():
    rates = OptimizerSettings(lr=0.1, lr_scaling="none")
    conv = nn.Conv2d(16, 16, 1)
    state = new_state(Tiny(conv), torch.device("cpu"), rates, seed=0, strategy="fsdp")
    assert state.method.first.weight.is_contiguous(memory_format=torch.channels_last), "laid out and moved as always"


def counted(rank):
    """Counts in the record of an update: rank 0 saw 4 images of 'a', rank 1 three of 'b' and one of 'a'."""
    meter = TrainingMeter(torch.device("cpu"))
    origins = ("a", "b", "b", "b") if rank else ("a",) * 4
    replaced = torch.arange(4) < rank * 2 + 1
    raw = RawBatch((torch.zeros(4, 1),), torch.zeros(4), torch.arange(4), replaced, origins=origins)
    meter.wait_for(iter([raw]))
    meter.started, meter.waited = time.perf_counter() - 1e6, 1e5 * (rank + 1)  # a slow machine adds seconds
    loss = Loss(torch.zeros(()), torch.randn(4, 3, generator=torch.Generator().manual_seed(rank)))
    record = meter.line(1.0, 1, loss, 0.0, (0.1, None), None, {})
    assert not meter.origins and not meter.replaced
    return record.replaced, record.origins, round(record.waiting, 2)


def test_images_of_all_processes_are_counted():
    assert two_processes.run(counted) == [(4, {"a": 5, "b": 3}, 0.2)] * 2, "a fifth of the time on the second process"


METHODS = Path(find_module("method", "simclr").__file__).parent


def numbers(kind):
    """Whether a type is a number, or a list of numbers."""
    return kind in (int, float) or any(numbers(part) for part in typing.get_args(kind))


@pytest.mark.parametrize("name", sorted(path.stem for path in METHODS.glob("[a-z]*.py")))
def test_every_number_has_an_interval_beyond_which_it_is_refused(name):
    config = find_method(name).config_type
    hints, given = typing.get_type_hints(config), {}
    for field in dataclasses.fields(config):
        given |= {field.name: "w.torch"} if field.metadata["required"] else {}
    build(config, given, "the defaults")
    for field in dataclasses.fields(config):
        if not numbers(hints[field.name]):
            assert field.metadata["within"] == ""
            continue
        assert field.metadata["within"], f"{field.name} has no interval"
        for number in [-1, 2] if field.metadata["within"].endswith((" 1]", " 1)")) else [-1]:
            several = typing.get_origin(hints[field.name]) is tuple
            value = (number,) * max(len(field.default), 1) if several else number
            with pytest.raises(UsageError, match=f"method: {field.name} should be .*, not {number}"):
                build(config, {**given, field.name: value}, "method")


def test_ends_of_intervals_and_numbers_that_are_none():
    config = find_method("pirl").config_type
    for value in (0.0, 1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="patches_weight should be above 0 and below 1, not") as refused:
            build(config, {"patches_weight": value}, "method")
        assert "Default: 0.5." in refused.value.remedy
        with pytest.raises(UsageError, match="temperature should be above 0") if value != 1 else nullcontext():
            build(config, {"temperature": value}, "method")
    with pytest.raises(UsageError, match="momentum should be from 0 to below 1, not 1"):
        build(config, {"momentum": 1.0}, "method")
    assert build(config, {"momentum": 0.0}, "method").momentum == 0
    assert build(find_method("dcl").config_type, {"sigma": None}, "method").sigma is None
    with pytest.raises(UsageError, match="teacher is missing"):
        build(find_method("distillation").config_type, {}, "method")
