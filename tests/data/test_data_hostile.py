"""Containers made to write or read elsewhere: nothing but their images is read, and nothing at all is written."""

import tarfile
import zipfile

import numpy as np
import pytest
from helpers.containers import add_to_tar, pictures, png, write_folder

from sslbench.data.loading.loader import scan
from sslbench.data.open import open_data
from sslbench.errors import SslbenchError


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
        bad = {index for index, _, _ in scan(source, np.arange(len(source)), workers=0)}
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
    assert scan(source, np.arange(len(source)), workers=0) == []
    assert tree_of(tmp_path) == before
