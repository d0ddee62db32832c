"""Files that are none, and hostile ones."""

import inspect
import os
import signal
import socket
import sys
import tarfile
import zipfile

import numpy as np
import pytest
from helpers import containers
from helpers.containers import add_to_tar, pictures, png, write_folder

from sslbench.data import regular
from sslbench.data.formats import folder
from sslbench.data.images import UNREADABLE_DIGEST, Files
from sslbench.data.loading import loader
from sslbench.data.loading.loader import survey
from sslbench.data.maps.layout import walk
from sslbench.data.open import open_data
from sslbench.errors import SslbenchError, UsageError


@pytest.fixture(autouse=True)
def _soon():
    """A read that blocks fails here after 20 seconds."""

    def blocked(number, frame):
        raise TimeoutError("blocked")

    before = signal.signal(signal.SIGALRM, blocked)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def special(root):
    """Name -> what the message says of it."""
    os.mkfifo(root / "pipe.png")
    (root / "zero.png").symlink_to("/dev/zero")
    (root / "link_to_pipe.png").symlink_to("pipe.png")
    (root / "folder.png").mkdir()
    with (root / "sparse.png").open("wb") as file:
        file.truncate(20_000_000_000)
    kinds = {"pipe.png": "a named pipe", "zero.png": "a device", "link_to_pipe.png": "a named pipe"}
    return {name: f"{kind}, not a regular file" for name, kind in kinds.items()} | {
        "folder.png": "a folder, not a regular file",
        "sparse.png": "20,000,000,000 bytes, more than the limit of 4,294,967,296 for an image file",
    }


def test_only_regular_files_are_read_and_hashed(tmp_path):
    reasons = special(tmp_path)
    (tmp_path / "good.png").write_bytes(containers.png(1))
    names = (*reasons, "good.png")
    for images in (Files(names, str(tmp_path)), Files(tuple(str(tmp_path / name) for name in names))):
        digests = images.digests()
        assert [row.tobytes() == UNREADABLE_DIGEST for row in digests] == [True] * len(reasons) + [False]
        for index, reason in enumerate(reasons.values()):
            with pytest.raises(OSError, match=reason):
                images.read(index)
        assert images.read(len(reasons)) == containers.png(1)


def test_a_socket_is_no_image(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s.png"))
        with pytest.raises(OSError, match=r"s\.png"):
            Files(("s.png",), str(tmp_path)).read(0)


def test_a_table_that_lists_them_has_unreadable_images(tmp_path):
    reasons = special(tmp_path)
    (tmp_path / "t.csv").write_text("path,label\n" + "".join(f"{name},a\n" for name in reasons if name != "folder.png"))
    (source,) = open_data(str(tmp_path / "t.csv")).values()
    found = loader.survey(source, np.arange(len(source)), 0).unreadable
    assert {path.rpartition("/")[2]: reason for _, path, reason in found} == {
        name: f"cannot be read ({reason})" for name, reason in reasons.items() if name != "folder.png"
    }


def test_a_file_that_does_not_fit_into_memory_is_an_unreadable_image(tmp_path):
    class Large:
        name = str(tmp_path / "a.png")

        def read(self):
            raise MemoryError

        def fileno(self):
            return descriptor

    descriptor = os.open(tmp_path / "a.png", os.O_RDWR | os.O_CREAT)
    os.truncate(descriptor, 3_000_000)
    with pytest.raises(OSError, match="3,000,000 bytes do not fit into memory"):
        regular.read_all(Large())
    os.close(descriptor)


def test_pipes_in_a_folder_are_left_out_and_named(tmp_path):
    (tmp_path / "good.png").write_bytes(containers.png(1))
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    (tmp_path / "gone.png").symlink_to("nowhere")
    (source,) = open_data(str(tmp_path)).values()
    assert source.ids == ("gone.png", "good.png"), "a link to nothing is an image that cannot be read"
    assert any("not regular files: pipe.png, zero.png" in note for note in source.notes)


def test_links_in_a_circle_are_left_out_and_named(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(containers.png(1))
    (tmp_path / "a" / "self.png").symlink_to("self.png")
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "a" / "across").symlink_to("../b")
    (tmp_path / "b" / "across").symlink_to("../a")
    (source,) = open_data(str(tmp_path)).values()
    assert source.ids == ("a/1.png", "a/across/1.png", "b/1.png", "b/across/1.png")
    (note,) = [note for note in source.notes if "themselves" in note]
    for name in ("a/self.png", "a/up", "a/across/across"):
        assert name in note


@pytest.fixture
def deep(tmp_path):
    """Images and masks below 200 folders, and a limit of calls within calls that is far below that."""
    inner = "d/" * 200
    for name in ("images", "masks"):
        os.makedirs(tmp_path / name / inner)  # noqa: PTH103 - calls itself less often than the method of a Path
        (tmp_path / name / inner / "1.png").write_bytes(containers.png(1))
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 120)
    yield tmp_path
    sys.setrecursionlimit(before)


