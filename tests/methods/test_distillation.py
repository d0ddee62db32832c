import dataclasses

import numpy as np
import pytest
import torch
from helpers.training_samples import batch_of, gradient, network, random_rows, setup_for, step_of, train
from torch.nn import functional

from sslbench.backbones.classifier import ClassifierInfo, classifier_metadata
from sslbench.errors import UsageError
from sslbench.methods import distillation
from sslbench.preprocessing import Preprocessing
from sslbench.weights.heads import METADATA, head_tensors
from sslbench.weights.save import save

NET = "resnet18w0.125"
NAMES = ("ant", "bee", "cat")


@pytest.fixture
def teacher(tmp_path):
    """Write a network with a classifier of three classes."""
    net, head = network(seed=3), torch.nn.Linear(64, 3)
    info = ClassifierInfo("output", "none", "single", NAMES)
    tensors = head_tensors("head", head, head.state_dict())
    metadata = {METADATA: {"head": "linear"}, "classifier": classifier_metadata(info)}
    save(tmp_path / "t.torch", net.state_dict(), backbone=NET, metadata=metadata, heads=tensors)
    return tmp_path / "t.torch", net.eval(), head


def slow(student, teacher, loss, t):
    def softmax(row):
        return np.exp(row / t) / np.exp(row / t).sum()

    terms = []
    for s, z in zip(student, teacher, strict=True):
        p, q = softmax(z), softmax(s)
        divergence = (p * np.log(p / q)).sum() * t**2
        entropy = -(p * np.log(q)).sum() * t**2
        terms.append({"kl_divergence": divergence, "cross_entropy": entropy, "mse": ((s - z) ** 2).mean()}[loss])
    return np.mean(terms)


@pytest.mark.parametrize("loss", ["kl_divergence", "cross_entropy", "mse"])
def test_loss_and_gradient_equal_the_formula(loss):
    rows, targets = random_rows(4, 5), random_rows(4, 5, seed=1)
    given = torch.from_numpy(targets), loss, 3.0
    value, slope = gradient(lambda x: distillation.soft_target_loss(x, *given), rows)
    assert value == pytest.approx(slow(rows, targets, loss, 3.0), rel=1e-12)
    for at in [(0, 0), (2, 3)]:
        step = np.zeros_like(rows)
        step[at] = 1e-6
        numeric = (slow(rows + step, targets, loss, 3.0) - slow(rows - step, targets, loss, 3.0)) / 2e-6
        assert slope[at] == pytest.approx(numeric, rel=1e-6)


def test_features_are_those_of_the_teacher_in_its_own_normalisation(teacher):
    path, net, _ = teacher
    setup = setup_for(network(), sizes=(32,), normalisation=Preprocessing(mean=(0.2,) * 3, std=(0.5,) * 3))
    method = distillation.Method(network(), distillation.Config(teacher=str(path)), setup).train()
    images = torch.rand(8, 3, 32, 32)
    batch = dataclasses.replace(batch_of(setup), views=((images - 0.2) / 0.5,))
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (Preprocessing().mean, Preprocessing().std))
    with torch.no_grad():
        wanted = net((images - mean) / std)
    torch.testing.assert_close(method._target(batch.views[0]), wanted, rtol=1e-4, atol=1e-5)
    found = method(batch, step_of(0, setup)).value
    own = network().train()(batch.views[0])
    assert found.item() == pytest.approx(functional.mse_loss(own, wanted).item(), rel=1e-4)


def test_logits_and_labels_have_their_weights(teacher):
    path, net, head = teacher
    setup = setup_for(network(), sizes=(32,), class_names=NAMES)
    config = distillation.Config(teacher=str(path), target="logits", temperature=4.0, soft_weight=0.3)
    method = distillation.Method(network(), config, setup).eval()
    batch = batch_of(setup)
    with torch.no_grad():
        found = method(batch, step_of(0, setup))
        own = method.head(method.backbone(batch.views[0]))
        soft = slow(own.double().numpy(), head(net(batch.views[0])).double().numpy(), "kl_divergence", 4.0)
        hard = functional.cross_entropy(own, batch.labels).item()
    assert found.value.item() == pytest.approx(0.3 * soft + 0.7 * hard, rel=1e-4)


def test_features_of_another_length_get_a_linear_layer(teacher):
    student = network("resnet18w0.25")
    setup = setup_for(student, sizes=(32,))
    method = distillation.Method(student, distillation.Config(teacher=str(teacher[0])), setup)
    assert (method.head.in_features, method.head.out_features) == (128, 64)
    assert list(method.heads("student")) == ["head"]


def test_the_teacher_is_frozen_and_in_evaluation_mode(teacher):
    setup = setup_for(network(), sizes=(32,))
    method = distillation.Method(network(), distillation.Config(teacher=str(teacher[0])), setup).train()
    assert not method.teacher.training
    assert method.backbone.training
    assert not any(parameter.requires_grad for parameter in method.teacher.parameters())


@pytest.mark.parametrize(
    ("settings", "changes", "message"),
    [
        ({"soft_weight": 0.5}, {}, "target=features has no labels"),
        ({"target": "logits", "soft_weight": 0.5}, {"classes": 0}, "the data have none"),
        (
            {"target": "logits", "soft_weight": 0.5},
            {"class_names": ("a", "b", "c")},
            "has 3 classes, not the 3 of the data",
        ),
        ({"teacher": "random", "teacher_backbone": NET, "target": "logits"}, {}, "a random teacher has no classifier"),
    ],
)
def test_what_does_not_go_together_is_refused(teacher, settings, changes, message):
    setup = setup_for(network(), sizes=(32,), **changes)
    with pytest.raises(UsageError, match=message):
        distillation.Method(network(), distillation.Config(**{"teacher": str(teacher[0]), **settings}), setup)


@pytest.mark.parametrize("soft_weight", [1.0, 0.5])
def test_logits_are_learnt(teacher, soft_weight):
    setup = setup_for(network(), sizes=(32,), class_names=NAMES)
    config = distillation.Config(teacher=str(teacher[0]), target="logits", soft_weight=soft_weight)
    losses = train(distillation.Method(network(), config, setup).train(), batch_of(setup), setup, 20, lr=0.01)
    assert np.mean(losses[10:]) < np.mean(losses[:10])
