"""The linear head trained beside pretraining: its gradient, its statistics, and what it leaves alone."""

import copy

import numpy as np
import pytest
import torch
from helpers import two_processes
from torch import nn
from torch.nn import functional

from sslbench.train.online_head import PEAK_LR, OnlineClassifier, OnlineHead
from sslbench.train.schedules import cosine

IMAGES = 24


def network():
    """A network with statistics and random numbers of its own."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU())


def batches():
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        yield torch.randn(IMAGES, 3, 2, 2, generator=generator), torch.randint(0, 3, (IMAGES,), generator=generator)


def head_on(net, view=0):
    return OnlineHead(net, 8, ("a", "b", "c"), torch.device("cpu"), view)


def trained(net, rows=slice(None)):
    """The head after some updates on the given rows of each batch."""
    head = head_on(net)
    for number, (images, labels) in enumerate(batches()):
        head.add_gradient([images[rows]], labels[rows], 1.0)
        head.update(number / 4)
    return head


def test_it_is_softmax_regression_on_standardised_features():
    """A second implementation in float64: running moments, gradient of the cross entropy, Adam (Kingma and Ba)."""
    net = network()
    head = trained(net)
    net.eval()
    mean, variance = np.zeros(8), np.ones(8)
    theta = np.zeros((3, 9))
    first, second = np.zeros_like(theta), np.zeros_like(theta)
    for number, (images, labels) in enumerate(batches()):
        x = net(images).detach().double().numpy()
        new = 1.0 if number == 0 else 0.1
        mean, variance = mean + new * (x.mean(0) - mean), variance + new * (x.var(0) - variance)
        z = np.hstack([(x - mean) / np.sqrt(variance + 1e-6), np.ones((IMAGES, 1))])
        scores = z @ theta.T
        p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        gradient = (p - np.eye(3)[labels.numpy()]).T @ z / IMAGES
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        t = number + 1
        step = first / (1 - 0.9**t) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
        theta = theta - cosine(PEAK_LR / 8**0.5, 0.0)(number / 4) * step
    linear = head.classifier
    assert np.allclose(linear.weight.detach(), theta[:, :8], atol=1e-5)
    assert np.allclose(linear.bias.detach(), theta[:, 8], atol=1e-5)
    assert np.abs(theta).max() > 0.05


def test_the_network_and_the_random_numbers_are_left_alone():
    net = network()
    net[2].eval()  # a module with a mode of its own
    modes = [module.training for module in net.modules()]
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    state = torch.get_rng_state()
    trained(net)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert [module.training for module in net.modules()] == modes
    assert all(p.grad is None for p in net.parameters())


def test_a_head_that_is_restored_continues_bit_for_bit():
    net, whole = network(), head_on(network())
    pairs = list(batches())
    for number, (images, labels) in enumerate(pairs):
        if number == 2:
            saved = copy.deepcopy(whole.state_dict())
        whole.add_gradient([images], labels, 1.0)
        whole.update(number / 4)
    again = head_on(net)
    again.load_state_dict(saved)
    for number in (2, 3):
        again.add_gradient([pairs[number][0]], pairs[number][1], 1.0)
        again.update(number / 4)
    assert all(
        torch.equal(tensor, again.classifier.state_dict()[name])
        for name, tensor in whole.classifier.state_dict().items()
    )


def share(rank):
    head = trained(network(), slice(rank, None, 2))
    return {name: tensor.numpy() for name, tensor in head.classifier.state_dict().items()}


def test_two_processes_train_the_head_of_one():
    alone = trained(network()).classifier.state_dict()
    for other in two_processes.run(share):
        for name, tensor in alone.items():
            assert np.allclose(tensor, other[name], atol=1e-4), name


def test_passes_add_up_to_one_update():
    images, labels = next(batches())
    heads = [head_on(network()) for _ in range(2)]
    for head in heads:
        head.classifier.track(head.network.eval()(images))
        head.classifier.track = lambda features: None  # the moments of a part are others
    heads[0].add_gradient([images], labels, 1.0)
    for part in (slice(0, 12), slice(12, 24)):
        heads[1].add_gradient([images[part]], labels[part], 0.5)
    one, two = ([p.grad for p in head.classifier.parameters()] for head in heads)
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(one, two, strict=True))


def test_constant_and_far_features_are_standardised():
    classifier = OnlineClassifier(3, 2)
    x = torch.tensor([[1000.0, 5.0, 0.0], [1001.0, 5.0, 2.0]])
    classifier.track(x)
    assert classifier.mean.tolist() == pytest.approx([1000.5, 5.0, 1.0])
    assert classifier.variance.tolist() == pytest.approx([0.25, 0.0, 1.0], abs=1e-6)
    scores = classifier(x)
    assert torch.isfinite(scores).all() and functional.softmax(scores, dim=1)[0, 0] == 0.5
