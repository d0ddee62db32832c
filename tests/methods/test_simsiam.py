import math

import numpy as np
import pytest
import torch
from helpers.training_samples import batch_of, network, random_rows, setup_for, step_of

from sslbench.methods import simsiam

CONFIG = simsiam.Config(projector=(32, 32, 16), predictor=(8,))


def oracle(prediction, target):
    """Equation 1, row by row; a row of zeros has no direction and counts as 0."""
    total = 0.0
    for p, z in zip(prediction, target, strict=True):
        lengths = math.sqrt(sum(v * v for v in p)) * math.sqrt(sum(v * v for v in z))
        total += -sum(a * b for a, b in zip(p, z, strict=True)) / lengths if lengths else 0.0
    return total / len(prediction)


def test_the_loss_is_minus_the_mean_cosine():
    p, z = random_rows(6, 5, seed=1), random_rows(6, 5, seed=2)
    p[3] = 0
    value = simsiam.negative_cosine(torch.from_numpy(p), torch.from_numpy(z)).item()
    assert value == pytest.approx(oracle(p, z), rel=1e-12)


def test_the_loss_of_a_step_is_the_mean_of_both_directions_and_stops_at_the_targets():
    backbone = network()
    setup = setup_for(backbone)
    method, batch = simsiam.Method(backbone, CONFIG, setup), batch_of(setup)
    with torch.no_grad():
        z = [method.projector(method.backbone(view)) for view in batch.views]
        p = [method.predictor(x).double().numpy() for x in z]
        z = [x.double().numpy() for x in z]
    loss = method(batch, step_of(0, setup)).value
    assert loss.item() == pytest.approx((oracle(p[0], z[1]) + oracle(p[1], z[0])) / 2, rel=1e-5)
    for parameter in method.predictor.parameters():
        parameter.requires_grad_(False)
    with torch.no_grad():
        method.predictor[-1].weight.zero_()
    loss = method(batch, step_of(0, setup)).value
    loss.backward()
    # Without the predictor's way nothing is left but the targets, and those are constants.
    assert all(not p.grad.any() for p in method.backbone.parameters())


def test_with_four_views_each_predicts_the_mean_of_the_others():
    """FastSiam: the mean of the embeddings, not of their directions."""
    backbone = network()
    setup = setup_for(backbone, sizes=(32,) * 4)
    method, batch = simsiam.Method(backbone, CONFIG, setup), batch_of(setup)
    with torch.no_grad():
        z = [method.projector(method.backbone(view)) for view in batch.views]
        p = [method.predictor(x).double().numpy() for x in z]
        z = [x.double().numpy() for x in z]
    terms = [oracle(p[i], sum(z[j] for j in range(4) if j != i) / 3) for i in range(4)]
    assert method(batch, step_of(0, setup)).value.item() == pytest.approx(np.mean(terms), rel=1e-5)


def test_the_predictor_can_be_told_from_the_rest_by_its_name():
    backbone = network()
    method = simsiam.Method(backbone, CONFIG, setup_for(backbone))
    names = [n for n, _ in method.named_parameters() if n.startswith("predictor.")]
    assert len(names) == 5
    assert np.unique([n.partition(".")[0] for n, _ in method.named_parameters()]).tolist() == [
        "backbone",
        "predictor",
        "projector",
    ]
