"""Changed versions of JPEGs against a loop that decodes each once and changes it: `make bench`."""

import functools
import io
import time

import numpy as np
import pytest
from PIL import Image

from sslbench.data.changed import ImageChange, versions_of, without_geometry
from sslbench.data.corruptions import corrupt
from sslbench.data.loading import loader
from sslbench.data.open import open_data
from sslbench.data.sharded import by_shard
from sslbench.preprocessing import Preprocessing
from sslbench.targets.none import Unlabelled

pytestmark = pytest.mark.speed

NAMES = ("contrast", "brightness", "gaussian_noise", "jpeg_compression")
PHOTOS, SIDE, ROUNDS = 24, 1200, 5


def changed(image, rng, *, name, severity):
    return corrupt(image, name, severity, rng)


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(PHOTOS):
        small = Image.fromarray(rng.integers(0, 255, (30, 30, 3), dtype=np.uint8))
        small.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(tmp_path / f"{i:02d}.jpg", quality=90)
    return tmp_path


def seconds(function):
    best = np.inf
    for _ in range(ROUNDS):
        start = time.process_time()
        function()
        best = min(best, time.process_time() - start)
    return best


def test_all_versions_against_decoding_once_and_changing(photos, capsys):
    changes = [
        ImageChange(f"{name}-{s}", functools.partial(changed, name=name, severity=s), "1")
        for name in NAMES
        for s in (1, 3)
    ]
    source = open_data(str(photos))["all"]
    assert source.target.name == Unlabelled.name
    preprocessing = Preprocessing(resize=(224, 224), crop=None)
    versions = versions_of(source, changes, preprocessing, 0)
    order = by_shard(versions.images, np.arange(len(versions)))

    def ours():
        found = loader.batches(versions, order, without_geometry(preprocessing), batch_size=64, workers=0)
        assert sum(len(batch.indices) for batch in found) == PHOTOS * len(changes)

    def loop():
        for file in sorted(photos.glob("*.jpg")):
            picture = np.asarray(Image.open(io.BytesIO(file.read_bytes())).convert("RGB").resize((224, 224)))
            for name in NAMES:
                for severity in (1, 3):
                    corrupt(picture, name, severity, np.random.default_rng(0))

    def every_time():
        for change in changes:
            single = versions_of(source, [change], preprocessing, 0)
            list(loader.batches(single, np.arange(PHOTOS), without_geometry(preprocessing), batch_size=64, workers=0))

    own, plain, repeated = seconds(ours), seconds(loop), seconds(every_time)
    with capsys.disabled():
        print(f"\n{len(changes)} versions: {own:.2f} s, a plain loop {plain:.2f} s, decoding for each {repeated:.2f} s")
    assert own <= 1.25 * plain and own < 0.8 * repeated
