"""Every method, killed without warning in the middle of a run and continued: the weights are the same bit for bit."""

import time

import kill_campaign
import pytest
import runs

from sslbench.train import checkpoints


def test_every_method_is_killed():
    assert sorted(runs.METHODS) == runs.modules()


@pytest.mark.parametrize("method", sorted(runs.METHODS))
def test_killed_and_continued(method, tmp_path):
    undisturbed = runs.run(method, tmp_path / "undisturbed")
    out = tmp_path / "killed"
    process = kill_campaign.start(kill_campaign.command(method, out, processes=1, workers=0, limit=96))
    while process.poll() is None and not (checkpoints.files(out / "checkpoints") or [None])[-1]:
        time.sleep(0.005)
    process.kill()
    _, errors = process.communicate()
    assert checkpoints.files(out / "checkpoints"), errors
    outcome = runs.run(method, out)
    assert outcome.resumed_from is not None
    assert kill_campaign.digest(out) == kill_campaign.digest(undisturbed.weights.parent)
    assert not [path for path in out.rglob("*") if ".part" in path.name]
