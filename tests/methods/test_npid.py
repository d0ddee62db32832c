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
from sslbench.methods import npid
from sslbench.methods._parts.masks import image_generators
from sslbench.methods._parts.memory import MemoryBank, log_normalisation

SMALL = {"negatives": 32, "projector": (8,)}


def slow_nce(embeddings, memory, images, negatives, temperature, z):
    """Eq. 5 to 7, one image and one negative at a time, with the epsilon of the published code."""
    noise, epsilon = negatives.shape[1] / len(memory), float(np.finfo(np.float32).eps)
    total = 0.0
    for x, i, others in zip(embeddings, images, negatives, strict=True):
        p = math.exp(x @ memory[i] / temperature) / z
        total -= math.log(p / (p + noise + epsilon))
        for j in others:
            q = math.exp(x @ memory[j] / temperature) / z
            total -= math.log(noise / (q + noise + epsilon))
    return total / len(embeddings)


def slow_info_nce(embeddings, memory, images, negatives, temperature):
    terms = []
    for x, i, others in zip(embeddings, images, negatives, strict=True):
        own = math.exp(x @ memory[i] / temperature)
        terms.append(-math.log(own / (own + sum(math.exp(x @ memory[j] / temperature) for j in others))))
    return float(np.mean(terms))


def bank_of(memory):
    bank = MemoryBank(*memory.shape).double()
    bank.vectors.copy_(torch.from_numpy(memory))
    return bank


def loss_of(bank, embeddings, images, negatives, temperature, contrast):
    rows = functional.normalize(embeddings, dim=1)
    return bank.loss(bank.logits(rows, torch.from_numpy(images), torch.from_numpy(negatives), temperature), contrast)


@pytest.mark.parametrize("contrast", ["nce", "info_nce"])
@pytest.mark.parametrize("images", [20, 300])  # similarities with all images, and with the chosen ones only
def test_loss_and_gradient_equal_the_formula(contrast, images):
    memory, rows = unit(random_rows(images, 6)), random_rows(4, 6, seed=1)
    own, negatives = np.array([0, 3, 5, 19]), np.random.default_rng(2).integers(0, images, (4, 7))
    bank = bank_of(memory)
    value, slope = gradient(lambda x: loss_of(bank, x, own, negatives, 0.2, contrast), rows)
    z = math.exp(bank.log_z) if contrast == "nce" else 0.0

    def slow(x):
        parts = unit(x), memory, own, negatives, 0.2
        return slow_nce(*parts, z) if contrast == "nce" else slow_info_nce(*parts)

    assert value == pytest.approx(slow(rows), rel=1e-12)
    for at in [(0, 0), (1, 4), (3, 5)]:
        step = np.zeros_like(rows)
        step[at] = 1e-6
        assert slope[at] == pytest.approx((slow(rows + step) - slow(rows - step)) / 2e-6, rel=1e-5)


def test_the_normalisation_is_that_of_the_first_batch():
    memory, rows, own = unit(random_rows(20, 6)), unit(random_rows(4, 6, seed=1)), np.arange(4)
    negatives = np.random.default_rng(2).integers(0, 20, (4, 7))
    bank = bank_of(memory)
    loss_of(bank, torch.from_numpy(rows), own, negatives, 0.2, "nce")
    chosen = np.concatenate([own[:, None], negatives], axis=1)
    mean = np.mean([math.exp(x @ memory[j] / 0.2) for x, js in zip(rows, chosen, strict=True) for j in js])
    assert math.exp(bank.log_z) == pytest.approx(20 * mean, rel=1e-12)
    loss_of(bank, torch.from_numpy(unit(random_rows(4, 6, seed=3))), own, negatives, 0.2, "nce")
    assert math.exp(bank.log_z) == pytest.approx(20 * mean, rel=1e-12)


def test_a_low_temperature_stays_finite():
    memory = unit(random_rows(20, 6)).astype(np.float32)
    bank = MemoryBank(20, 6)
    bank.vectors.copy_(torch.from_numpy(memory))
    negatives = np.random.default_rng(2).integers(0, 20, (4, 7))
    assert loss_of(bank, bank.vectors[:4], np.arange(4), negatives, 0.005, "nce").isfinite()


