"""Batches that processes share: every image at most once per epoch, the same ones however many processes there are."""

import numpy as np
import pytest
import torch

from sslbench.data.decode.transforms import resize_and_crop
from sslbench.data.images import Arrays
from sslbench.data.loading.probing import EpochBatches, evaluation_view
from sslbench.data.source import Source
from sslbench.data.views import View
from sslbench.errors import UsageError
from sslbench.preprocessing import Preprocessing
from sslbench.targets.classes import Classes

N, BATCH = 23, 6


def source(n=N):
    array = np.random.default_rng(0).integers(0, 256, (n, 9, 12, 3)).astype(np.uint8)
    labels = Classes(("a", "b"), np.arange(n, dtype=np.int64) % 2)
    return Source("pictures", tuple(f"{i:03d}" for i in range(n)), labels, Arrays(array, "pictures"))


def batches(start=0, stop=6, *, piece=100, share=(0, 1), seed=0, workers=0, view=None):
    view = View(size=8) if view is None else view
    data = EpochBatches(source(), view, size=8, batch_size=BATCH, piece=piece, seed=seed, share=share, workers=workers)
    return list(data.batches(start, stop))


def indices(batch):
    return torch.cat([piece.indices for piece in batch]).tolist()


def test_an_epoch_has_full_batches_of_different_images_and_epochs_differ():
    found = [indices(batch) for batch in batches(0, 9)]
    assert [len(batch) for batch in found] == [BATCH] * 9
    epochs = [[index for batch in found[3 * e : 3 * e + 3] for index in batch] for e in range(3)]
    assert all(len(set(epoch)) == 18 for epoch in epochs)
    assert epochs[0] != epochs[1] and set().union(*epochs) == set(range(N)), "those left over are others each time"


def test_labels_belong_to_the_images():
    for (piece,) in batches():
        assert piece.labels.tolist() == [i % 2 for i in piece.indices.tolist()]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_several_processes_have_the_batches_of_one_between_them(world):
    whole = batches()
    parts = [batches(share=(rank, world)) for rank in range(world)]
    for step, (one,) in enumerate(whole):
        views = dict(zip(one.indices.tolist(), one.views[0], strict=True))
        shown = [
            (index, view)
            for part in parts
            for piece in part[step]
            for index, view in zip(piece.indices.tolist(), piece.views[0], strict=True)
        ]
        assert sorted(index for index, _ in shown) == sorted(views)
        assert all(torch.equal(view, views[index]) for index, view in shown)


def test_pieces_workers_and_where_it_starts_make_no_difference():
    whole = batches()
    for other in (batches(piece=4), batches(piece=1), batches(workers=2), batches(0, 2) + batches(2, 6)):
        assert len(other) == len(whole)
        for one, two in zip(whole, other, strict=True):
            assert indices(one) == indices(two)
            assert torch.equal(one[0].views[0], torch.cat([piece.views[0] for piece in two]))
    assert all(len(batch) == 2 for batch in batches(piece=4))


def test_the_seed_decides_order_and_views():
    assert [indices(b) for b in batches(seed=1)] != [indices(b) for b in batches(seed=0)]


def test_the_evaluation_transform_as_a_view():
    preprocessing = Preprocessing(resize=8, crop=(8, 8))
    pictures = source()
    for flip in (0.0, 1.0):
        ((piece,), *_) = batches(view=evaluation_view(preprocessing, flip))
        for index, view in zip(piece.indices.tolist(), piece.views[0], strict=True):
            image = torch.from_numpy(pictures.images.read(index)).permute(2, 0, 1)
            wanted = resize_and_crop(image, preprocessing)
            assert torch.equal(view, wanted.flip(2) if flip else wanted)


def test_a_batch_holds_at_most_all_images_and_at_least_one_of_each_process():
    data = EpochBatches(source(), View(size=8), size=8, batch_size=24, piece=8, seed=0)
    assert (data.batch_size, data.steps_per_epoch) == (23, 1)
    with pytest.raises(UsageError, match="too small for 8 processes"):
        EpochBatches(source(), View(size=8), size=8, batch_size=6, piece=8, seed=0, share=(7, 8))
