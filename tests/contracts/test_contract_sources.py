"""What every kind of data location promises, tested on every kind there is."""

import inspect
import json
import pickle

import containers
import numpy as np
import pytest
from PIL import Image

from sslbench.config import describe
from sslbench.data.open import open_data
from sslbench.data.source import Source
from sslbench.errors import UsageError
from sslbench.names import find_module, list_names

SOURCES = list_names("source")


def pictures(root):
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in ("b", "a"):
            (root / split / name).mkdir(parents=True)
            for i in (10, 9, 2):
                Image.fromarray(rng.integers(0, 255, (4, 5, 3), dtype=np.uint8)).save(root / split / name / f"{i}.png")


def make_folder(root):
    pictures(root)
    return str(root)


def make_table(root):
    pictures(root)
    files = sorted(root.rglob("*.png"))
    lines = [f"{f.relative_to(root)},{f.parent.name},{f.parent.parent.name}" for f in files]
    (root / "t.csv").write_text("\n".join(["path,label,split", *lines]) + "\n")
    return str(root / "t.csv")


def make_coco(root):
    pictures(root)
    files = sorted(root.rglob("*.png"))
    images = [
        {"id": i, "file_name": str(f.relative_to(root)), "split": f.parent.parent.name} for i, f in enumerate(files)
    ]
    annotations = [
        {"id": i, "image_id": i, "category_id": "ab".index(f.parent.name) + 1, "bbox": [0, 0, 1, 1]}
        for i, f in enumerate(files)
    ]
    categories = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    manifest = {"images": images, "annotations": annotations, "categories": categories}
    (root / "m.json").write_text(json.dumps(manifest))
    return str(root / "m.json")


def make_torchvision(root):
    """FashionMNIST's own file format (IDX), gzipped, with six images a split."""
    import gzip

    raw = root / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for prefix in ("train", "t10k"):
        images = rng.integers(0, 255, (6, 28, 28), dtype=np.uint8)
        labels = np.arange(6, dtype=np.uint8)
        header = bytes([0, 0, 8, 3]) + b"".join(int(n).to_bytes(4, "big") for n in images.shape)
        (raw / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + images.tobytes()))
        header = bytes([0, 0, 8, 1]) + (6).to_bytes(4, "big")
        (raw / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(header + labels.tobytes()))
    return f"torchvision:FashionMNIST@{root}"


def make_vissl(root):
    """VISSL's folder of lists, with the images of both splits beside it."""
    pictures(root)
    for split in ("train", "test"):
        files = sorted((root / split).rglob("*.png"))
        np.save(root / f"{split}_images.npy", np.array([str(f.relative_to(root)) for f in files]))
        np.save(root / f"{split}_labels.npy", np.array(["ab".index(f.parent.name) for f in files]))
    return f"vissl:{root}"


def make_hf(root):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    return containers.write_saved(root, containers.pictures())


def make_zip(root):
    names = containers.pictures().items()
    splits = {f"{split}/{name}": sample for split in ("train", "test") for name, sample in names}
    return containers.write_zip(root, splits)


def make_tfds(root):
    names = list(containers.pictures())
    return containers.write_tfds(root, containers.pictures(), splits={"train": names[:7], "test": names[7:]})


def make_several(root):
    names = list(containers.pictures())
    for part, chosen in (("one", names[::2]), ("two", names[1::2])):
        samples = {name: containers.pictures()[name] for name in chosen}
        (root / part).mkdir()
        containers.write_folder(
            root / part, {f"{split}/{n}": s for split in ("train", "test") for n, s in samples.items()}
        )
    (root / "both.yaml").write_text("sources: {one: {data: one, weight: 2}, two: two/}\n")
    return str(root / "both.yaml")


MAKE = {
    "folder": make_folder,
    "table": make_table,
    "coco": make_coco,
    "torchvision": make_torchvision,
    "sklearn": lambda root: "sklearn:digits",
    "voc": lambda root: containers.write_voc(root, containers.pictures(), splits=("trainval", "test")),
    "vissl": make_vissl,
    "tar": lambda root: containers.write_shards(root, containers.pictures()),
    "zip": make_zip,
    "tsv": lambda root: containers.write_tsv(root, containers.pictures()),
    "tfds": make_tfds,
    "hf": make_hf,
    "kwcoco": lambda root: "kwcoco:shapes8-32",
    "several": make_several,
}
MULTI_LABEL = ("voc", "kwcoco")


def test_the_sources_are_the_expected_ones():
    assert set(SOURCES) == set(MAKE)


@pytest.mark.parametrize("name", SOURCES)
def test_a_location_is_recognised_by_exactly_one_source(tmp_path, name):
    spec = MAKE[name](tmp_path)
    taking = [find_module("source", other) for other in SOURCES if find_module("source", other).recognises(spec)]
    sure = [module for module in taking if not getattr(module, "LAST_RESORT", False)]
    assert (sure or taking) == [find_module("source", name)]


@pytest.mark.parametrize("name", SOURCES)
def test_options_say_what_they_mean_and_unknown_ones_are_refused(tmp_path, name):
    module = find_module("source", name)
    if hasattr(module, "Options"):
        assert all(row.meaning for row in describe(module.Options))
        assert "options" in inspect.signature(module.open).parameters
    with pytest.raises(UsageError, match=r"unknown key 'no_such_option'|takes no options"):
        open_data(f"{MAKE[name](tmp_path)}?no_such_option=1")


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_is_complete_ordered_picklable_and_the_same_every_time(tmp_path, name):
    spec = MAKE[name](tmp_path)
    splits, again = open_data(spec), open_data(spec)
    assert set(splits) in ({"train", "test"}, {"all"})
    for split, source in splits.items():
        assert isinstance(source, Source) and len(source) > 0
        assert list(source.ids) == sorted(set(source.ids))
        assert source.labels.kind == ("multi" if name in MULTI_LABEL else "single")
        assert len(source.labels.classes) >= 2
        assert source.images.digests().shape == (len(source), 16)
        assert source.fingerprint() == again[split].fingerprint()
        copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own bytes
        first, second = source.images.read(1), copy.images.read(1)
        assert np.array_equal(np.frombuffer(bytes(first), np.uint8), np.frombuffer(bytes(second), np.uint8))
        part = source.select([0, 2])
        assert part.ids == (source.ids[0], source.ids[2])
        assert part.images.path(1) == source.images.path(2)
        assert part.fingerprint() != source.fingerprint()
        assert find_module("source", name).__doc__
