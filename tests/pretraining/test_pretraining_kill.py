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
    kill_campaign.kill(process)
    assert checkpoints.files(out / "checkpoints")
    outcome = runs.run(method, out)
    assert outcome.resumed_from is not None
    assert kill_campaign.digest(out) == kill_campaign.digest(undisturbed.weights.parent)
    assert not [path for path in out.rglob("*") if ".part" in path.name]


@pytest.mark.parametrize(
    "changes", ['{"strategy": "fsdp"}', '{"zero": true, "optimizer": {"name": "lars", "lr": 0.5}}']
)
def test_two_processes_with_sharded_state(changes, tmp_path):
    """Parameters, gradients and optimizer state divided over processes: killed, continued, the same in the end."""
    digests = []
    for name in ("undisturbed", "killed"):
        out = tmp_path / name
        words = [*kill_campaign.command("moco", out, processes=2, workers=0, limit=96), "--changes", changes]
        if name == "killed":
            process = kill_campaign.start(words)
            while process.poll() is None and not checkpoints.files(out / "checkpoints"):
                time.sleep(0.01)
            kill_campaign.kill(process)
            assert checkpoints.files(out / "checkpoints") and not (out / "weights.torch").exists()
        kill_campaign.finish(kill_campaign.start(words))
        digests.append(kill_campaign.digest(out))
    assert digests[0] == digests[1]
