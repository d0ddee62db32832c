import dataclasses
import functools
import math

import numpy as np
import pytest
import torch
from helpers import two_processes
from helpers.training_samples import (
    gradient,
    made,
    random_rows,
    step_of,
    unit,
)

from sslbench.errors import UsageError
from sslbench.methods import densecl
from sslbench.train.method import Batch

CONFIG = densecl.Config(projector=(16, 8), queue=1024)
SIZES = (64, 64)


make = functools.partial(made, densecl, CONFIG, sizes=SIZES)


def oracle(queries, keys, features, key_features, queue, temperature):
    """Place by place: the most similar features give the key."""
    terms = []
    for q, k, f, g in zip(queries, keys, features, key_features, strict=True):
        for place in range(len(q)):
            match = max(range(len(g)), key=lambda j, place=place: unit(f[place]) @ unit(g[j]))
            positive = math.exp(unit(q[place]) @ unit(k[match]) / temperature)
            negatives = sum(math.exp(unit(q[place]) @ n / temperature) for n in queue)
            terms.append(-math.log(positive / (positive + negatives)))
    return np.mean(terms)


def test_the_loss_of_places_agrees_with_a_loop_and_its_gradient_with_differences():
    queries, keys = random_rows(2, 4, 3), random_rows(2, 4, 3, seed=1)
    features, others = random_rows(2, 4, 6, seed=2), random_rows(2, 4, 6, seed=3)
    queue = unit(random_rows(5, 3, seed=4))
    k, f, g, n = (torch.from_numpy(x) for x in (keys, features, others, queue))
    value, ours = gradient(lambda q: densecl.dense_loss(q, k, densecl.best_matches(f, g), n, 0.2), queries)
    assert value == pytest.approx(oracle(queries, keys, features, others, queue, 0.2), rel=1e-10)
    for index in np.ndindex(queries.shape):
        step = np.zeros_like(queries)
        step[index] = 1e-6
        up, down = (oracle(queries + sign * step, keys, features, others, queue, 0.2) for sign in (1, -1))
        assert ours[index] == pytest.approx((up - down) / 2e-6, abs=1e-6)


def test_the_mean_place_is_what_the_backbone_returns():
    method, _, batch = make()
    method.eval()
    with torch.no_grad():
        places = method._places(method.backbone, batch.views[0])
        assert places.shape == (8, 4, 64)
        torch.testing.assert_close(places.mean(1), method.backbone(batch.views[0]))


def test_the_queues_get_the_keys_of_images_and_the_mean_keys_of_places():
    method, setup, batch = make()
    with torch.no_grad():
        key, dense_key, dense, places = method._keys(batch.views[1])
    torch.testing.assert_close(dense_key, torch.nn.functional.normalize(dense.mean(1), dim=1))
    assert places.shape[1] == dense.shape[1] == 4
    method(batch, step_of(1, setup))
    method.after_update(step_of(1, setup))
    torch.testing.assert_close(method.queue[8:16], key)
    torch.testing.assert_close(method.dense_queue[8:16], dense_key)


@pytest.mark.parametrize(("backbone", "sizes", "changes", "message"), [
    ("timm:vit_tiny_patch16_224,img_size=64,depth=1,embed_dim=48,num_heads=3", SIZES, {}, "densecl needs a ResNet"),
    ("resnet18w0.125", (64,), {}, "takes 2 views"),
    ("resnet18w0.125", SIZES, {"queue": 1001}, "no multiple"),
])  # fmt: skip
def test_what_cannot_be_trained_is_refused(backbone, sizes, changes, message):
    with pytest.raises(UsageError, match=message):
        make(dataclasses.replace(CONFIG, **changes), backbone=backbone, sizes=sizes)


def run_method(rank, images):
    """Queues and keys after an update with BatchNorm's running statistics."""
    from sslbench.distributed.collectives import gather, world_size

    world = world_size()
    mine = [torch.from_numpy(v)[rank * 4 // world : (rank + 1) * 4 // world].float() for v in images]
    method, setup, _ = make(images_per_update=4, batch_size=len(mine[0]), world=world)
    method.eval()
    value = method(Batch(tuple(mine), None, torch.arange(len(mine[0]))), step_of(0, setup)).value
    everyone = gather(method._new_keys[0])
    method.after_update(step_of(0, setup))
    return [everyone.numpy(), gather(value[None]).mean().numpy(), method.queue.numpy(), method.dense_queue.numpy()]


def test_two_processes_shuffle_and_do_what_one_does():
    images = [random_rows(4, 3, 64, 64, seed=seed) for seed in (0, 1)]
    alone = run_method(0, images)
    for results in two_processes.run(run_method, images):
        for ours, wanted in zip(results, alone, strict=True):
            np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)
