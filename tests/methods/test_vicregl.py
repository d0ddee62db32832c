import dataclasses
import functools

import numpy as np
import pytest
import torch
from helpers import two_processes
from helpers.training_samples import gradient, made, random_rows, step_of

from sslbench.errors import UsageError
from sslbench.methods import vicregl
from sslbench.train.method import Batch

CONFIG = vicregl.Config(projector=(32, 32), place_projector=(16, 16), matches=(3, 2))
SIZES = (64, 64)


make = functools.partial(made, vicregl, CONFIG, sizes=SIZES)


def spread(rows):
    """Hinge and covariance of rows (n, d), entry by entry."""
    n, d = rows.shape
    means = [sum(rows[:, j]) / n for j in range(d)]
    c = [
        [sum((rows[k, i] - means[i]) * (rows[k, j] - means[j]) for k in range(n)) / (n - 1) for j in range(d)]
        for i in range(d)
    ]
    hinge = sum(max(0.0, 1 - np.sqrt(c[j][j] + 1e-4)) for j in range(d)) / d
    return hinge, sum(c[i][j] ** 2 for i in range(d) for j in range(d) if i != j) / d


def paired(ours, theirs, near, others, count):
    """Chosen rows of both, image by image: places in order, each with its nearest neighbour."""
    chosen, partners = [], []
    for o, t, a, b in zip(ours, theirs, near, others, strict=True):
        distances = [[np.linalg.norm(a[i] - b[j]) for j in range(len(b))] for i in range(len(a))]
        best = sorted(range(len(a)), key=lambda i, distances=distances: min(distances[i]))[:count]
        chosen.append([o[i] for i in sorted(best)])
        partners.append([t[int(np.argmin(distances[i]))] for i in sorted(best)])
    return np.array(chosen), np.array(partners)


def oracle(embeddings, centres, matches):
    """Terms of places of two views: both ways of pairing, both directions, place by place."""
    totals = np.zeros(3)
    for i, j in ((0, 1), (1, 0)):
        ours, theirs = embeddings[i], embeddings[j]
        for x, y in (
            paired(ours, theirs, ours, theirs, ours.shape[1]),
            paired(ours, theirs, centres[i], centres[j], matches[i]),
        ):
            spreads = [spread(z[:, place]) for z in (x, y) for place in range(z.shape[1])]
            totals += np.array([((x - y) ** 2).mean(), *np.mean(spreads, axis=0)]) / 2
    return totals


EMBEDDINGS = random_rows(5, 6, 3), 0.3 * random_rows(5, 4, 3, seed=1)
CENTRES = random_rows(5, 6, 2, seed=2), random_rows(5, 4, 2, seed=3)


def terms_of(embeddings, centres):
    tensors = [tuple(torch.as_tensor(x) for x in both) for both in (embeddings, centres)]
    return vicregl.place_terms(*tensors, (3, 2))


def test_the_terms_of_places_agree_with_loops_and_their_gradient_with_differences():
    wanted = oracle(EMBEDDINGS, CENTRES, (3, 2))
    assert [term.item() for term in terms_of(EMBEDDINGS, CENTRES)] == pytest.approx(wanted, rel=1e-10)
    weights = np.array([25.0, 25.0, 1.0])
    first, second = EMBEDDINGS
    _, ours = gradient(
        lambda x: sum(w * t for w, t in zip(weights, terms_of((x, second), CENTRES), strict=True)), first
    )
    for index in [(0, 0, 0), (1, 3, 2), (4, 5, 1), (2, 2, 0)]:
        step = np.zeros_like(first)
        step[index] = 1e-6
        up, down = (weights @ oracle((first + sign * step, second), CENTRES, (3, 2)) for sign in (1, -1))
        assert ours[index] == pytest.approx((up - down) / 2e-6, rel=1e-5, abs=1e-6)


