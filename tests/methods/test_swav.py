import dataclasses
import math

import numpy as np
import pytest
import torch
from helpers import two_processes
from helpers.training_samples import batch_of, network, random_rows, setup_for, step_of, train, unit
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from sslbench.errors import UsageError
from sslbench.methods import swav
from sslbench.methods._parts.losses import sinkhorn

SIZES = (32, 32, 16, 16)
SMALL = {"prototypes": (12,), "projector": (16, 8)}


def slow_sinkhorn(scores, epsilon, iterations, shares):
    """Eq. 3 to 5 with exponentials and loops."""
    q = np.exp((scores - scores.max()) / epsilon)
    n, k = q.shape
    for _ in range(iterations):
        for j in range(k):
            q[:, j] *= shares[j] / q[:, j].sum()
        for i in range(n):
            q[i] *= 1 / n / q[i].sum()
    return q / q.sum(axis=1, keepdims=True)


def slow_swapped(scores, codes, assigned, temperature):
    per_assigned = []
    for code, a in zip(codes, assigned, strict=True):
        per_view = []
        for v, view in enumerate(scores):
            if v != a:
                p = np.exp(view / temperature)
                per_view.append(np.mean(-(code * np.log(p / p.sum(axis=1, keepdims=True))).sum(axis=1)))
        per_assigned.append(np.mean(per_view))
    return float(np.mean(per_assigned))


@pytest.mark.parametrize("power_law", [0.0, 0.5])
@pytest.mark.parametrize("iterations", [1, 3, 10])
def test_sinkhorn_equals_the_formula(iterations, power_law):
    scores = np.clip(random_rows(7, 5) / 2, -1, 1)
    shares = np.arange(1, 6) ** -power_law
    wanted = slow_sinkhorn(scores, 0.05, iterations, shares / shares.sum())
    ours = sinkhorn(torch.from_numpy(scores), epsilon=0.05, iterations=iterations, power_law=power_law)
    np.testing.assert_allclose(ours.numpy(), wanted, rtol=1e-10, atol=1e-14)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 9), st.integers(2, 6), st.sampled_from([1e-4, 0.05, 1.0]), st.integers(0, 99))
def test_sinkhorn_is_finite_and_balanced_for_any_epsilon(n, k, epsilon, seed):
    scores = torch.from_numpy(random_rows(n, k, seed=seed).astype(np.float32))
    codes = sinkhorn(scores, epsilon=epsilon, iterations=3)
    assert codes.isfinite().all()
    torch.testing.assert_close(codes.sum(dim=1), torch.ones(n))
    if epsilon == 1.0:
        many = sinkhorn(scores, epsilon=epsilon, iterations=200)
        torch.testing.assert_close(many.sum(dim=0), torch.full((k,), n / k), rtol=1e-3, atol=1e-4)


def test_swapped_prediction_equals_the_formula():
    scores = np.clip(random_rows(4, 5, 6) / 2, -1, 1)
    assigned = (0, 2)
    codes = np.stack([slow_sinkhorn(scores[a], 0.05, 3, np.full(6, 1 / 6)) for a in assigned])
    ours = swav.swapped_prediction(torch.from_numpy(scores), torch.from_numpy(codes), assigned, 0.1)
    assert ours.item() == pytest.approx(slow_swapped(scores, codes, assigned, 0.1), rel=1e-12)


def _loss(scores, queued, config):
    """Value and gradient of the loss of (V, B, K) scores with a queue (A, n, K)."""
    x = torch.from_numpy(scores).clone().requires_grad_()
    codes = [swav.assign(x[a].detach(), torch.from_numpy(queued[a]), config) for a in config.assign_views]
    value = swav.swapped_prediction(x, torch.stack(codes), config.assign_views, 0.1)
    value.backward()
    return value.item(), x.grad.numpy()


def _one_of_two(rank, scores, queued, config):
    return _loss(scores[:, 3 * rank : 3 * rank + 3], queued[:, 2 * rank : 2 * rank + 2], config)


