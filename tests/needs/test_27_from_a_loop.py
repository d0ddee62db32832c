"""A module of the user's is scored in three lines of Python, in the middle of a training, and left as it was."""

import copy
import random

import numpy as np
import torch
from helpers.coloured_pictures import class_folders
from torch import nn

import sslbench


def test_three_lines_score_a_module_and_put_everything_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    class_folders(tmp_path, ("dark", "bright"), lambda c: rng.integers(0, 90, (20, 20, 3)) + 150 * c)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.Dropout(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.train()(torch.rand(4, 3, 20, 20)).square().mean().backward()
    before = copy.deepcopy(net.state_dict())
    grads = [parameter.grad.clone() for parameter in net.parameters()]
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()

    results = sslbench.evaluate(
        net, "train", "val", protocols=["knn", "linear"], preprocessing={"resize": [16, 16], "crop": None}
    )

    assert all(result.metrics["top1"].value == 100 for result in results)
    assert net.training and all(module.training for module in net.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert all(torch.equal(grad, own.grad) for grad, own in zip(grads, net.parameters(), strict=True))
    assert torch.equal(states[0], torch.get_rng_state()) and states[2] == random.getstate()
    assert np.array_equal(states[1], np.random.get_state()[1])
    optimizer.step()
    assert len(sslbench.make_leaderboard("results").columns) == 2