def test_the_memory_moves_towards_the_embeddings():
    memory, new = unit(random_rows(6, 4)), unit(random_rows(3, 4, seed=1))
    bank = bank_of(memory)
    bank.update_(torch.tensor([4, 1, 4]), torch.from_numpy(new), 0.3)
    wanted = memory.copy()
    wanted[1] = unit(0.3 * memory[1] + 0.7 * new[1])
    wanted[4] = unit(0.3 * memory[4] + 0.7 * (new[0] + new[2]) / 2)  # an image that occurs twice
    np.testing.assert_allclose(bank.vectors.numpy(), wanted, atol=1e-15)


def test_negatives_are_uniform_over_all_images():
    generators = [torch.Generator().manual_seed(seed) for seed in range(100)]
    counts = np.bincount(MemoryBank(8, 4).draw(400, generators).flatten().numpy(), minlength=8)
    assert len(counts) == 8
    assert ((counts - 5000) ** 2 / 5000).sum() < 24.3  # chi squared with 7 degrees of freedom: 1 in 1,000 exceeds it


def _half_of_a_batch(rank, memory, rows, negatives):
    bank, mine = bank_of(memory), slice(3 * rank, 3 * rank + 3)
    own = np.arange(10, 16)[mine]
    value, slope = gradient(lambda x: loss_of(bank, x, own, negatives[mine], 0.2, "nce"), rows[mine])
    bank.update_(torch.from_numpy(own), torch.from_numpy(unit(rows[mine])), 0.5)
    return value, slope, bank.log_z.item(), bank.vectors.numpy()


def test_two_processes_equal_one():
    memory, rows = unit(random_rows(20, 6)), random_rows(6, 6, seed=1)
    negatives = np.random.default_rng(2).integers(0, 20, (6, 7))
    one = bank_of(memory)
    value, slope = gradient(lambda x: loss_of(one, x, np.arange(10, 16), negatives, 0.2, "nce"), rows)
    one.update_(torch.arange(10, 16), torch.from_numpy(unit(rows)), 0.5)
    (first, *_), (second, *_) = results = two_processes.run(_half_of_a_batch, memory, rows, negatives)
    assert (first + second) / 2 == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(np.concatenate([part[1] for part in results]) / 2, slope, atol=1e-14)
    for _, _, log_z, vectors in results:
        assert log_z == pytest.approx(one.log_z.item(), rel=1e-12)
        np.testing.assert_allclose(vectors, one.vectors.numpy(), atol=1e-15)


def test_the_normalisation_of_one_process_is_a_mean():
    logits = random_rows(3, 5)
    assert log_normalisation(torch.from_numpy(logits), 9).item() == pytest.approx(math.log(9 * np.exp(logits).mean()))


def test_accumulated_passes_update_the_memory_together():
    setup = setup_for(network(), sizes=(32,), images=4, images_per_update=8)
    method = npid.Method(network(), npid.Config(**SMALL), setup).train()
    before = method.memory.vectors.clone()
    train(method, batch_of(setup), setup, 1, passes=2)
    changed = (method.memory.vectors != before).any(dim=1)
    assert changed[:4].all()
    assert not changed[4:].any()


def test_the_loss_sees_the_memory_from_before():
    setup = setup_for(network(), sizes=(32,))
    method = npid.Method(network(), npid.Config(contrast="info_nce", **SMALL), setup).train()
    batch, before = batch_of(setup), method.memory.vectors.clone()
    value = method(batch, step_of(0, setup)).value
    assert torch.equal(method.memory.vectors, before)
    negatives = method.memory.draw(32, image_generators(0, batch, step_of(0, setup))).numpy()
    rows = functional.normalize(method.head(method.backbone(batch.views[0])), dim=1).detach().numpy()
    wanted = slow_info_nce(rows, before.numpy(), batch.indices.numpy(), negatives, 0.07)
    assert value.item() == pytest.approx(wanted, rel=1e-5)


def test_two_views_are_refused():
    with pytest.raises(UsageError, match="npid takes one view"):
        npid.Method(network(), npid.Config(), setup_for(network()))
