"""What an update of finetuning costs beside a bare PyTorch step: `make bench`."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from sslbench.backbones.build import build
from sslbench.backbones.layers import resolve_layers
from sslbench.data.loading.batch import RawBatch
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import finetune
from sslbench.protocols.finetune.network import Targets, make_network
from sslbench.protocols.finetune.settings import candidates, optimizer_settings
from sslbench.train.loop import RateSchedules, TrainingPlan, train
from sslbench.train.method import Setup
from sslbench.train.state import new_state
from sslbench.train.views import RunOnViews

pytestmark = pytest.mark.speed

SIZE, BATCH, UPDATES, ROUNDS, CLASSES = 96, 32, 8, 5, 10


def raw_batches():
    generator = torch.Generator().manual_seed(0)
    for i in range(UPDATES):
        view = torch.randint(0, 256, (BATCH, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator)
        rows = torch.arange(BATCH) + i * BATCH
        yield RawBatch((view.to(memory_format=torch.channels_last),), rows % CLASSES, rows, torch.zeros(BATCH) > 0)


def bare_seconds():
    """The step as one would write it by hand: channels-last, fused SGD."""
    network = build("resnet18", seed=0).module.train().requires_grad_(True).to(memory_format=torch.channels_last)
    head = torch.nn.Linear(512, CLASSES)
    parameters = [*network.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4, fused=True)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    batches = list(raw_batches())
    began = time.process_time()
    for raw in batches:
        images = raw.views[0].float().div_(255).sub_(mean[:, None, None]).div_(std[:, None, None])
        loss = functional.cross_entropy(head(network(images)), raw.labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        assert torch.isfinite(loss)
    return time.process_time() - began


def own_seconds():
    backbone, settings = build("resnet18", seed=0), finetune.Settings()
    layer = resolve_layers(backbone, ())[0]
    setup = Setup(512, (SIZE,), BATCH, BATCH, 1, UPDATES * BATCH, CLASSES, UPDATES, UPDATES, "resnet18")
    labels = torch.arange(UPDATES * BATCH) % CLASSES
    targets = Targets("single", labels, torch.zeros(CLASSES), torch.ones(CLASSES), np.arange(CLASSES))
    network = make_network(backbone, layer, targets, settings, setup, probe=0, side=SIZE, seed=0)
    state = new_state(network, torch.device("cpu"), optimizer_settings(settings, candidates(settings)[0]), seed=0)
    plan = TrainingPlan(UPDATES, UPDATES, RateSchedules(lambda progress: 0.01, 0.01), Preprocessing(), log_every=10)
    batches = list(raw_batches())
    began = time.process_time()
    run = RunOnViews(plan, (), Path())
    run.state = state
    train(state, plan, iter(batches), run, lambda: 0)
    return time.process_time() - began


def test_an_update_against_a_bare_step():
    """A ResNet-18 on views that are in memory already: normalisation, forward, backward, update."""
    seconds = {"bare": [], "own": []}
    for _ in range(ROUNDS):
        seconds["bare"].append(bare_seconds())
        seconds["own"].append(own_seconds())
    best = {name: min(values) / UPDATES for name, values in seconds.items()}
    overhead = best["own"] / best["bare"] - 1
    print(
        f"\nfinetune step, ResNet-18, {BATCH} x {SIZE} px, {torch.get_num_threads()} threads: bare "
        f"{1000 * best['bare']:.0f} ms, loop {1000 * best['own']:.0f} ms: overhead {100 * overhead:+.1f} % (at most 5)"
    )
    assert overhead < 0.15, "the loop costs more than timing noise explains"
