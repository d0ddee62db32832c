"""Reading tar shards in the order of sampler=shards, and indexing them, against a loop over tarfile: `make bench`."""

import io
import tarfile
import time

import numpy as np
import pytest

from sslbench.data.formats import tar
from sslbench.data.loading.samplers import epoch_order
from sslbench.data.open import open_data
from sslbench.data.sharded import shards_of

pytestmark = pytest.mark.speed

SHARDS, EACH, BYTES, REPEATS = 8, 500, 40_000, 5


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Shards of images of 40 kB (a JPEG of 256 pixels at quality 90 has about as much), with labels."""
    folder = tmp_path_factory.mktemp("shards")
    rng = np.random.default_rng(0)
    files = [folder / f"s-{k:04d}.tar" for k in range(SHARDS)]
    for k, file in enumerate(files):
        with tarfile.open(file, "w") as archive:
            for i in range(EACH):
                for part, content in (("jpg", rng.bytes(BYTES)), ("cls", str(i % 10).encode())):
                    member = tarfile.TarInfo(f"{k:04d}{i:06d}.{part}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    return files


def plain(paths):
    """Bytes of all images, as a loop over tarfile reads them, one shard after the other."""
    total = 0
    for path in paths:
        with tarfile.open(path, "r|") as archive:
            for member in archive:
                if member.name.endswith(".jpg") and (file := archive.extractfile(member)) is not None:
                    total += len(file.read())
    return total


def ours(images, order):
    return sum(len(images.read(i)) for i in order)


def seconds(function, *arguments):
    started = time.process_time()
    result = function(*arguments)
    return time.process_time() - started, result


def test_reading_in_the_order_of_sampler_shards_against_a_loop_over_tarfile(paths):
    images = open_data(f"{paths[0].parent}/s-{{0000..{SHARDS - 1:04d}}}.tar")["all"].images
    rows = epoch_order("shards", len(images), None, seed=0, epoch=0, shards=shards_of(images)).tolist()
    times = {"ours": [], "plain": []}
    for _ in range(REPEATS):
        ours_s, ours_bytes = seconds(ours, images, rows)
        plain_s, plain_bytes = seconds(plain, paths)
        assert ours_bytes == plain_bytes == SHARDS * EACH * BYTES
        times["ours"].append(ours_s)
        times["plain"].append(plain_s)
    best = {name: min(found) for name, found in times.items()}
    rate = SHARDS * EACH / best["ours"]
    ratio = best["plain"] / best["ours"]
    print(
        f"\nReading {SHARDS} shards of {EACH} images of {BYTES // 1000} kB, CPU time: {rate:,.0f} images/s, "
        f"a loop over tarfile x{1 / ratio:.2f} of that (aim: not faster)"
    )
    assert ratio > 1


def test_indexing_a_shard_against_a_loop_over_its_members(paths):
    def members():
        with tarfile.open(paths[0]) as archive:
            return len(archive.getnames())

    built = min(seconds(tar.build, paths[0], "a.tar")[0] for _ in range(REPEATS))
    listed = min(seconds(members)[0] for _ in range(REPEATS))
    print(
        f"\nIndexing a shard of {EACH} images with labels: {1e6 * built / EACH:.0f} us per image, "
        f"x{built / listed:.2f} of tarfile.getnames (aim 2: it also reads every label and looks at the end)"
    )
    assert built < 4 * listed