def test_folders_may_lie_in_each_other_at_any_depth(deep):
    found = folder._FolderContent()
    folder._walk(str(deep / "images"), found)
    assert found.images == ["d/" * 200 + "1.png"]


def test_label_maps_may_lie_at_any_depth(deep):
    assert walk(deep / "masks") == ["d/" * 200 + "1.png"]


@pytest.mark.parametrize("name", ["pipe", "pipe.csv", "pipe.json", "pipe.tar", "pipe.png"])
def test_a_data_location_that_is_a_pipe_is_refused(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(UsageError, match="is a named pipe, neither a file nor a folder"):
        open_data(str(tmp_path / name))


def test_a_data_location_that_is_a_link_to_itself_is_refused(tmp_path):
    (tmp_path / "self").symlink_to("self")
    with pytest.raises(UsageError, match="is a link to itself"):
        open_data(str(tmp_path / "self"))


def hostile_tar(path, secret):
    with tarfile.open(path, "w") as tar:
        add_to_tar(tar, "ant/0.png", png(0))
        add_to_tar(tar, "bee/0.png", png(1))
        add_to_tar(tar, str(secret.parent / "ant" / "absolute.png"), png(2))
        add_to_tar(tar, "ant/../../up.png", png(3))
        for kind, name in ((tarfile.SYMTYPE, "symbolic"), (tarfile.LNKTYPE, "hard")):
            add_to_tar(tar, f"ant/{name}.png", b"", type=kind, linkname=str(secret))
        for kind, name in ((tarfile.CHRTYPE, "device"), (tarfile.FIFOTYPE, "pipe"), (tarfile.BLKTYPE, "disk")):
            add_to_tar(tar, f"ant/{name}.png", b"", type=kind, devmajor=1, devminor=5)


def hostile_zip(path, secret):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ant/0.png", png(0))
        archive.writestr("bee/0.png", png(1))
        link = zipfile.ZipInfo("ant/link.png")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, str(secret))


def tree_of(folder):
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.mark.parametrize(("write", "name"), [(hostile_tar, "t.tar"), (hostile_zip, "t.zip")])
def test_links_devices_and_names_outside_give_no_image(write, name, tmp_path):
    secret = tmp_path / "secret.png"
    secret.write_bytes(png(9))
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / name, secret)
    before = tree_of(tmp_path)
    try:
        (source,) = open_data(str(tmp_path / "in" / name)).values()
    except SslbenchError as error:
        assert "Traceback" not in str(error)
    else:
        bad = {index for index, _, _ in survey(source, np.arange(len(source)), workers=0).unreadable}
        read = {source.ids[i]: source.images.read(i) for i in range(len(source)) if i not in bad}
        assert {"ant/0.png": png(0), "bee/0.png": png(1)} == read
    assert tree_of(tmp_path) == before


def test_a_zip_with_a_name_outside_is_refused_and_writes_nothing(tmp_path):
    (tmp_path / "in").mkdir()
    with zipfile.ZipFile(tmp_path / "in" / "t.zip", "w") as archive:
        archive.writestr("ant/0.png", png(0))
        archive.writestr("../../evil.png", png(1))
    before = tree_of(tmp_path)
    with pytest.raises(SslbenchError, match="would lie outside"):
        open_data(str(tmp_path / "in" / "t.zip"))
    assert tree_of(tmp_path) == before


def test_reading_a_folder_changes_nothing_in_it(tmp_path):
    write_folder(tmp_path, pictures())
    before = tree_of(tmp_path)
    (source,) = open_data(str(tmp_path)).values()
    source.fingerprint()
    assert survey(source, np.arange(len(source)), workers=0).unreadable == ()
    assert tree_of(tmp_path) == before
