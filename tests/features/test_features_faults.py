"""Faults while features are extracted: images that change, disks that fail or are full, kills before any operation."""

import dataclasses
import errno
import itertools
import multiprocessing
import os
import signal
import sys
import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.full_disk import files_up_to
from helpers.waiting import SECONDS
from PIL import Image
from torch import nn

from sslbench.backbones.backbone import Backbone, Kind
from sslbench.backbones.layers import resolve_layers
from sslbench.data.images import Files
from sslbench.data.loading import loader
from sslbench.data.open import open_data
from sslbench.data.source import Source
from sslbench.errors import DataError, StoreError
from sslbench.features import job, partial
from sslbench.features.array import ExtractSettings
from sslbench.features.extract import extract
from sslbench.features.job import ExtractionJob
from sslbench.preprocessing import Preprocessing
from sslbench.targets.none import Unlabelled

N = 10
CPU = ExtractSettings(torch.device("cpu"), batch_size=3, workers=0)
SKIP = dataclasses.replace(CPU, on_error="skip")
FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def backbone():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = {"map": nn.Conv2d(3, 128, 4, 4), "mean": nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())}
    module = nn.Sequential(OrderedDict(layers)).eval().requires_grad_(False)
    return Backbone("small", Kind(users=True), module, Preprocessing(16, (16, 16)), {}, "mean")


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(N):
        Image.fromarray(rng.integers(0, 255, (18, 16, 3), dtype=np.uint8)).save(folder / f"{i:02d}.png")
    return folder


def source_of(folder, kind=Files):
    names = tuple(sorted(file.name for file in folder.glob("*.png")))
    labels = Unlabelled(len(names))
    return Source("pictures", names, labels, kind(names, str(folder)))


def run(backbone, source, root, settings=CPU, progress=None, layers=("mean",)):
    chosen = resolve_layers(backbone, layers)
    return extract(backbone, source, chosen, settings, root=root, split="all", progress=progress)


def features(backbone, source, root, settings=CPU):
    return run(backbone, source, root, settings).features["mean"].x


def complete(root):
    return list(root.glob("*/*.npy"))


@pytest.mark.parametrize("on_error", ["stop", "skip"])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_that_changes_after_it_was_hashed_is_not_stored_under_the_old_hash(
    backbone, pictures, tmp_path, monkeypatch, workers, on_error
):
    settings = dataclasses.replace(CPU, workers=workers, on_error=on_error)
    whole = features(backbone, source_of(pictures), tmp_path / "whole")
    changed, before = pictures / "04.png", (pictures / "04.png").read_bytes()
    real = loader.batches

    def others_write(*arguments, **options):
        Image.new("RGB", (18, 16), "red").save(changed)
        return real(*arguments, **options)

    monkeypatch.setattr(loader, "batches", others_write)
    with pytest.raises(DataError, match=r"1 of 10 images.*\n.*04\.png: .*has changed since it was hashed"):
        run(backbone, source_of(pictures), tmp_path / "store", settings)
    assert not complete(tmp_path / "store")
    monkeypatch.undo()
    changed.write_bytes(before)
    again = run(backbone, source_of(pictures), tmp_path / "store", settings)
    assert again.decoded == 1, "what was extracted is kept"
    assert np.allclose(again.features["mean"].x, whole, atol=1e-5)


def test_a_changed_member_of_an_archive_is_not_stored_under_the_old_hash(backbone, pictures, tmp_path, monkeypatch):
    import zipfile

    archive = tmp_path / "pictures.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:
        for file in sorted(pictures.iterdir()):
            packed.write(file, f"class/{file.name}")
    (source,) = open_data(str(archive)).values()
    real = loader.batches

    def others_write(*arguments, **options):
        batches = real(*arguments, **options)
        yield next(batches)  # the archive is open from here on
        stamp = archive.stat()
        content = bytearray(archive.read_bytes())
        archive.write_bytes(bytes(content))  # in place: the handle sees it
        os.utime(archive, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 10**9))
        yield from batches

    monkeypatch.setattr(loader, "batches", others_write)
    with pytest.raises(DataError, match="has changed since it was opened"):
        run(backbone, source, tmp_path / "store", SKIP)
    assert not complete(tmp_path / "store")


def test_files_that_are_touched_or_copied_back_are_still_the_same(pictures):
    images = source_of(pictures).images
    images.digests()
    content = (pictures / "03.png").read_bytes()
    os.utime(pictures / "03.png")
    assert images.read(3) == content
    (pictures / "03.png").unlink()
    (pictures / "03.png").write_bytes(content)
    chosen = images.select(np.array([3, 5]))
    assert chosen.read(0) == content
    (pictures / "05.png").write_bytes(content)
    with pytest.raises(OSError, match="has changed since it was hashed"):
        chosen.read(1)


