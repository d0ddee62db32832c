"""Accumulated passes: what is logged is of all of them."""

import types

import pytest
import torch

from sslbench.train import loop
from sslbench.train.method import Loss


def test_parts_and_embeddings_of_all_passes_are_logged(monkeypatch):
    weight = torch.nn.Parameter(torch.ones(()))
    passes = iter([1.0, 3.0])

    def forward(*_):
        number = next(passes)
        return Loss(weight * number, torch.full((2, 3), number), parts={"term": torch.tensor(number)})

    monkeypatch.setattr(loop, "_split", lambda raw, count: [raw] * count)
    monkeypatch.setattr(loop, "_to_device", lambda part, *_: part)
    monkeypatch.setattr(loop, "_forward", forward)
    state = types.SimpleNamespace(
        optimizer=torch.optim.SGD([weight], 0.1),
        device=torch.device("cpu"),
        model=torch.nn.Identity(),
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        online_head=None,
    )
    loss, mean = loop._forward_backward(state, types.SimpleNamespace(accumulate=2), None, None)
    assert float(mean) == float(loss.parts["term"]) == pytest.approx(2.0)
    assert loss.embeddings[:, 0].tolist() == [1, 1, 3, 3]
    assert float(weight.grad) == 2.0
