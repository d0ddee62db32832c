"""OpenMP's threads sleep while they wait, unless the user decides."""

import os
import subprocess
import sys

import pytest

# libgomp prints what it has read from the environment as it is loaded, by torch or by this.
SHOW = """
import ctypes, importlib.util, pathlib, sys
from sslbench.cli import main
assert "torch" not in sys.modules, "it is too late once OpenMP is loaded"
try:
    main.main(["--version"])
except SystemExit:
    folder = pathlib.Path(importlib.util.find_spec("torch").origin).parent
    for library in [*folder.glob("lib/libgomp*.so*"), *folder.parent.glob("torch.libs/libgomp*.so*")][:1]:
        ctypes.CDLL(str(library))
"""


@pytest.mark.parametrize(
    ("own", "wanted"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "active"}, "ACTIVE"), ({"GOMP_SPINCOUNT": "77"}, None)]
)
@pytest.mark.skipif(sys.platform != "linux", reason="libgomp of torch's wheels for Linux")
def test_the_library_itself_has_read_the_policy(own, wanted):
    theirs = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}
    env = {key: value for key, value in os.environ.items() if key not in theirs}
    env |= {"OMP_DISPLAY_ENV": "verbose"} | own
    done = subprocess.run([sys.executable, "-c", SHOW], env=env, capture_output=True, text=True, check=True)
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("torch's OpenMP library is not libgomp")
    if wanted is None:
        assert "GOMP_SPINCOUNT = '77'" in done.stderr
    else:
        assert f"OMP_WAIT_POLICY = '{wanted}'" in done.stderr
