import dataclasses

import numpy as np
import pytest
import torch
from helpers.training_samples import batch_of, gradient, network, random_rows, setup_for, step_of, unit

from sslbench.errors import UsageError
from sslbench.methods import byol

CONFIG = byol.Config(projector=(32, 16), predictor=(24,))


def oracle(prediction, target):
    """Equation 2, row by row."""
    total = 0.0
    for p, z in zip(prediction, target, strict=True):
        p, z = p / np.sqrt(sum(v * v for v in p)), z / np.sqrt(sum(v * v for v in z))
        total += sum((a - b) ** 2 for a, b in zip(p, z, strict=True))
    return total / len(prediction)


def test_the_loss_is_the_squared_distance_of_unit_vectors():
    p, z = random_rows(6, 5, seed=1), random_rows(6, 5, seed=2)
    value, slope = gradient(lambda x: byol.regression_loss(x, torch.from_numpy(z)), p)
    assert value == pytest.approx(oracle(p, z), rel=1e-12)
    shift = np.zeros_like(p)
    shift[2, 3] = 1e-6
    assert slope[2, 3] == pytest.approx((oracle(p + shift, z) - oracle(p - shift, z)) / 2e-6, rel=1e-5)


def test_no_gradient_reaches_the_target():
    z = torch.randn(4, 5, requires_grad=True)
    byol.regression_loss(torch.randn(4, 5, requires_grad=True), z).backward()
    assert z.grad is None


def test_each_view_predicts_the_target_of_the_other_one():
    backbone = network()
    setup = setup_for(backbone)
    method, batch = byol.Method(backbone, CONFIG, setup), batch_of(setup)
    with torch.no_grad():  # the target is another network than the online one
        for p in method.target_projector.parameters():
            p.add_(0.1 * torch.randn_like(p))
    with torch.no_grad():
        p = [method.predictor(method.projector(method.backbone(view))) for view in batch.views]
        z = [method.target_projector(method.target_backbone(view)) for view in batch.views]
        wanted = oracle(p[0].double().numpy(), z[1].double().numpy()) + oracle(
            p[1].double().numpy(), z[0].double().numpy()
        )
        assert method(batch, step_of(0, setup)).value.item() == pytest.approx(wanted, rel=1e-5)


def test_the_target_stands_still_at_the_end_of_training():
    backbone = network()
    setup = setup_for(backbone, steps=1000)
    method = byol.Method(backbone, CONFIG, setup)
    with torch.no_grad():
        for p in method.projector.parameters():
            p.add_(1.0)
    weight = method.target_projector[0].weight
    before = weight.clone()
    method.after_update(step_of(500, setup))  # halfway along the cosine: 0.998
    torch.testing.assert_close(weight - before, torch.full_like(weight, 0.002), rtol=1e-2, atol=1e-6)
    before = weight.clone()
    method.after_update(step_of(999, setup))
    torch.testing.assert_close(weight, before, rtol=0, atol=1e-7)


def test_with_a_queue_the_targets_are_the_nearest_earlier_ones():
    """NNBYOL: the queue holds the unit embeddings of the first view by the target network."""
    backbone = network()
    setup = setup_for(backbone)
    method = byol.Method(backbone, dataclasses.replace(CONFIG, queue=16), setup)
    start, batch = method.queue.clone(), batch_of(setup)
    with torch.no_grad():
        p = [method.predictor(method.projector(method.backbone(view))).double().numpy() for view in batch.views]
        z = [method.target_projector(method.target_backbone(view)).double().numpy() for view in batch.views]
    z, queue = unit(np.stack(z)), start.double().numpy()
    near = [np.stack([max(queue, key=lambda row, at=at: row @ at) for at in each]) for each in z]
    value = method(batch, step_of(0, setup)).value
    assert value.item() == pytest.approx(oracle(p[0], near[1]) + oracle(p[1], near[0]), rel=1e-5)
    method.after_update(step_of(0, setup))
    np.testing.assert_allclose(method.queue[:8].numpy(), z[0], atol=1e-6)
    assert torch.equal(method.queue[8:], start[8:])


def test_a_queue_that_whole_updates_do_not_fill_is_refused():
    with pytest.raises(UsageError, match="byol: queue=12 is no multiple of images_per_update=8"):
        byol.Method(network(), dataclasses.replace(CONFIG, queue=12), setup_for(network()))