def test_the_terms_of_views_agree_with_loops():
    z = random_rows(3, 6, 4, seed=5)
    ours = [term.item() for term in vicregl.view_terms(tuple(torch.from_numpy(z)), 2)]
    pairs = [(0, 1), (0, 2), (1, 0), (1, 2)]
    wanted = [np.mean([((z[i] - z[j]) ** 2).mean() for i, j in pairs]), *np.mean([spread(rows) for rows in z], axis=0)]
    assert ours == pytest.approx(wanted, rel=1e-10)


def test_centres_lie_in_the_picture_where_the_places_are():
    boxes = torch.tensor([[10.0, 20.0, 24.0, 34.0], [0.0, 7.0, 7.0, 0.0]])
    centres = vicregl.place_centres(boxes, (7, 7)).view(2, 7, 7, 2)
    assert centres[0, 0, 0].tolist() == [11, 21]
    assert centres[0, 6, 2].tolist() == [23, 25]
    assert centres[1, 3, 0].tolist() == [3.5, 6.5]  # mirrored: the first column is on the right


def test_the_same_crop_pairs_each_place_with_itself():
    boxes = torch.tensor([[3.0, 5.0, 90.0, 70.0]])
    mirrored = torch.tensor([[3.0, 70.0, 90.0, 5.0]])
    ours, same, other = (vicregl.place_centres(box, (3, 3)) for box in (boxes, boxes, mirrored))
    places, partners = vicregl.nearest_pairs(ours, same, 9)
    assert places.tolist() == partners.tolist() == [list(range(9))]
    assert vicregl.nearest_pairs(ours, other, 9)[1].tolist() == [[2, 1, 0, 5, 4, 3, 8, 7, 6]]


def test_few_places_give_few_pairs():
    assert vicregl.nearest_pairs(torch.zeros(2, 1, 2), torch.zeros(2, 4, 2), 20)[0].shape == (2, 1)


def test_views_of_two_sizes_train():
    method, setup, batch = make(sizes=(64, 64, 32))
    loss = method(batch, step_of(0, setup))
    assert loss.value.isfinite()
    assert set(loss.parts) == {
        *("invariance", "variance", "covariance", "place_invariance", "place_variance", "place_covariance")
    }


@pytest.mark.parametrize(("backbone", "sizes", "changes", "message"), [
    ("timm:vit_tiny_patch16_224,img_size=64,depth=1,embed_dim=48,num_heads=3", SIZES, {}, "vicregl needs a ResNet"),
    ("resnet18w0.125", (64,), {}, "compares 2 views with all others"),
    ("resnet18w0.125", SIZES, {"alpha": 1.0}, "the method is vicreg"),
    ("resnet18w0.125", SIZES, {"matches": (0, 4)}, "above 0"),
])  # fmt: skip
def test_what_cannot_be_trained_is_refused(backbone, sizes, changes, message):
    with pytest.raises(UsageError, match=message):
        make(dataclasses.replace(CONFIG, **changes), backbone=backbone, sizes=sizes)


def run_method(rank, images, boxes):
    """Loss and gradients of one process, averaged as DistributedDataParallel does."""
    from sslbench.distributed.collectives import sum_, world_size

    world = world_size()
    rows = slice(rank * 4 // world, (rank + 1) * 4 // world)
    method, setup, _ = make(images_per_update=4, batch_size=4 // world, world=world)
    method.double().eval()  # with BatchNorm's running statistics, which do not depend on the batch
    views = tuple(torch.from_numpy(view)[rows] for view in images)
    batch = Batch(views, None, torch.arange(len(views[0])), boxes=torch.from_numpy(boxes)[rows])
    loss = method(batch, step_of(0, setup))
    loss.value.backward()
    gradients = [sum_(p.grad) / world for p in method.parameters()]
    return [(sum_(loss.value.detach().clone()) / world).numpy(), *(g.numpy() for g in gradients)]


def test_two_processes_do_what_one_does_with_both_their_batches():
    images = [random_rows(4, 3, 64, 64, seed=seed) for seed in (0, 1)]
    boxes = random_rows(4, 2, 4, seed=2)
    two_processes.check_equal_to_one(run_method, images, boxes, rtol=1e-8, atol=1e-10)
