"""Samplers, batches of an epoch, transforms of one's own."""

import pickle
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import v2

from sslbench import config
from sslbench.data.decode.transforms import resize_and_crop
from sslbench.data.images import Arrays
from sslbench.data.labels import multi_labels, single_labels
from sslbench.data.loading.pretraining import TrainingData
from sslbench.data.loading.probing import EpochBatches, random_flip
from sslbench.data.loading.samplers import SAMPLERS, epoch_order, occurrences
from sslbench.data.source import Source
from sslbench.data.views import Augment, View
from sslbench.data.views.ops import make_view
from sslbench.errors import UsageError
from sslbench.preprocessing import Preprocessing
from sslbench.targets.classes import Classes
from sslbench.targets.none import Unlabelled

CLASSES = st.lists(st.integers(0, 5), min_size=1, max_size=120).map(lambda found: np.array(found, dtype=np.int64))
EPOCH = st.integers(0, 3)


def order_of(sampler, classes, epoch=0, seed=0):
    return epoch_order(sampler, len(classes), classes, seed=seed, epoch=epoch)


@settings(max_examples=100, deadline=None)
@given(CLASSES, EPOCH, st.sampled_from(["shuffled", "stratified"]))
def test_every_image_once(classes, epoch, sampler):
    assert sorted(order_of(sampler, classes, epoch)) == list(range(len(classes)))


@settings(max_examples=100, deadline=None)
@given(CLASSES, EPOCH)
def test_every_class_equally_often_and_every_image_of_a_class(classes, epoch):
    order = order_of("balanced", classes, epoch)
    assert len(order) == len(classes)
    present = np.unique(classes)
    per_class = np.bincount(classes[order], minlength=6)[present]
    assert per_class.max() - per_class.min() <= 1
    per_image = np.bincount(order, minlength=len(classes))
    for name in present:
        assert np.ptp(per_image[classes == name]) <= 1


WEIGHTS = st.lists(st.floats(0.01, 100), min_size=6, max_size=6).map(np.array)


@settings(max_examples=200, deadline=None)
@given(CLASSES, WEIGHTS, EPOCH)
def test_every_source_comes_by_its_weight_and_every_image_of_a_source_equally_often(origins, weights, epoch):
    order = epoch_order("weighted", len(origins), origins, seed=0, epoch=epoch, weights=weights)
    assert len(order) == len(origins)
    present = np.unique(origins)
    exact = weights[present] / weights[present].sum() * len(origins)
    shown = np.bincount(origins[order], minlength=6)[present]
    assert np.abs(shown - exact).max() < 1 + 1e-9
    per_image = np.bincount(order, minlength=len(origins))
    for name in present:
        assert np.ptp(per_image[origins == name]) <= 1


def test_over_the_epochs_the_shares_are_those_of_the_weights_and_every_image_is_shown():
    origins, weights = np.array([0] * 80 + [1] * 9 + [2] * 11), np.array([1.0, 3.3, 0.4])
    orders = [epoch_order("weighted", 100, origins, seed=3, epoch=e, weights=weights) for e in range(400)]
    shown = np.bincount(np.concatenate(orders), minlength=100)
    shares = np.array([shown[origins == name].sum() for name in range(3)]) / 400
    assert shares == pytest.approx(weights / weights.sum() * 100, abs=0.1)
    for name in range(3):
        part = shown[origins == name]
        assert part.min() > 0.6 * part.mean()


@settings(max_examples=100, deadline=None)
@given(CLASSES, EPOCH)
def test_a_stretch_has_nearly_the_shares_of_the_classes(classes, epoch):
    order = order_of("stratified", classes, epoch)
    n, present = len(classes), np.unique(classes)
    for name in present:
        so_far = np.cumsum(classes[order] == name)
        share = (classes == name).mean()
        # At any moment each class is ahead or behind by less than one image.
        assert np.abs(so_far - share * np.arange(1, n + 1)).max() <= 1 + share * len(present)


def test_over_the_epochs_every_image_of_a_frequent_class_is_shown():
    classes = np.array([0] * 90 + [1] * 10)
    shown = np.concatenate([order_of("balanced", classes, epoch) for epoch in range(40)])
    counts = np.bincount(shown, minlength=100)
    assert counts.min() > 0
    assert abs(counts[:90].sum() - counts[90:].sum()) <= 40
    assert np.ptp(counts[90:]) <= 40 and 8 < counts[:90].mean() < 40


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name != "shards"])  # test_data_sharded.py
def test_the_order_depends_on_seed_epoch_and_process_only(sampler):
    classes = np.arange(60) % 3
    first = order_of(sampler, classes)
    assert np.array_equal(first, order_of(sampler, classes))
    for other in ({"epoch": 1}, {"seed": 1}):
        assert not np.array_equal(first, order_of(sampler, classes, **other))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=40).map(lambda x: np.array(x, dtype=np.int64)))