class Failing(Files):
    """Files of which some cannot be read for a while."""

    failing = frozenset()

    def read(self, index):
        if self.paths[index] in self.failing:
            raise OSError(errno.EIO, "Input/output error")
        return super().read(index)


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_a_disk_that_fails_for_a_while_removes_no_image_for_good(backbone, pictures, tmp_path, monkeypatch, on_error):
    settings = dataclasses.replace(CPU, on_error=on_error)
    source = source_of(pictures, Failing)
    monkeypatch.setattr(Failing, "failing", {"02.png", "07.png"})
    with pytest.raises(DataError, match="2 of 10 images") as caught:
        run(backbone, source, tmp_path / "store", settings)
    assert "02.png: cannot be read (Input/output error)" in str(caught.value)
    assert "Run the same command again" in str(caught.value)
    monkeypatch.undo()
    again = run(backbone, source, tmp_path / "store", settings)
    assert (again.decoded, again.unreadable) == (2, [])
    assert np.allclose(again.features["mean"].x, features(backbone, source, tmp_path / "other"), atol=1e-5)


def test_a_disk_that_is_gone_ends_the_run_soon(backbone, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "MANY_UNREAD", 3)
    monkeypatch.setattr(Failing, "failing", {f"{i:02d}.png" for i in range(1, N)})
    with pytest.raises(DataError, match="5 of 10 images"):
        run(backbone, source_of(pictures, Failing), tmp_path, SKIP)


class Unhashed(Files):
    """Files of which one could not be read when they were hashed."""

    def digests(self):
        digests = super().digests()
        digests[4] = 0
        object.__setattr__(self, "_hashed", None)
        return digests


def test_an_image_that_could_not_be_hashed_is_not_stored_when_it_can_be_read(backbone, pictures, tmp_path):
    with pytest.raises(DataError, match=r"04\.png: was unreadable when it was hashed"):
        run(backbone, source_of(pictures, Unhashed), tmp_path / "store", SKIP)
    assert not complete(tmp_path / "store")


def test_a_layer_that_left_out_other_images_is_not_put_beside_the_first(backbone, pictures, tmp_path):
    (pictures / "02.png").write_bytes(b"no image")
    source = source_of(pictures)
    entry = run(backbone, source, tmp_path / "store", SKIP).entry
    listed = (entry.folder / "index.csv").read_bytes()
    (entry.folder / "skipped.csv").write_text("id,path,reason\n05.png,05.png,odd\n")
    with pytest.raises(StoreError, match="skip different images: "):
        run(backbone, source, tmp_path / "store", SKIP, layers=("map",))
    assert (entry.folder / "index.csv").read_bytes() == listed


CHANGES = {f"os.{name}" for name in ("mkdir", "remove", "rename", "rmdir", "link", "symlink", "truncate", "utime")}
"""Events of the interpreter; replacing a file is a rename."""


def _watch(folder, act):
    """Call a function before each change that this thread makes below a folder, with its kind and the file's name."""

    def before(operation, *words):
        if threading.current_thread() is threading.main_thread():
            for word in words:
                if str(folder) in str(word):
                    act(operation, Path(str(word)).name)
                    return

    def on_event(event, arguments):
        if arguments[2] & (os.O_ACCMODE | os.O_CREAT) if event == "open" else event in CHANGES:
            before(event, *(a for a in arguments if isinstance(a, str | os.PathLike)))

    def told(function):
        def call(descriptor, *arguments):
            before(function.__name__, Path(f"/proc/self/fd/{descriptor}").readlink())
            return function(descriptor, *arguments)

        return call

    os.pwrite, os.posix_fallocate, os.fsync = map(told, (os.pwrite, os.posix_fallocate, os.fsync))
    sys.addaudithook(on_event)


def _list_operations(folder, work, queue):
    found = []
    _watch(folder, lambda *kind: found.append(kind))
    work(folder)
    queue.put(found)


