"""Updates of SimCLR on views in memory, by hand and by the training loop: for tests of speed."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from sslbench.backbones.build import build
from sslbench.data.loading.pretraining import RawBatch
from sslbench.preprocessing import Preprocessing
from sslbench.pretraining.networks import make_method
from sslbench.runtime.resources import Precision
from sslbench.train.loop import RateSchedules, TrainingPlan, train
from sslbench.train.method import Batch, Setup, Step
from sslbench.train.optimizers.optimizer import OptimizerSettings, make_optimizer
from sslbench.train.parameter_groups import parameter_groups
from sslbench.train.state import State
from sslbench.train.views import RunOnViews


@dataclasses.dataclass(frozen=True)
class Case:
    """ResNet of torchvision with its features, hidden width of the projector, side of the views, and the place."""

    name: str
    features: int
    hidden: int
    size: int
    batch: int
    place: str = "cpu"
    precision: Precision = "fp32"

    @property
    def device(self) -> torch.device:
        return torch.device(self.place)

    def network(self) -> nn.Module:
        torch.manual_seed(0)
        network = getattr(torchvision.models, self.name)()
        network.fc = nn.Identity()
        return network

    def batches(self, number: int) -> list[RawBatch]:
        """Pairs of views as the loader gives them, channels-last, in pinned memory for a GPU."""
        generator = torch.Generator().manual_seed(0)
        shape = (self.batch, 3, self.size, self.size)

        def view() -> Tensor:
            pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
            pixels = pixels.to(memory_format=torch.channels_last)
            return pixels.pin_memory() if self.device.type == "cuda" else pixels

        indices = torch.arange(self.batch)
        return [
            RawBatch((view(), view()), None, indices + i * self.batch, torch.zeros(self.batch).bool())
            for i in range(number)
        ]


def by_hand(case: Case, batches: Sequence[RawBatch], *, compiled: bool = False) -> Callable[[], None]:
    """SimCLR by hand: channels-last, autocast, fused SGD; the loss is looked at on a CPU, where that is free."""
    device, low = case.device, case.precision == "bf16"
    backbone = case.network().to(device, memory_format=torch.channels_last)
    head = nn.Sequential(nn.Linear(case.features, case.hidden), nn.ReLU(), nn.Linear(case.hidden, 128)).to(device)
    parameters = [*backbone.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)
    if compiled:
        backbone.compile()
    mean, std = (torch.tensor(v, device=device)[:, None, None] for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    itself = torch.eye(2 * case.batch, dtype=torch.bool, device=device)
    target = torch.arange(2 * case.batch, device=device).roll(case.batch)

    def go() -> None:
        for raw in batches:
            images = torch.cat([view.to(device, non_blocking=True) for view in raw.views])
            images = images.float().div_(255).sub_(mean).div_(std)
            with torch.autocast(device.type, torch.bfloat16, enabled=low):
                z = functional.normalize(head(backbone(images)).float(), dim=1)
                loss = functional.cross_entropy((z @ z.T / 0.1).masked_fill(itself, -torch.inf), target)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            assert device.type != "cpu" or torch.isfinite(loss)

    return go


def by_the_loop(case: Case, batches: Sequence[RawBatch], *, compiled: bool = False) -> Callable[[], None]:
    """The same by the training loop, from the same weights."""
    backbone = build(case.name).module
    backbone.load_state_dict(case.network().state_dict())
    backbone.requires_grad_(True).train()
    sizes, updates = (case.size, case.size), len(batches)
    setup = Setup(case.features, sizes, case.batch, case.batch, 1, 100_000, 0, updates, updates, case.name)
    method = make_method(backbone, {"name": "simclr", "projector": (case.hidden, 128)}, setup, seed=0)
    method = method.to(case.device, memory_format=torch.channels_last)
    if compiled:
        method.compile_networks()
    settings = OptimizerSettings(lr=0.01)
    optimizer = make_optimizer(parameter_groups(method, settings), settings)
    rates = RateSchedules(lambda where: 0.01, 0.01)
    plan = TrainingPlan(updates, updates, rates, Preprocessing(), precision=case.precision, log_every=100)

    def go() -> None:
        state = State(method, method, optimizer)
        run = RunOnViews(plan, (), Path())
        run.state = state
        train(state, plan, iter(batches), run, lambda: 0)

    return go


@dataclasses.dataclass(frozen=True)
class MethodCase:
    """Settings of a method, its network, sides of the views, images of a batch, and the place."""

    settings: dict
    network: str
    sides: tuple[int, ...]
    batch: int
    place: str = "cpu"
    precision: Precision = "fp32"

    def batches(self, number: int) -> list[RawBatch]:
        """Batches of views as the loader gives them."""
        views = tuple(
            view for side in self.sides for view in Case("", 0, 0, side, self.batch, self.place).batches(1)[0].views[:1]
        )
        indices, origins = torch.arange(self.batch), torch.zeros(self.batch).bool()
        return [RawBatch(views, None, indices + i * self.batch, origins) for i in range(number)]

    def made(self, updates: int) -> tuple[State, TrainingPlan]:
        """The method on its device with AdamW, and a plan."""
        backbone = build(self.network)
        backbone.module.requires_grad_(True).train()
        width, samples = backbone.module.num_features, 100 * self.batch
        setup = Setup(width, self.sides, self.batch, self.batch, 1, samples, 0, updates, updates, self.network)
        method = make_method(backbone.module, self.settings, setup, seed=0).to(self.place)
        settings = OptimizerSettings(name="adamw", lr=1e-4)
        optimizer = make_optimizer(parameter_groups(method, settings), settings)
        rates = RateSchedules(lambda where: 1e-4, 1e-4)
        plan = TrainingPlan(updates, updates, rates, Preprocessing(), precision=self.precision, log_every=100)
        return State(method, method, optimizer), plan

    def by_the_loop(self, batches: Sequence[RawBatch]) -> Callable[[], None]:
        """Updates by the training loop."""

        def go() -> None:
            state, run = dataclasses.replace(made[0]), RunOnViews(made[1], (), Path())
            run.state = state
            train(state, made[1], iter(batches), run, lambda: 0)

        made = self.made(len(batches))
        return go

    def by_hand(self, batches: Sequence[RawBatch]) -> Callable[[], None]:
        """Updates by the loss of the method in a bare loop with fused AdamW."""
        (state, plan), device = self.made(len(batches)), torch.device(self.place)
        optimizer = torch.optim.AdamW(state.method.parameters(), lr=1e-4, weight_decay=1e-4, fused=True)
        mean, std = (
            torch.tensor(v, device=device)[:, None, None] for v in (plan.normalisation.mean, plan.normalisation.std)
        )

        def go() -> None:
            for index, raw in enumerate(batches):
                views = [view.to(device, non_blocking=True).float().div_(255) for view in raw.views]
                views = tuple(view.sub_(mean).div_(std) for view in views)
                step = Step(index, len(batches), len(batches))
                with torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16"):
                    loss = state.method(Batch(views, None, raw.indices, raw.origins, None), step)
                optimizer.zero_grad(set_to_none=True)
                loss.value.backward()
                state.method.before_update(step)
                optimizer.step()
                state.method.after_update(step)

        return go