def test_occurrences_are_counted(order):
    assert occurrences(order).tolist() == [order[:i].tolist().count(v) for i, v in enumerate(order.tolist())]


VIEWS = Augment((View(1, 8, scale=(0.2, 0.9)),))


def source_of(names):
    pixels = np.random.default_rng(0).integers(0, 256, (len(names), 12, 12, 3), dtype=np.uint8)
    ids = tuple(f"{i:04d}" for i in range(len(names)))
    images, origin = Arrays(pixels, "photos"), {"origin": tuple(names)}
    return Source("photos/", ids, single_labels(list(names)), images, attributes=origin)


def shown(data, start, stop):
    return [(batch.indices.numpy(), batch.views[0].numpy()) for batch in data.batches(start, stop)]


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name != "shards"])  # test_data_sharded.py
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_is_continued_sees_what_an_uninterrupted_one_sees(sampler, workers):
    data = TrainingData(source_of("a" * 20 + "b" * 5 + "c" * 2), VIEWS, batch_size=4, sampler=sampler)
    again = TrainingData(
        data_source := source_of("a" * 20 + "b" * 5 + "c" * 2), VIEWS, batch_size=4, sampler=sampler, workers=workers
    )
    assert len(data_source) == 27
    whole, rest = shown(data, 0, 15), shown(again, 8, 15)
    for (i, x), (j, y) in zip(whole[8:], rest, strict=True):
        assert np.array_equal(i, j) and np.array_equal(x, y)


def test_an_image_that_comes_again_in_an_epoch_has_other_views():
    data = TrainingData(source_of("a" * 11 + "b"), VIEWS, batch_size=12, sampler="balanced")
    ((indices, views),) = shown(data, 0, 1)
    of_b = views[indices == 11]
    assert len(of_b) == 6
    assert len({view.tobytes() for view in of_b}) > 3


@pytest.mark.parametrize("sampler", ["balanced", "stratified"])
def test_each_batch_of_three_processes_is_one_of_a_single_process(sampler):
    source = source_of("a" * 40 + "b" * 8)
    alone = TrainingData(source, VIEWS, batch_size=24, sampler=sampler)
    ranks = [TrainingData(source, VIEWS, batch_size=8, rank=r, world=3, sampler=sampler) for r in range(3)]
    parts = [shown(data, 0, 4) for data in ranks]
    for number, (whole, views) in enumerate(shown(alone, 0, 4)):
        for rank in range(3):
            assert (parts[rank][number][0] == whole[rank::3]).all()
            assert (parts[rank][number][1] == views[rank::3]).all()


@pytest.mark.parametrize("labels", [Unlabelled(6), multi_labels([["a"]] * 6)])
def test_without_one_class_per_image_it_is_refused(labels):
    source = Source("photos/", tuple("abcdef"), labels, source_of("aabbcc").images)
    with pytest.raises(UsageError, match="sampler=balanced needs images with one class each"):
        TrainingData(source, VIEWS, batch_size=2, sampler="balanced")
    with pytest.raises(UsageError, match=r"no sampler 'balance'.*balanced"):
        TrainingData(source, VIEWS, batch_size=2, sampler="balance")


N, BATCH = 23, 6


def source(n=N):
    array = np.random.default_rng(0).integers(0, 256, (n, 9, 12, 3)).astype(np.uint8)
    labels = Classes(("a", "b"), np.arange(n, dtype=np.int64) % 2)
    return Source("pictures", tuple(f"{i:03d}" for i in range(n)), labels, Arrays(array, "pictures"))


def batches(start=0, stop=6, *, piece=100, view=None, data=None, **options):
    view = View(size=8) if view is None else view
    options = {"seed": 0, **options}
    data = EpochBatches(source() if data is None else data, view, size=8, batch_size=BATCH, piece=piece, **options)
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
        ((piece,), *_) = batches(view=random_flip(flip), resized=preprocessing)
        for index, view in zip(piece.indices.tolist(), piece.views[0], strict=True):
            image = torch.from_numpy(pictures.images.read(index)).permute(2, 0, 1)
            wanted = resize_and_crop(image, preprocessing)
            assert torch.equal(view, wanted.flip(2) if flip else wanted)


def test_a_batch_holds_at_most_all_images_and_at_least_one_of_each_process():
    data = EpochBatches(source(), View(size=8), size=8, batch_size=24, piece=8, seed=0)
    assert (data.batch_size, data.steps_per_epoch) == (23, 1)
    with pytest.raises(UsageError, match="too small for 8 processes"):
        EpochBatches(source(), View(size=8), size=8, batch_size=6, piece=8, seed=0, share=(7, 8))


WHOLE = {"size": 8, "scale": (1.0, 1.0), "ratio": (1.0, 1.0), "flip": 0.0}
COLOURS = ("jitter", "grayscale", "blur", "solarize")


