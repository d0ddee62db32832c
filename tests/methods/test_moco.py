import logging
import math

import numpy as np
import pytest
import torch
from helpers import two_processes
from helpers.training_samples import (
    batch_of,
    gradient,
    network,
    random_rows,
    setup_for,
    step_of,
    train,
    unit,
)
from torch.nn import functional

from sslbench.errors import UsageError
from sslbench.methods import moco
from sslbench.train.method import Batch

SMALL = {"projector": (16, 8), "queue": 1024}


def slow_info_nce(query, key, queue, temperature):
    terms = []
    for q, k in zip(query, key, strict=True):
        positive = math.exp(q @ k / temperature)
        terms.append(-math.log(positive / (positive + sum(math.exp(q @ n / temperature) for n in queue))))
    return float(np.mean(terms))


def test_equals_the_formula():
    query, key, queue = (unit(random_rows(n, 5, seed=n)) for n in (3, 4, 16))
    key = key[:3]
    ours = moco.info_nce(*(torch.from_numpy(x) for x in (query, key, queue)), 0.07)
    assert ours.item() == pytest.approx(slow_info_nce(query, key, queue, 0.07), rel=1e-12)


def _one_of_two(rank, query, key, queue):
    mine = slice(3 * rank, 3 * rank + 3)
    key, queue = torch.from_numpy(key[mine]), torch.from_numpy(queue)
    return gradient(lambda q: moco.info_nce(functional.normalize(q, dim=1), key, queue, 0.2), query[mine])


def test_two_processes_equal_one_with_the_same_queue():
    query, key, queue = random_rows(6, 5), unit(random_rows(6, 5, seed=1)), unit(random_rows(8, 5, seed=2))
    given = (torch.from_numpy(key), torch.from_numpy(queue))
    value, slope = gradient(lambda q: moco.info_nce(functional.normalize(q, dim=1), *given, 0.2), query)
    (first, first_slope), (second, second_slope) = two_processes.run(_one_of_two, query, key, queue)
    assert (first + second) / 2 == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(np.concatenate([first_slope, second_slope]) / 2, slope, atol=1e-14)


def test_v1_has_a_linear_head():
    setup = setup_for(network())
    head = moco.Method(network(), moco.Config(queue=16, projector=(8,)), setup).head
    assert [type(layer) for layer in head] == [torch.nn.Linear]


def test_the_loss_sees_the_queue_from_before_and_the_oldest_keys_go():
    setup = setup_for(network(), images=4)
    method = moco.Method(network(), moco.Config(queue=12, projector=(8,)), setup).train()
    before = method.queue.clone()
    keys = []
    for index in range(4):
        batch = batch_of(setup, seed=index)
        value = method(batch, step_of(index, setup)).value
        assert torch.equal(method.queue, before)
        keys.append(method._new_keys[0])
        query = functional.normalize(method.head(method.backbone(batch.views[0])), dim=1)
        torch.testing.assert_close(value, moco.info_nce(query, keys[-1], before, 0.2))
        method.after_update(step_of(index, setup))
        before = method.queue.clone()
    torch.testing.assert_close(method.queue, torch.cat([keys[3], keys[1], keys[2]]))
    torch.testing.assert_close(method.queue.norm(dim=1), torch.ones(12))


def test_accumulated_passes_fill_the_queue_together():
    setup = setup_for(network(), images=4, images_per_update=8)
    method = moco.Method(network(), moco.Config(queue=16, projector=(8,)), setup).train()
    before = method.queue.clone()
    train(method, batch_of(setup), setup, 1, passes=2)
    assert not torch.isclose(method.queue[:8], before[:8]).all(dim=1).any()
    assert torch.equal(method.queue[8:], before[8:])


def test_the_keys_follows_slowly():
    setup = setup_for(network())
    method = moco.Method(network(), moco.Config(momentum=0.9, **SMALL), setup).train()
    before = {name: p.clone() for name, p in method.key_backbone.named_parameters()}
    train(method, batch_of(setup), setup, 1)
    after = dict(method.key_backbone.named_parameters())
    for name, p in method.backbone.named_parameters():
        torch.testing.assert_close(after[name], 0.9 * before[name] + 0.1 * p)
        assert after[name].grad is None


@pytest.mark.parametrize(("queue", "batch"), [(100, 32), (4, 8), (0, 8)])
def test_a_queue_that_is_no_multiple_is_refused(queue, batch):
    setup = setup_for(network(), images=batch)
    with pytest.raises(UsageError, match=f"queue={queue} is no multiple of images_per_update={batch}"):
        moco.Method(network(), moco.Config(queue=queue, projector=(8,)), setup)


def test_the_refusal_names_what_would_do():
    setup = setup_for(network(), images=32)
    with pytest.raises(UsageError, match=r"queue to 96 or 128, or batch_size to 25 or 50\."):
        moco.Method(network(), moco.Config(queue=100, projector=(8,)), setup)


def test_one_process_says_that_nothing_is_shuffled(caplog):
    setup = setup_for(network())
    with caplog.at_level(logging.INFO, logger="sslbench"):
        moco.Method(network(), moco.Config(**SMALL), setup)
    assert "images are not shuffled between processes" in caplog.text


def _keys_of_two(rank, shuffle):
    torch.manual_seed(rank)  # the permutation has to be the first process's all the same
    backbone = network()
    setup = setup_for(backbone, images=4, images_per_update=8, world=2)
    torch.manual_seed(7)
    method = moco.Method(backbone, moco.Config(queue=16, projector=(8,), shuffle_bn=shuffle), setup)
    torch.manual_seed(rank)
    batch = batch_of(setup, seed=rank)
    seen = []
    method.key_backbone.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    (plain,) = method.eval()._keys(batch.views[1])
    method(Batch(batch.views, None, batch.indices), step_of(0, setup))
    unmixed = method._new_keys.pop()
    method.train()(Batch(batch.views, None, batch.indices), step_of(0, setup))
    method.after_update(step_of(0, setup))
    return plain.numpy(), unmixed.numpy(), method.queue.numpy(), [x.numpy() for x in seen], batch.views[1].numpy()


def test_images_are_shuffled_across_processes_and_keys_come_back_in_order():
    results = two_processes.run(_keys_of_two, True)
    everyone = np.concatenate([views for *_, views in results])
    shares = []
    for plain, keys, queue, seen, _ in results:
        np.testing.assert_allclose(
            keys, plain, atol=1e-6
        )  # without BatchNorm's batch statistics shuffling is invisible
        np.testing.assert_array_equal(queue, results[0][2])
        shares.append(seen[1])
    rows = np.concatenate(shares).reshape(8, -1)
    order = [int(np.flatnonzero((everyone.reshape(8, -1) == row).all(axis=1))[0]) for row in rows]
    assert sorted(order) == list(range(8))
    assert {index // 4 for index in order[:4]} == {0, 1}


def test_shuffling_can_be_turned_off():
    for *_, seen, views in two_processes.run(_keys_of_two, False):
        np.testing.assert_array_equal(seen[1], views)
