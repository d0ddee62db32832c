"""Changed versions of images: decoded once, the same in any order, process and container, and found by their keys."""

import dataclasses
import functools
import pickle

import numpy as np
import pytest
from PIL import Image

from sslbench.data.changed import ImageChange, crop, rescale, rotate, versions_of, without_geometry
from sslbench.data.corruptions import corrupt
from sslbench.data.images import Arrays
from sslbench.data.loading import loader
from sslbench.data.open import open_data
from sslbench.data.sharded import by_shard
from sslbench.data.source import Source
from sslbench.preprocessing import Preprocessing
from sslbench.targets.none import Unlabelled

SMALL = Preprocessing(resize=36, crop=(32, 32))


def noisy(image, rng, *, severity):
    return corrupt(image, "gaussian_noise", severity, rng)


def turned(image, rng):
    return rotate(image, 90)


CHANGES = (
    *(ImageChange(f"noise-{s}", functools.partial(noisy, severity=s), "1") for s in (1, 3)),
    ImageChange("turn", turned, "1"),
)


@dataclasses.dataclass(frozen=True, eq=False)
class CountedArrays(Arrays):
    """Arrays that list the images that were read."""

    reads: list = dataclasses.field(default_factory=list)

    def read(self, index):
        self.reads.append(index)
        return super().read(index)


def source(n=7, side=40):
    array = np.random.default_rng(0).integers(0, 255, (n, side, side, 3), dtype=np.uint8)
    return Source("noise", tuple(f"{i:02d}" for i in range(n)), Unlabelled(n), CountedArrays(array, "noise"))


def pictures(versions, indices=None, workers=0):
    indices = by_shard(versions.images, np.arange(len(versions))) if indices is None else indices
    found = {}
    for batch in loader.batches(versions, indices, without_geometry(SMALL), batch_size=5, workers=workers):
        found |= dict(zip(batch.indices.tolist(), batch.images.numpy(), strict=True))
    return found


def test_every_image_is_decoded_once_for_all_versions():
    base = source()
    found = pictures(versions_of(base, CHANGES, SMALL, 0))
    assert len(found) == 21 and sorted(base.images.reads) == list(range(7))


def test_versions_are_the_same_in_any_order_process_and_selection():
    versions = versions_of(source(), CHANGES, SMALL, 0)
    found = pictures(versions)
    for other in (pictures(versions, np.arange(21)[::-1].copy()), pictures(versions, workers=2)):
        assert all(np.array_equal(found[i], other[i]) for i in range(21))
    chosen = versions.select([2, 9, 16])
    assert chosen.ids == tuple(versions.ids[i] for i in (2, 9, 16))
    for row, picture in pictures(chosen, np.arange(3)).items():
        assert np.array_equal(picture, found[(2, 9, 16)[row]])
    assert np.array_equal(chosen.images.digests(), versions.images.digests()[[2, 9, 16]])
    assert pickle.loads(pickle.dumps(versions.images)).path(20) == "noise[6] (turn)"  # noqa: S301 - its own


def test_rows_are_by_version_and_changes_are_made_after_resize_and_crop():
    base = source()
    versions = versions_of(base, CHANGES[::-1], SMALL, 0)
    assert versions.ids == tuple(sorted(versions.ids)) and versions.ids[7] == "noise-3/00"
    plain = {}
    for batch in loader.batches(base, np.arange(7), SMALL, batch_size=7, workers=0):
        plain = dict(zip(batch.indices.tolist(), batch.images.numpy(), strict=True))
    found = pictures(versions)
    for i in range(7):
        assert np.array_equal(found[14 + i], np.rot90(plain[i], axes=(1, 2)))
        assert 0 < np.abs(found[i].astype(int) - plain[i]).mean() < 40


def test_the_digest_is_of_content_change_seed_and_geometry():
    def fingerprint(base=None, changes=CHANGES, preprocessing=SMALL, seed=0):
        return versions_of(base or source(), changes, preprocessing, seed).images_fingerprint()

    known = fingerprint()
    assert fingerprint() == known
    changed = [
        fingerprint(seed=1),
        fingerprint(source(side=41)),
        fingerprint(changes=CHANGES[:2]),
        fingerprint(changes=[dataclasses.replace(change, code="2") for change in CHANGES]),
        fingerprint(preprocessing=dataclasses.replace(SMALL, resize=38)),
        fingerprint(preprocessing=dataclasses.replace(SMALL, interpolation="bicubic")),
    ]
    assert len({known, *changed}) == 7


def test_files_of_any_kind_have_versions_and_broken_ones_are_listed(tmp_path):
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (40, 40), dtype=np.uint8)).save(tmp_path / "grey.png")
    Image.fromarray(rng.integers(0, 65535, (40, 40), dtype=np.uint16)).save(tmp_path / "deep.png")
    Image.fromarray(rng.integers(0, 255, (40, 50, 4), dtype=np.uint8)).save(tmp_path / "alpha.png")
    (tmp_path / "zbroken.png").write_bytes(b"no picture")
    base = open_data(str(tmp_path))["all"]
    versions = versions_of(base, CHANGES, SMALL, 0)
    (batch,) = loader.batches(versions, np.arange(12), without_geometry(SMALL), batch_size=12, workers=0)
    assert batch.images.shape == (9, 3, 32, 32) and batch.images.numpy().std(axis=(1, 2, 3)).min() > 1
    assert [index for index, _, _ in batch.unreadable] == [3, 7, 11]
    assert versions.images.digests()[[0, 4, 8]].any(axis=1).all()


def test_joined_sources_have_versions(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.fromarray(np.full((40, 40, 3), ord(name), np.uint8)).save(tmp_path / name / f"{name}.png")
    joined = open_data(f"several:one={tmp_path / 'a'},two={tmp_path / 'b'}")["all"]
    found = pictures(versions_of(joined, CHANGES[2:], SMALL, 0))
    assert sorted(picture.mean() for picture in found.values()) == [ord("a"), ord("b")]


def test_geometry_keeps_what_it_should():
    picture = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    assert np.array_equal(rotate(picture, 360), picture) and np.array_equal(rotate(picture, -90), rotate(picture, 270))
    smooth = np.add.outer(np.arange(32), np.arange(32))[..., None].repeat(3, 2).astype(np.uint8) * 4
    there_and_back = rotate(rotate(smooth, 20), -20)[12:20, 12:20]
    assert np.abs(there_and_back.astype(int) - smooth[12:20, 12:20]).max() <= 4
    assert np.abs(rescale(smooth, 2.0)[12:20, 12:20].astype(float).std() * 2 - smooth[12:20, 12:20].std()) < 3
    part = crop(picture, 1.0, np.random.default_rng(0))
    assert np.array_equal(part, picture)


@pytest.mark.parametrize("shape", [(33, 48), (48, 33)])
def test_geometry_keeps_the_shape_of_any_picture(shape):
    picture = np.zeros((*shape, 3), np.uint8)
    rng = np.random.default_rng(0)
    assert {rotate(picture, 90).shape, rescale(picture, 0.3).shape, crop(picture, 0.2, rng).shape} == {(*shape, 3)}
