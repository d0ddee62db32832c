"""Drawn textures: repeatable, without a pixel in both splits, and told apart by texture alone."""

import itertools

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter

from sslbench.data.formats import textures
from sslbench.data.formats.textures import IMAGES, VIDEOS
from sslbench.data.open import open_as, open_data
from sslbench.errors import UsageError
from sslbench.targets.label_maps import Foreground, LabelMaps
from sslbench.targets.objects import Boxes
from sslbench.targets.videos import Parts, Poses, Tracks


@pytest.fixture
def redrawn():
    """Forget the textures before and after a test that changes the pictures."""
    textures._surface.cache_clear()
    yield
    textures._surface.cache_clear()


def test_the_same_seed_draws_the_same_pixels(redrawn):
    first, video = textures.draw_images(4, test=True), textures.draw_videos(1, frames=3)
    textures._surface.cache_clear()
    again, video_again = textures.draw_images(4, test=True), textures.draw_videos(1, frames=3)
    assert np.array_equal(first.images, again.images) and np.array_equal(first.masks, again.masks)
    assert np.array_equal(video.frames, video_again.frames) and np.array_equal(video.ids, video_again.ids)
    assert not np.array_equal(first.images, textures.draw_images(4, test=True, seed=1).images)
    assert not np.array_equal(first.masks, textures.draw_images(4, test=False).masks)


