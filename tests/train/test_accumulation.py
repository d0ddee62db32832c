"""Accumulated passes: what is logged is of all of them."""

import pytest
import torch

from sslbench.train import loop
from sslbench.train.loop import RateSchedules, TrainingPlan
from sslbench.train.method import Learner, Loss
from sslbench.train.state import State


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
