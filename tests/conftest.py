"""What all tests share: a cache of their own, so that no test sees the user's features or another test's."""

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
    for name in ("SSLBENCH_PATH", "SSLBENCH_DATA", "RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