def _noise_pictures(folder, left, right):
    """Write pictures of noise whose halves have seeds of their own; return a replacement of `_file`."""
    folder.mkdir()

    def file(picture):
        path = folder / picture.file
        rows = picture.box[3] if picture.box else 200
        columns = (
            picture.box[0] + picture.box[2] if picture.box else 200
        )  # the middle of the box is that of the picture
        halves = [np.random.default_rng(seed).integers(0, 256, (rows, columns // 2)) for seed in (left, right)]
        Image.fromarray(np.concatenate(halves, axis=1).astype(np.uint8)).save(path.with_suffix(".png"))
        return path.with_suffix(".png")

    return file


def test_train_and_test_have_no_pixel_of_a_picture_in_common(redrawn, monkeypatch, tmp_path):
    drawn = {}
    for left, right in ((0, 1), (0, 2), (3, 1)):
        textures._surface.cache_clear()
        monkeypatch.setattr(textures, "_file", _noise_pictures(tmp_path / f"{left}{right}", left, right))
        drawn[left, right] = [textures.draw_images(6, test=test).images for test in (False, True)]
        drawn[left, right].append(textures.draw_videos(1, frames=3).frames)
    for part, same, other in ((0, (0, 2), (3, 1)), (1, (3, 1), (0, 2)), (2, (3, 1), (0, 2))):
        assert np.array_equal(drawn[0, 1][part], drawn[same][part])
        assert not np.array_equal(drawn[0, 1][part], drawn[other][part])


def test_masks_are_the_pixels_of_the_objects(monkeypatch):
    objects = set(textures._OBJECTS.values())
    signs = {True: 1, False: -1}
    monkeypatch.setattr(
        textures, "_surface", lambda picture, test: np.full((90, 90), signs[picture in objects], dtype=np.float32)
    )
    monkeypatch.setattr(
        textures, "_lit", lambda generator, value, tint: np.repeat(value[..., None] > 0, 3, axis=2).astype(np.uint8)
    )
    drawn, videos = textures.draw_images(12, test=False), textures.draw_videos(2, frames=4)
    assert np.array_equal(drawn.images[..., 0] == 1, drawn.masks)
    assert np.mean((videos.frames[..., 0] == 1) != (videos.ids > 0)) < 1e-3  # where objects meet, both share a pixel


def test_every_face_of_the_images_says_the_same():
    samples, boxes = open_data(IMAGES), open_as(IMAGES, Boxes)
    maps, masks = open_as(IMAGES, LabelMaps), open_as(IMAGES, Foreground)
    assert list(samples) == list(boxes) == list(maps) == list(masks) == ["train", "test"]
    for split, source in samples.items():
        assert np.ptp(np.bincount(source.target.values)) == 0
        assert source.ids == boxes[split].ids == maps[split].ids == masks[split].ids
        for i in (0, len(source) - 1):
            label = maps[split].target.maps.read_map(i).semantic
            name = source.target.classes[source.target.values[i]]
            assert set(np.unique(label)) == {0, maps[split].target.classes.index(name)}
            (mask,) = boxes[split].bitmaps_of(i, *label.shape)
            left, upper, right, lower = boxes[split].target.boxes_of(i)[0].astype(int)
            assert np.array_equal(mask, label > 0) and mask[upper:lower, left:right].sum() == mask.sum()
            assert np.array_equal(masks[split].target.maps.read_map(i).semantic == 1, mask)


def test_other_seeds_have_other_images_and_another_fingerprint():
    one, other = (open_data(name)["test"] for name in (IMAGES, f"{IMAGES}-seed1"))
    assert one.fingerprint() != other.fingerprint()
    assert one.fingerprint() == open_data(f"{IMAGES}-seed0")["test"].fingerprint()
    assert (
        open_as(VIDEOS, Tracks, Parts, Poses)["test"].fingerprint()
        != open_as(f"{VIDEOS}-seed1", Tracks, Parts, Poses)["test"].fingerprint()
    )


def test_objects_of_videos_leave_their_place():
    videos = open_as(VIDEOS, Tracks, Parts, Poses)["test"].target
    for rows in videos.frames:
        first, last = videos.masks.read_ids(rows[0]), videos.masks.read_ids(rows[-1])
        for k in (1, 2):
            common, either = np.sum((first == k) & (last == k)), np.sum((first == k) | (last == k))
            assert np.sum(first == k) > 300 and np.sum(last == k) > 300 and common < 0.2 * either


def _accuracy(train, test, features):
    """Return the share of test objects whose class mean of train is the nearest one."""
    x, y = (np.array([features(i, m) for i, m in zip(d.images, d.masks, strict=True)]) for d in (train, test))
    mean, scale = x.mean(axis=0), x.std(axis=0)
    centres = np.array([((x - mean) / scale)[train.classes == c].mean(axis=0) for c in range(len(textures.CLASSES))])
    distance = np.linalg.norm(((y - mean) / scale)[:, None] - centres, axis=2)
    return np.mean(distance.argmin(axis=1) == test.classes)


def _colours(image, mask):
    """Return the mean colour of an object."""
    return image[mask].mean(axis=0)


def _filters(image, mask):
    """Return the shares of the energy of an object in bands of frequency."""
    grey = image.mean(axis=2)
    smooth = [gaussian_filter(grey, sigma) for sigma in (0.7, 1, 1.4, 2, 2.8, 4, 5.6)]
    energy = [np.mean((fine - coarse)[mask] ** 2) for fine, coarse in itertools.pairwise(smooth)]
    return np.log(np.array(energy) / np.sum(energy))


def test_frequencies_tell_the_classes_apart_and_colours_do_not():
    by_filters, by_colours = [], []
    for seed in range(2):
        train, test = textures.draw_images(72, test=False, seed=seed), textures.draw_images(48, test=True, seed=seed)
        by_filters.append(_accuracy(train, test, _filters))
        by_colours.append(_accuracy(train, test, _colours))
    assert min(by_filters) > 0.5
    assert np.mean(by_colours) < 0.3  # one in six by chance, of 96 objects


def test_other_names_are_refused():
    for open_place, name, message in (
        (open_data, "textures:image", "no drawn textures 'textures:image'"),
        (open_data, "textures:images-seed", "textures:images-seed1"),
        (open_data, VIDEOS, "textures:videos holds no images"),
        (lambda place: open_as(place, LabelMaps), VIDEOS, "textures:videos holds no images"),
        (lambda place: open_as(place, Tracks), IMAGES, "textures:images holds no videos"),
    ):
        with pytest.raises(UsageError, match=message):
            open_place(name)