def _die_at(number, folder, work):
    """Kill this process before its nth operation on files below a folder."""
    count = itertools.count()
    _watch(folder, lambda *_: next(count) == number and os.kill(os.getpid(), signal.SIGKILL))
    work(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc to see which file an operation is on")
@pytest.mark.parametrize(
    ("broken", "every"), [(True, False), *(pytest.param(each, True, marks=pytest.mark.long) for each in (False, True))]
)
def test_a_kill_before_any_operation_on_a_file_loses_nothing(backbone, pictures, tmp_path, monkeypatch, broken, every):
    """The first and the last operation of every kind on every file, or each of them; a broken image adds a list."""
    if broken:
        (pictures / "02.png").write_bytes(b"no image")
    monkeypatch.setattr(job, "FLUSH_SECONDS", 0.0)
    settings = dataclasses.replace(SKIP, batch_size=6)
    source = source_of(pictures)
    whole = features(backbone, source, tmp_path / "whole", settings)
    listed = sorted(file.name for file in next((tmp_path / "whole").iterdir()).iterdir())

    def work(root):
        run(backbone, source_of(pictures), root, settings)

    queue = FORK.SimpleQueue()
    process = FORK.Process(target=_list_operations, args=(tmp_path / "listed", work, queue))
    process.start()
    process.join(SECONDS)
    assert process.exitcode == 0
    operations = queue.get()
    firsts, lasts = (
        {kind: n for n, kind in order} for order in (reversed(list(enumerate(operations))), enumerate(operations))
    )
    chosen = range(len(operations)) if every else sorted({*firsts.values(), *lasts.values()})
    assert len(chosen) > 12
    for number in chosen:
        root = tmp_path / f"store{number}"
        process = FORK.Process(target=_die_at, args=(number, root, work))
        process.start()
        process.join(SECONDS)
        assert process.exitcode == -signal.SIGKILL
        found = run(backbone, source, root, settings)
        assert np.allclose(found.features["mean"].x, whole, atol=1e-5), operations[number]
        assert len(found.unreadable) == int(broken)
        left = {file.name for file in found.entry.folder.iterdir() if not file.name.endswith(".tmp")}
        assert left == set(listed), operations[number]


def _interrupted(backbone, source, root):
    """A store with an extraction of which the first 6 rows are done."""

    def stop(done, total):
        if done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="the features extracted so far are kept; the same command continues"):
        run(backbone, source, root, progress=stop)
    (rows,) = root.glob("*/*.partial")
    return rows


def test_an_interrupted_extraction_keeps_every_batch(backbone, pictures, tmp_path):
    _interrupted(backbone, source_of(pictures), tmp_path)
    assert run(backbone, source_of(pictures), tmp_path).decoded == 4


@pytest.mark.parametrize(
    ("damage", "decoded"), [("zeroed rows", 6), ("cut off", N), ("progress cut off", N), ("flipped bit", 5)]
)
def test_damaged_rows_of_an_interrupted_run_are_made_again(backbone, pictures, tmp_path, caplog, damage, decoded):
    source = source_of(pictures)
    rows = _interrupted(backbone, source, tmp_path / "store")
    content, row_bytes = bytearray(rows.read_bytes()), 128 * 4
    first = len(content) - N * row_bytes
    if damage == "zeroed rows":
        content[first + 2 * row_bytes : first + 4 * row_bytes] = bytes(2 * row_bytes)
    elif damage == "flipped bit":
        content[first + 5 * row_bytes + 7] ^= 4
    elif damage == "cut off":
        del content[-3:]
    else:
        progress = rows.with_suffix(".progress")
        progress.write_bytes(progress.read_bytes()[:-1])
    rows.write_bytes(bytes(content))
    found = run(backbone, source, tmp_path / "store")
    assert found.decoded == decoded
    assert "damaged" in caplog.text
    assert np.allclose(found.features["mean"].x, features(backbone, source, tmp_path / "other"), atol=1e-5)


def test_rows_that_change_on_the_disk_before_they_are_published_are_noticed(backbone, pictures, tmp_path, monkeypatch):
    source = source_of(pictures)
    real = ExtractionJob.close

    def close_and_damage(self):
        real(self)
        (rows,) = self.entry.folder.glob("*.partial")
        rows.write_bytes(rows.read_bytes()[:-600] + bytes(600))

    monkeypatch.setattr(ExtractionJob, "close", close_and_damage)
    with pytest.raises(StoreError, match=r"2 rows of .* are damaged"):
        run(backbone, source, tmp_path)
    monkeypatch.undo()
    assert run(backbone, source, tmp_path).decoded == 2


def _with_small_files(backbone, source, root, queue):
    with files_up_to(4096):
        try:
            run(backbone, source, root)
            queue.put("it has room")
        except StoreError as error:
            queue.put(str(error))


def test_room_is_reserved_before_the_first_image_is_decoded(backbone, pictures, tmp_path):
    """A limit of the size of a file stands for a small disk: both refuse to reserve the room."""
    queue = FORK.Queue()
    process = FORK.Process(target=_with_small_files, args=(backbone, source_of(pictures), tmp_path, queue))
    process.start()
    process.join(SECONDS)
    assert process.exitcode == 0
    message = queue.get()
    assert "mean.npy.partial.tmp: " in message and "5,120 are needed" in message and "--store" in message
    assert not list(tmp_path.glob("*/*.partial*"))


