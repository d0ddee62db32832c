"""One pip line installs it, and the command that it installs works outside of the repository.

The libraries that it needs are those of this environment: a test has no network. All of them are wheels.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_a_fresh_environment_runs_the_demo(tmp_path):
    pytest.importorskip("hatchling", reason="hatchling is not installed (pip install sslbench[dev])")
    venv.create(tmp_path / "v", with_pip=True)
    python = tmp_path / "v" / "bin" / "python"
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    Path(packages, "libraries.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", str(ROOT)]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [tmp_path / "v" / "bin" / "sslbench", "demo"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "top1" in done.stdout


@pytest.mark.parametrize(
    ("module", "words", "install"),
    [
        ("pyarrow", ("--weights", "pixels", "--data", "a.parquet"), "pip install 'sslbench[parquet]'"),
        ("h5py", ("--labels", "a.h5", "--features", "a.h5"), "pip install h5py"),
    ],
)
def test_a_library_that_is_not_there_is_one_message_with_the_line_that_installs_it(
    tmp_path, monkeypatch, sslbench, module, words, install
):
    monkeypatch.chdir(tmp_path)
    for name in [module, *(name for name in sys.modules if name.startswith(f"{module}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    Path(words[-1]).write_bytes(b"some content")
    code, out, err = sslbench("eval", "knn", *words)
    assert code in (1, 2) and out == "" and install in err and "Traceback" not in err, err
