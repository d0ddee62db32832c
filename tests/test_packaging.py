"""What pip installs is what lies in the repository: no file lost, nothing beside `sslbench`."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("benchmarks", "configs", "model_converters")


def data_files(folder):
    """Name below the repository -> content, of one of the folders that hold data."""
    files = sorted(f for f in (ROOT / folder).rglob("*") if f.is_file() and "__pycache__" not in f.parts)
    return {f.relative_to(ROOT).as_posix(): f.read_bytes() for f in files}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The content of the wheel as pip would make it from the sdist: name -> bytes."""
    for needed in ("build", "hatchling"):
        pytest.importorskip(needed, reason=f"{needed} is not installed (pip install sslbench[dev])")
    out = tmp_path_factory.mktemp("dist")
    # Without further options `build` makes the sdist, and the wheel from it: both lists of files are under test.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(out.glob("*.tar.gz"))) == 1
    (path,) = out.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_data_file_is_in_the_wheel_byte_for_byte(wheel, folder):
    expected = data_files(folder)
    assert expected, f"{folder}/ holds no file"
    packed = {name: content for name, content in wheel.items() if name.startswith(f"sslbench/_data/{folder}/")}
    assert {name.removeprefix("sslbench/_data/") for name in packed} == set(expected)
    assert all(packed[f"sslbench/_data/{name}"] == content for name, content in expected.items())


def test_every_module_and_template_is_in_the_wheel(wheel):
    files = (f for f in (ROOT / "sslbench").rglob("*") if f.is_file() and "__pycache__" not in f.parts)
    expected = {f.relative_to(ROOT).as_posix(): f.read_bytes() for f in files}
    assert len(expected) > 20
    assert {name: content for name, content in wheel.items() if name in expected} == expected


def test_the_wheel_says_that_it_has_types(wheel):
    assert "sslbench/py.typed" in wheel


def test_the_wheel_holds_one_package_and_nothing_else(wheel):
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"sslbench"} and len(tops) == 2
    assert any(name.endswith("/entry_points.txt") and b"sslbench" in content for name, content in wheel.items())
    assert any("/licenses/LICENSE" in name for name in wheel)


def test_a_checkout_has_no_copy_of_the_data_and_the_data_is_no_code():
    assert not (ROOT / "sslbench" / "_data").exists()
    for folder in FOLDERS:
        assert list((ROOT / folder).rglob("*.py")) == []
