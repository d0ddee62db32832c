"""What all tests share: a cache of their own, and messages that do not depend on which test ran before."""

import gc
import itertools
import logging
import os
import random
import shutil
import sys

import hypothesis
import numpy as np
import pytest

pytest_plugins = ["world"]
_NUMBERS = itertools.count()
_LONGEST = {
    *("test_contract_strategies.py", "test_contract_structure.py", "test_documented_runs.py", "test_site.py"),
    *("test_cli_tables.py", "test_hostile_images.py", "test_hostile_weights.py"),
}

# A slow or busy machine is no failure.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for no garbage among imported libraries and tests, and seldom among what lives long: it finds nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(2000, 10, 30)
        gc.enable()


def pytest_collection_modifyitems(items):
    """Begin with the longest tests: at the end, the other processes would have nothing to do beside them."""
    items.sort(key=lambda item: item.path.name not in _LONGEST)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Let every test and fixture begin with the same random numbers, whatever ran before."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        # torch.manual_seed also notes for GPUs where it was called, which takes a second in a thousand tests.
        sys.modules["torch"].default_generator.manual_seed(0)


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """A folder shared by all tests and processes of one run."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session", autouse=True)
def no_cache_of_the_user(tmp_path_factory):
    """Fixtures of modules and sessions, made before a test has its own cache, see none of the user's either."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSLBENCH_CACHE", str(tmp_path_factory.mktemp("shared-cache")))
        yield


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, run_folder, monkeypatch):
    """No test sees the user's features or another test's; toy images, alike for all, are drawn once."""
    cache = tmp_path_factory.getbasetemp() / f"cache-of-test-{next(_NUMBERS)}"  # mktemp looks through the whole folder
    cache.mkdir()
    toys = run_folder / "toy"
    toys.mkdir(exist_ok=True)
    (cache / "toy").symlink_to(toys)
    monkeypatch.setenv("SSLBENCH_CACHE", str(cache))
    for name in ("SSLBENCH_PATH", "SSLBENCH_DATA", "RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)  # 80 in each process of a run on several
    yield
    shutil.rmtree(cache, ignore_errors=True)  # a file may be open still


@pytest.fixture(autouse=True)
def messages_as_in_a_fresh_process():
    """The command line sends messages to the terminal only; the next test may want to read them."""
    yield
    logger = logging.getLogger("sslbench")
    logger.handlers, logger.propagate = [], True


@pytest.fixture
def sslbench(capsys):
    """Runs the command line in this process: (exit code, stdout, stderr)."""

    from sslbench.cli.main import main

    def run(*arguments):
        with pytest.raises(SystemExit) as exit_:
            main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return exit_.value.code, captured.out, captured.err

    return run
