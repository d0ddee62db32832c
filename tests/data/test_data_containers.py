"""The same images give the same ids, labels and pixels whatever they are packed in; damage is said."""

import io
import pickle
import warnings

import numpy as np
import pytest
from helpers import containers
from helpers.containers import pictures
from PIL import Image
from sample_data import FORMATS, sample_module

from sslbench.data.loading.loader import survey
from sslbench.data.open import open_data
from sslbench.errors import SslbenchError

# A folder is what the others are compared with; a VOC tree has several labels.
PLAIN = [name for name in FORMATS if name not in ("folder", "voc")]
WRITE = {kind: write for name in PLAIN for kind, write in sample_module(name).WRITE.items()}


@pytest.fixture
def write(tmp_path):
    def write_one(kind, n=12):
        (tmp_path / kind).mkdir()
        return WRITE[kind](tmp_path / kind, pictures(n))

    return write_one


def pixels(source):
    return [np.array(Image.open(io.BytesIO(source.images.read(i)))) for i in range(len(source))]


@pytest.mark.parametrize("kind", WRITE)
def test_every_container_gives_what_the_folder_gives(tmp_path, write, kind):
    (tmp_path / "folder").mkdir()
    folder = open_data(containers.write_folder(tmp_path / "folder", pictures()))["all"]
    (source,) = open_data(write(kind)).values()
    assert source.ids == folder.ids
    assert [source.target.text(i) for i in range(12)] == [folder.target.text(i) for i in range(12)]
    assert source.target.classes == folder.target.classes
    assert all(np.array_equal(a, b) for a, b in zip(pixels(source), pixels(folder), strict=True))
    assert np.array_equal(source.images.digests(), folder.images.digests())
    assert source.fingerprint() == folder.fingerprint()


def test_a_voc_tree_gives_the_same_images_as_several_labels(tmp_path):
    (tmp_path / "folder").mkdir()
    folder = open_data(containers.write_folder(tmp_path / "folder", pictures()))["all"]
    (source,) = open_data(containers.write_voc(tmp_path, pictures(), splits=("train",))).values()
    assert source.ids == folder.ids
    assert [source.target.text(i) for i in range(12)] == [folder.target.text(i) for i in range(12)]
    assert source.images_fingerprint() == folder.images_fingerprint()


@pytest.mark.parametrize("kind", WRITE)
def test_it_is_read_in_worker_processes_and_after_pickling(write, kind):
    (source,) = open_data(write(kind)).values()
    source.images.read(0)  # the container is open in this process too when the workers start
    assert survey(source, np.arange(12), workers=2).unreadable == ()
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own bytes
    assert copy.images.read(7) == source.images.read(7)
    assert copy.images.path(3) == source.images.path(3)


PACKED = ("tar", "tar shards", "zip", "tsv", "tfds", "hf", "hf saved")


@pytest.mark.parametrize("kind", PACKED)
def test_a_container_that_changes_after_it_was_opened_is_an_error_and_not_another_image(tmp_path, write, kind):
    (source,) = open_data(write(kind)).values()
    for path in container_files(tmp_path / kind):
        path.write_bytes(path.read_bytes() + b"more")
    assert len(survey(source, np.arange(12), workers=0).unreadable) == 12


def container_files(root):
    endings = (".tar", ".zip", ".tsv", ".parquet", ".arrow")
    return [p for p in sorted(root.rglob("*")) if p.name.endswith(endings) or ".tfrecord-" in p.name]


def try_to_use(spec):
    """Opens the data and reads every image: either an error for the user, or a list of those that cannot be read."""
    try:
        sources = open_data(spec)
    except SslbenchError as error:
        assert str(error).strip() and "Traceback" not in str(error)
        return error
    surveys = [survey(source, np.arange(len(source)), workers=0) for source in sources.values()]
    unreadable = [bad for found in surveys for bad in found.unreadable]
    for source in sources.values():
        assert source.images.digests().shape == (len(source), 16)
    return unreadable


@pytest.mark.parametrize("kind", PACKED)
def test_a_container_cut_off_anywhere_is_refused_or_its_images_are_listed(tmp_path, write, kind):
    spec = write(kind, 4)
    path = container_files(tmp_path / kind)[0]
    whole = path.read_bytes()
    whole_n = sum(map(len, open_data(spec).values()))
    silent = []
    for at in np.linspace(0, len(whole) - 1, 25).astype(int):
        path.write_bytes(whole[:at])
        found = try_to_use(spec)
        if found == [] and sum(map(len, open_data(spec).values())) != whole_n:
            silent.append(at)
    # Rows are whole or not there, and nothing in a list of rows says how many there should be.
    assert not silent or kind == "tsv"


@pytest.mark.parametrize("kind", PACKED)
def test_flipped_bytes_never_end_in_a_traceback(tmp_path, write, kind):
    spec = write(kind, 4)
    path = container_files(tmp_path / kind)[0]
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    noticed = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for at in rng.integers(0, len(whole), 30):
            damaged = bytearray(whole)
            damaged[at] ^= int(rng.integers(1, 256))
            path.write_bytes(bytes(damaged))
            found = try_to_use(spec)
            noticed += isinstance(found, SslbenchError) or bool(found)
    assert noticed, "none of 30 damaged files was refused or had an unreadable image"


@pytest.mark.parametrize("kind", ["tar", "zip", "tsv", "tfds"])
def test_an_index_is_kept_and_a_damaged_one_is_made_again(tmp_path, write, kind, monkeypatch, caplog):
    from sslbench.data.containers import index

    monkeypatch.setattr(index, "SETTLED_NS", -1)
    spec = write(kind)
    before = open_data(spec)
    kept = sorted((tmp_path_of_cache() / "indexes").iterdir())
    assert kept
    monkeypatch.setattr("sslbench.data.containers.index._save", lambda *_: pytest.fail("the index was made again"))
    assert open_data(spec).keys() == before.keys()
    monkeypatch.undo()
    monkeypatch.setenv("SSLBENCH_CACHE", str(kept[0].parent.parent))
    for path in kept:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(bytes(content))
    again = open_data(spec)
    assert "is damaged; it is rebuilt" in caplog.text
    assert [s.fingerprint() for s in again.values()] == [s.fingerprint() for s in before.values()]
    assert not list((tmp_path / kind).rglob("*.idx"))


@pytest.mark.parametrize("kind", ["tar", "zip", "tsv", "tfds"])
def test_a_container_that_was_replaced_is_indexed_anew(tmp_path, write, kind, monkeypatch):
    from sslbench.data.containers import index

    monkeypatch.setattr(index, "SETTLED_NS", -1)
    spec = write(kind)
    (before,) = open_data(spec).values()
    others = {name: (containers.png(99), label) for name, (_, label) in pictures().items()}
    for path in sorted((tmp_path / kind).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    WRITE[kind](tmp_path / kind, others)
    (after,) = open_data(spec).values()
    assert after.ids == before.ids
    assert all(after.images.read(i) == containers.png(99) for i in range(12))


def tmp_path_of_cache():
    from sslbench import paths

    return paths.cache_dir()