@pytest.mark.parametrize("power_law", [0.0, 0.5])
def test_two_processes_equal_one(power_law):
    config = swav.Config(power_law=power_law)
    scores, queued = (np.clip(random_rows(v, n, 5, seed=n) / 2, -1, 1) for v, n in ((4, 6), (2, 4)))
    value, slope = _loss(scores, queued, config)
    (first, first_slope), (second, second_slope) = two_processes.run(_one_of_two, scores, queued, config)
    assert (first + second) / 2 == pytest.approx(value, rel=1e-6)  # assignments are rounded to float32
    np.testing.assert_allclose(np.concatenate([first_slope, second_slope], axis=1) / 2, slope, atol=1e-7)


def test_hard_assignments_are_the_best_prototypes():
    scores = torch.from_numpy(random_rows(6, 4))
    soft, hard = (swav.assign(scores, None, swav.Config(), hard=hard) for hard in (False, True))
    assert torch.equal(hard, torch.eye(4)[soft.argmax(dim=1)])


def test_double_precision_gives_float32_assignments():
    scores = torch.from_numpy(random_rows(6, 4)).float()
    double, single = (swav.assign(scores, None, swav.Config(double_precision=flag)) for flag in (True, False))
    assert double.dtype == torch.float32
    torch.testing.assert_close(double, single)


def test_prototypes_have_length_1_from_the_start_and_after_every_update():
    setup = setup_for(network(), sizes=SIZES)
    method = swav.Method(network(), swav.Config(**SMALL), setup).train()
    for index in range(3):
        (prototypes,) = method.prototypes.parameters()
        torch.testing.assert_close(prototypes.norm(dim=1), torch.ones(12))
        train(method, batch_of(setup), setup, 1, start=index)


def test_frozen_prototypes_stay_to_the_bit_and_move_afterwards():
    setup = setup_for(network(), sizes=SIZES)
    method = swav.Method(network(), swav.Config(frozen_updates=3, **SMALL), setup).train()
    (prototypes,) = method.prototypes.parameters()
    before = prototypes.clone()
    train(method, batch_of(setup), setup, 3)
    torch.testing.assert_close(prototypes, before, rtol=0, atol=1e-6)
    frozen = prototypes.clone()
    train(method, batch_of(setup), setup, 1, start=3)
    assert (prototypes - frozen).abs().max() > 1e-4


def test_frozen_prototypes_have_no_gradient_for_momentum_to_keep():
    setup = setup_for(network(), sizes=SIZES)
    method = swav.Method(network(), swav.Config(frozen_updates=1, **SMALL), setup).train()
    for index in range(2):
        method(batch_of(setup), step_of(index, setup)).value.backward()
        method.before_update(step_of(index, setup))
        assert [p.grad is None for p in method.prototypes.parameters()] == [index == 0]


def test_the_queue_is_newest_first_and_used_when_it_is_full():
    setup = setup_for(network(), images=4, sizes=SIZES)
    config = swav.Config(queue=8, queue_start=1, **SMALL)
    method = swav.Method(network(), config, setup).train()
    embeddings, used = [], []
    for index in range(4):
        step = step_of(index, setup)
        used.append(bool(method._queued_scores(torch.zeros(1), step)))
        method(batch_of(setup, seed=index), step)
        embeddings.append(method._new[0])
        method.after_update(step)
    assert used == [False, False, True, True]
    torch.testing.assert_close(method.local_state()["queue"], torch.cat([embeddings[3], embeddings[2]], dim=1))


def test_the_queue_changes_the_assignments():
    scores = torch.from_numpy(np.clip(random_rows(4, 5) / 2, -1, 1))
    queued = torch.from_numpy(np.clip(random_rows(8, 5, seed=1) / 2, -1, 1))
    wanted = slow_sinkhorn(torch.cat([scores, queued]).numpy(), 0.05, 3, np.full(5, 0.2))[:4]
    np.testing.assert_allclose(swav.assign(scores, queued, swav.Config()).numpy(), wanted, rtol=1e-5, atol=1e-7)