def picture(seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (3, 8, 8), dtype=np.uint8))


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's own."""
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def halved(picture, *, times=1): return picture // 2**times\n"
        "def noisy(picture): return picture + torch.randint(3, picture.shape, dtype=picture.dtype)\n"
        "def broken(picture): raise KeyError('key')\n"
        "def cut(picture): return picture[:, :4]\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("mine", None)


def test_a_transform_has_its_place_in_the_order(mine):
    image = picture()
    inverted = {"name": "v2.RandomInvert", "p": 1.0}
    halved = {"name": "mine:halved", "times": 2}
    first = make_view(View(**WHOLE, order=(inverted, *COLOURS, halved)))(image)
    assert torch.equal(first, (255 - image) // 4)
    second = make_view(View(**WHOLE, order=(halved, *COLOURS, inverted)))(image)
    assert torch.equal(second, 255 - image // 4)
    between = View(**WHOLE, order=("jitter", halved, "grayscale", "blur", "solarize"), grayscale=1.0)
    assert make_view(between)(image).max() < 64


@pytest.mark.parametrize(
    ("entry", "transform"),
    [
        ({"name": "v2.RandomPosterize", "bits": 3, "p": 0.5}, v2.RandomPosterize(3, p=0.5)),
        ({"name": "v2.RandomPerspective", "distortion_scale": 0.4}, v2.RandomPerspective(0.4)),
        (
            {"name": "v2.RandomApply", "p": 0.5, "transforms": [{"name": "v2.RandomRotation", "degrees": 30}]},
            v2.RandomApply([v2.RandomRotation(30)], p=0.5),
        ),
        ("v2.RandomAutocontrast", v2.RandomAutocontrast()),
    ],
)
def test_it_is_torchvisions_with_the_same_random_numbers(entry, transform):
    make = pickle.loads(pickle.dumps(make_view(View(**WHOLE, order=(*COLOURS, entry)))))  # noqa: S301
    plain = make_view(View(**WHOLE))
    for seed in range(8):
        torch.manual_seed(seed)
        found = make(picture(seed))
        torch.manual_seed(seed)
        assert torch.equal(found, transform(plain(picture(seed))))


def test_pictures_of_16_bits_are_changed_in_floats():
    image = picture().float() * 0.9
    found = make_view(View(**WHOLE, order=(*COLOURS, {"name": "v2.RandomInvert", "p": 1.0})))(image)
    torch.testing.assert_close(found, 255 - image)


def test_building_a_view_leaves_the_random_numbers_alone(mine):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    make_view(View(**WHOLE, order=(*COLOURS, "mine:noisy", "v2.RandomInvert")))
    assert torch.equal(torch.get_rng_state(), state)


def test_what_does_not_work_is_refused_before_training(mine):
    for entry, message in (
        ("v2.RandomPosteriz", "no transform 'RandomPosteriz'.*RandomPosterize"),
        ({"name": "v2.RandomPosterize", "bit": 4}, "does not take {'bit': 4}"),
        ({"name": "v2.Resize", "size": 4}, r"gives \(3, 4, 4\) torch.uint8 for a picture \(3, 8, 8\)"),
        ({"name": "v2.MixUp", "num_classes": 3}, "v2.MixUp fails on a picture"),
        ("mine:broken", "mine:broken fails on a picture of shape .* KeyError"),
        ("mine:cut", r"mine:cut gives \(3, 4, 8\)"),
        ("mine:number", "a int, not a function"),
        ("mine:missing", "has no 'missing'"),
        ({"name": "mine:halved", "amount": 2}, "unexpected keyword argument 'amount'"),
    ):
        with pytest.raises(UsageError, match=f"(?s){message}"):
            make_view(View(**WHOLE, order=(*COLOURS, entry)))


def test_an_order_that_cannot_be_meant_is_refused():
    for values, message in (
        ({"views": [{"order": [*COLOURS, "blurr"]}]}, "no operation 'blurr'"),
        ({"views": [{"order": [*COLOURS, {"bits": 4}]}]}, "no operation ''"),
        ({"views": [{"order": [*COLOURS, {"name": "v2.RandomApply", "transforms": 5}]}]}, "should be a list, not 5"),
        ({"views": [{"order": [*COLOURS, {"name": "v2.RandomApply", "transforms": [5]}]}]}, "no operation '5'"),
        ({"views": [{"order": [*COLOURS[:3], {"name": "solarize", "p": 1}]}]}, "solarize takes no arguments here"),
        ({"views": [{"order": ["v2.RandomInvert"]}]}, "order should name"),
        ({"views": [{}], "code": ["mine:halved"]}, "no view's order names 'mine:halved'"),
    ):
        with pytest.raises(UsageError, match=message):
            config.build(Augment, values, "test")
