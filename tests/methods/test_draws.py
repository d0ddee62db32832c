"""Random numbers of images, which do not depend on processes and batches."""

import pytest
import torch
from helpers import runs

from sslbench.methods import mae
from sslbench.methods._parts.masks import image_generators, update_generator, view_by_view
from sslbench.train.method import Batch, Step


def numbers(seed, indices, index):
    batch = Batch((), None, torch.tensor(indices))
    return [torch.rand(2, generator=each).tolist() for each in image_generators(seed, batch, Step(index, 20, 10))]


def test_an_image_has_the_same_numbers_wherever_it_stands():
    assert numbers(0, [5, 3, 8], 4) == [numbers(0, [image], 4)[0] for image in (5, 3, 8)]


def test_images_updates_and_seeds_have_their_own_numbers():
    rows = [*numbers(0, [5, 3], 4), *numbers(0, [5, 3], 5), *numbers(1, [5, 3], 4), *numbers(0, [5], -10)]
    assert len({tuple(row) for row in rows}) == 7
    shared = [torch.rand(1, generator=update_generator(0, Step(index, 20, 10))).item() for index in (4, 4, 5)]
    assert shared[0] == shared[1] != shared[2]


@pytest.mark.parametrize("views", [1, 2])
def test_rows_of_views_stand_as_the_views_do(views):
    images = [torch.randn(4, 3) for _ in range(views)]
    assert torch.equal(view_by_view(torch.stack(images).unbind(1)), torch.cat(images))


def test_the_seed_of_a_run_is_that_of_its_draws(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(mae, "image_generators", lambda seed, *rest: seen.append(seed) or image_generators(seed, *rest))
    runs.run("mae", tmp_path / "run", limit=16, seed=7, epochs=1)
    assert set(seen) == {7}