@pytest.mark.parametrize("call", [1, 2, 3, 6])
def test_a_disk_that_fills_up_ends_the_run_and_the_same_command_continues(
    backbone, pictures, tmp_path, monkeypatch, call
):
    source = source_of(pictures)
    real, count = os.pwrite, 0

    def pwrite(descriptor, content, place):
        nonlocal count
        count += 1
        if count == call:
            return real(descriptor, content[:7], place)
        if count > call:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, content, place)

    monkeypatch.setattr(job, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(partial.os, "pwrite", pwrite)
    with pytest.raises(
        StoreError, match=r"cannot write .*/mean\.npy\.(partial|progress): .*; [\d,]+ bytes are free in "
    ):
        run(backbone, source, tmp_path / "store")
    monkeypatch.undo()
    found = run(backbone, source, tmp_path / "store")
    assert found.decoded <= N - (call - 1) // 2 * 3
    assert np.allclose(found.features["mean"].x, features(backbone, source, tmp_path / "other"), atol=1e-5)


def test_a_layer_that_cannot_be_created_is_one_message_and_leaves_nothing(tmp_path, monkeypatch):
    with pytest.raises(StoreError, match="No such file"):
        partial.create(tmp_path / "missing" / "mean.npy", (6, 4), np.dtype(np.float32))

    def refuse(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(StoreError, match=r"mean\.npy\.progress: No space left"):
        partial.create(tmp_path / "mean.npy", (6, 4), np.dtype(np.float32))
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_cannot_reserve_room_is_used_all_the_same(backbone, pictures, tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    whole = features(backbone, source_of(pictures), tmp_path / "whole")
    monkeypatch.setattr(partial.os, "posix_fallocate", refuse)
    assert np.allclose(features(backbone, source_of(pictures), tmp_path / "store"), whole, atol=1e-5)


def change_first_row(content):
    """Set one value of the first row to 1."""
    return content[:200] + np.float32(1).tobytes() + content[204:]


def claim_half(content):
    return content.replace(b"<f4", b"<f2")


def claim_columns_first(content):
    return content.replace(b"False", b"True ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_first_row, "its rows differ from the written ones"),
        (claim_half, "holds float16, its meta.json says float32"),
        (claim_columns_first, "in an order other than"),
        (lambda content: content + b"x", "its rows differ from the written ones"),
    ],
)
def test_complete_features_that_a_disk_has_changed_are_refused(backbone, pictures, tmp_path, change, message):
    file = only_file(run(backbone, source_of(pictures), tmp_path / "store"))
    content = file.read_bytes()
    assert change(content) != content
    file.write_bytes(change(content))
    with pytest.raises(StoreError, match=message) as raised:
        run(backbone, source_of(pictures), tmp_path / "store")
    assert str(file.parent) in str(raised.value.remedy)


def test_each_layer_keeps_its_checksum(backbone, pictures, tmp_path):
    (pictures / "99.png").write_bytes(b"not an image")  # left out, so that the rows are compacted
    first = run(backbone, source_of(pictures), tmp_path / "store", SKIP)
    assert set(first.entry.meta()["checksums"]) == {"mean.npy"}
    run(backbone, source_of(pictures), tmp_path / "store", SKIP, layers=("mean", "map"))
    assert set(first.entry.meta()["checksums"]) == {"mean.npy", "map.npy"}
    for file in first.entry.folder.glob("*.npy"):
        content = file.read_bytes()
        file.write_bytes(change_first_row(content))
        with pytest.raises(StoreError, match="differ from the written ones"):
            first.entry.read(file.stem)
        file.write_bytes(content)
        first.entry.read(file.stem)


def only_file(extraction):
    (file,) = extraction.entry.folder.glob("*.npy")
    return file


def test_rows_are_written_as_clients_of_nfs_need_it(tmp_path, monkeypatch):
    """Files that are open for reading too, or written later, go back in whole pages, with rows of other machines."""
    complete, flags = tmp_path / "x.npy", []
    partial.create(complete, (6, 4), np.dtype(np.float32))
    own = os.open
    monkeypatch.setattr(os, "open", lambda path, flag, *rest: flags.append(flag) or own(path, flag, *rest))
    for alone in (True, False):
        flags.clear()
        layer = partial.opened(complete, 6, np.dtype(np.float32), alone=alone)
        layer.write(np.arange(3), np.ones((3, 4), np.float32))
        layer.flush()
        writing = [flag for flag in flags if flag & os.O_ACCMODE != os.O_RDONLY]
        assert len(writing) >= 3 and all(flag & os.O_ACCMODE == os.O_WRONLY for flag in writing)
        assert all(bool(flag & os.O_DSYNC) is not alone for flag in writing)
    assert layer.verify(np.arange(6)) == 0 and layer.states().tolist() == [1, 1, 1, 0, 0, 0]