def test_a_queue_of_another_shape_is_not_resumed():
    setup = setup_for(network(), sizes=SIZES)
    method = swav.Method(network(), swav.Config(queue=16, **SMALL), setup)
    with pytest.raises(UsageError, match=r"queue .* is \(2, 8, 8\), not \(2, 16, 8\)"):
        method.load_local_state({"queue": torch.zeros(2, 8, 8)})


def test_several_sets_of_prototypes_are_averaged():
    setup = setup_for(network(), images=4, sizes=SIZES)
    method = swav.Method(network(), swav.Config(prototypes=(6, 9), projector=(16, 8)), setup).eval()
    batch, wanted = batch_of(setup), []
    with torch.no_grad():
        ours = method(batch, step_of(0, setup)).value.item()
        z = unit(np.stack([method.head(method.backbone(view)).numpy() for view in batch.views]).astype(np.float64))
        for layer in method.prototypes.layers:
            scores = z @ layer.weight.numpy().T
            k = scores.shape[2]
            codes = [slow_sinkhorn(scores[a], 0.05, 3, np.full(k, 1 / k)) for a in (0, 1)]
            wanted.append(slow_swapped(scores, codes, (0, 1), 0.1))
    assert ours == pytest.approx(np.mean(wanted), rel=1e-4)
    assert not math.isclose(wanted[0], wanted[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"assign_views": (0, 7)}, "assign_views is .0, 7., but the views are 0 to 3"),
        ({"assign_views": ()}, "assign_views is"),
        ({"queue": 4}, "queue=4 does not fit 1 processes of 8 images"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, message):
    setup = setup_for(network(), sizes=SIZES)
    with pytest.raises(UsageError, match=message):
        swav.Method(network(), swav.Config(**{**SMALL, **changes}), setup)


def test_a_momentum_copy_assigns_and_follows_slowly():
    setup = setup_for(network(), sizes=(32, 32, 16))
    config = swav.Config(prototypes=(6,), projector=(16, 8), momentum=0.9)
    method = swav.Method(network(), config, setup).train()
    batch = batch_of(setup)
    with torch.no_grad():
        for parameter in method.prototypes.parameters():  # the assignments must not come from these
            parameter.copy_(functional.normalize(torch.randn_like(parameter), dim=1))
        features = method.teacher.backbone(torch.cat(batch.views[:2]))
        rows = functional.normalize(method.teacher.head(features), dim=1)
        codes = [swav.assign(part, None, config) for part in method.teacher.prototypes(rows)[0].chunk(2)]
        views = torch.cat([method.backbone(torch.cat(batch.views[:2])), method.backbone(batch.views[2])])
        scores = method.prototypes(functional.normalize(method.head(views), dim=1))[0].unflatten(0, (3, -1))
        wanted = swav.swapped_prediction(scores, torch.stack(codes), (0, 1), 0.1)
    torch.testing.assert_close(method(batch, step_of(0, setup)).value, wanted)
    before = [parameter.clone() for parameter in method.teacher.backbone.parameters()]
    train(method, batch, setup, 1)
    pairs = zip(method.teacher.backbone.parameters(), before, method.backbone.parameters(), strict=True)
    for copy, old, new in pairs:
        torch.testing.assert_close(copy, 0.9 * old + 0.1 * new)
        assert copy.grad is None
    (prototypes,) = method.teacher.prototypes.parameters()
    torch.testing.assert_close(prototypes.norm(dim=1), torch.ones(6))
    assert list(method.exports()) == ["student", "teacher"]


def test_a_training_that_ends_before_a_phase_says_so(caplog):
    setup = dataclasses.replace(setup_for(network(), sizes=SIZES), steps=7)
    for config, words in (
        (swav.Config(frozen_updates=313, **SMALL), "frozen_updates=313 updates, and there are 7"),
        (swav.Config(queue=64, queue_start=6, **SMALL), "from update 8 on, of 7"),
        (swav.Config(queue=16, frozen_updates=6, **SMALL), ""),
    ):
        caplog.clear()
        swav.Method.check(network(), config, setup)
        assert words in caplog.text and bool(words) == bool(caplog.text)
