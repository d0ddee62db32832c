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
from sslbench.methods import deepclusterv2
from sslbench.methods._parts import memory
from sslbench.methods._parts.memory import spherical_kmeans

SIZES = (32, 32, 16)
SMALL = {"clusters": (5, 7, 5), "projector": (16, 8), "iterations": 3}


def slow_kmeans(rows, centroids, iterations):
    centroids = centroids.copy()
    for _ in range(iterations):
        nearest = [max(range(len(centroids)), key=lambda k: row @ centroids[k]) for row in rows]
        for k in range(len(centroids)):
            members = [row for row, own in zip(rows, nearest, strict=True) if own == k]
            if members:
                centroids[k] = unit(np.mean(members, axis=0))
    return centroids, [max(range(len(centroids)), key=lambda k: row @ centroids[k]) for row in rows]


def test_kmeans_equals_the_slow_one_and_keeps_empty_clusters():
    rows = unit(random_rows(40, 6))
    start = np.concatenate([rows[:4], unit(-rows[:20].mean(axis=0, keepdims=True) - 9 * rows[:1])])
    centroids, assignments = spherical_kmeans(torch.from_numpy(rows), torch.from_numpy(start), 4)
    wanted, nearest = slow_kmeans(rows, start, 4)
    np.testing.assert_allclose(centroids.numpy(), wanted, atol=1e-14)
    assert assignments.tolist() == nearest
    alone = spherical_kmeans(torch.from_numpy(rows[:3]), torch.from_numpy(rows[:5]), 2)[0]
    np.testing.assert_allclose(alone[3:].numpy(), rows[3:5], atol=1e-15)


def test_chunks_change_nothing(monkeypatch):
    rows = torch.from_numpy(unit(random_rows(40, 6)))
    whole = spherical_kmeans(rows, rows[:5], 3)
    monkeypatch.setattr(memory, "_CHUNK", 7)
    assert all(torch.equal(a, b) for a, b in zip(spherical_kmeans(rows, rows[:5], 3), whole, strict=True))


def _kmeans_of_two(rank, rows):
    centroids, assignments = spherical_kmeans(torch.from_numpy(rows), torch.from_numpy(rows[:5]), 4)
    return centroids.numpy(), assignments.numpy()


def test_two_processes_cluster_as_one():
    rows = unit(random_rows(41, 6))  # an odd number, so that their shares differ
    wanted, nearest = spherical_kmeans(torch.from_numpy(rows), torch.from_numpy(rows[:5]), 4)
    for centroids, assignments in two_processes.run(_kmeans_of_two, rows):
        np.testing.assert_allclose(centroids, wanted.numpy(), atol=1e-14)
        np.testing.assert_array_equal(assignments, nearest.numpy())


def test_loss_and_gradient_equal_the_formula():
    rows, centroids, labels = random_rows(4, 6), unit(random_rows(3, 6, seed=1)), [2, 0, 1, 1]

    def slow(x):
        logits = unit(x) @ centroids.T / 0.1
        return np.mean([np.log(np.exp(row).sum()) - row[label] for row, label in zip(logits, labels, strict=True)])

    given = torch.from_numpy(centroids), torch.tensor(labels), 0.1
    value, slope = gradient(lambda x: deepclusterv2.centroid_loss(functional.normalize(x, dim=1), *given), rows)
    assert value == pytest.approx(slow(rows), rel=1e-12)
    for at in [(0, 0), (2, 3), (3, 5)]:
        step = np.zeros_like(rows)
        step[at] = 1e-6
        assert slope[at] == pytest.approx((slow(rows + step) - slow(rows - step)) / 2e-6, rel=1e-6)


def test_every_view_is_classified_into_the_clusters_of_its_image():
    setup = setup_for(network(), sizes=SIZES, images=4)
    method = deepclusterv2.Method(network(), deepclusterv2.Config(**SMALL), setup).eval()
    batch, terms = batch_of(setup), []
    with torch.no_grad():
        for i in range(3):
            centroids, labels = method.get_buffer(f"centroids{i}"), method.assignments[i][:4]
            for view in batch.views:
                rows = functional.normalize(method.head(method.backbone(view)), dim=1)
                terms.append(functional.cross_entropy(rows @ centroids.T / 0.1, labels))
        found = method(batch, step_of(0, setup)).value
    assert found.item() == pytest.approx(torch.stack(terms).mean().item(), rel=1e-5)


def test_the_memory_holds_the_last_embeddings_and_is_clustered_after_an_epoch():
    setup = setup_for(network(), sizes=SIZES, images=4, samples=12, steps_per_epoch=3)
    method = deepclusterv2.Method(network(), deepclusterv2.Config(**SMALL), setup).eval()
    batch, first = batch_of(setup), method.assignments.clone()
    views = [functional.normalize(method.head(method.backbone(view)), dim=1).detach() for view in batch.views[:2]]
    for index in range(2):
        method(batch, step_of(index, setup))
        method.after_update(step_of(index, setup))
        assert torch.equal(method.assignments, first)
    torch.testing.assert_close(method.memory[:, :4], torch.stack(views))
    method(batch, step_of(2, setup))
    method.after_update(step_of(2, setup))
    assert not torch.equal(method.assignments, first)
    for i, bank in enumerate([0, 1, 0]):  # by turns
        nearest = (method.memory[bank] @ method.get_buffer(f"centroids{i}").T).argmax(dim=1)
        assert torch.equal(method.assignments[i], nearest)


def test_the_pass_before_training_ends_with_a_clustering():
    setup = setup_for(network(), sizes=SIZES, images=4, steps_per_epoch=2)
    method = deepclusterv2.Method(network(), deepclusterv2.Config(**SMALL), setup)
    assert method.first_pass
    first = method.get_buffer("centroids0").clone()
    for index in (-2, -1):
        method(batch_of(setup), step_of(index, setup))
        method.after_update(step_of(index, setup))
        assert torch.equal(method.get_buffer("centroids0"), first) == (index == -2)


def test_accumulated_passes_enter_the_memory_together():
    setup = setup_for(network(), sizes=SIZES, images=4, images_per_update=8)
    method = deepclusterv2.Method(network(), deepclusterv2.Config(**SMALL), setup).train()
    train(method, batch_of(setup), setup, 1, passes=2)
    assert method._new == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clusters": (101,)}, r"clusters=\[101\] of 100 images"),
        ({"clusters": ()}, r"clusters=\[\] of 100 images"),
        ({"clusters": (5, 1)}, r"clusters=\[5, 1\] of 100 images"),
        ({"memory_views": (3,)}, r"memory_views is \[3\], but the views are 0 to 2"),
        ({"memory_views": ()}, r"memory_views is \[\]"),
    ],
)
def test_senseless_settings_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        deepclusterv2.Method(network(), deepclusterv2.Config(**{**SMALL, **changes}), setup_for(network(), sizes=SIZES))


def test_one_view_is_refused():
    with pytest.raises(UsageError, match="deepclusterv2 compares views of one image"):
        deepclusterv2.Method(network(), deepclusterv2.Config(**SMALL), setup_for(network(), sizes=(32,)))
