"""What all tests share: a cache of their own, and messages that do not depend on which test ran before."""

import logging

import hypothesis
import pytest

# A slow or busy machine is no failure.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """No test sees the user's features or another test's."""
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
    for name in ("SSLBENCH_PATH", "SSLBENCH_DATA", "RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def messages_as_in_a_fresh_process():
    """The command line sends messages to the terminal only; the next test may want to read them."""
    yield
    logger = logging.getLogger("sslbench")
    logger.handlers, logger.propagate = [], True
