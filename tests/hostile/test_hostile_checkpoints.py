"""Damaged checkpoints of a run that was killed: the run ends with the same weights, or says what to remove."""

import shutil

import pytest
import torch
from hostile import child, store_cases, text_cases
from hostile.campaign import LONG, failures, report

RUN = (
    *("pretrain", "simclr", "--data", "photos", "--out", "run", "--backbone", store_cases.SMALLEST, "--device", "cpu"),
    *("--workers", "0", "--epochs", "2", "augment=digits", "augment.size=16", "batch_size=4", "save_every=2 updates"),
    *("keep=3", "method.projector=[16,8]", "schedule.warmup_epochs=0"),
)


def weights(folder):
    return torch.load(folder / "run" / "weights.torch", weights_only=True)["state_dict"]


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A folder of photos and a run that was killed after its last but one checkpoint; its final weights."""
    folder = tmp_path_factory.mktemp("killed")
    text_cases.photos(folder)
    outcome = child.run(RUN, folder)
    assert outcome.code == 0, outcome.err
    final = weights(folder)
    (folder / "run" / "weights.torch").unlink()
    *kept, last = sorted((folder / "run" / "checkpoints").glob("*.ckpt"))
    last.unlink()
    assert len(kept) >= 2
    return folder, final


def test_checkpoints(killed, tmp_path):
    sound, final = killed

    def other_weights(outcome, folder):
        if outcome.code:
            if outcome.code != 1 or "Remove it to use the one before" not in outcome.err:
                return f"exit {outcome.code}, and not what to remove"
            newest(folder).unlink()
            again = child.run(RUN, folder)
            if again.code:
                return f"the second run ends with exit {again.code}: {again.err.strip()[-200:]}"
        found = weights(folder)
        same = found.keys() == final.keys() and all(torch.equal(found[name], final[name]) for name in final)
        return "" if same else "other weights"

    def damaged(change):
        def write(folder):
            for name in ("photos", "run"):
                shutil.copytree(sound / name, folder / name)
            newest(folder).write_bytes(change(newest(folder).read_bytes()))
            return list(RUN)

        return write

    cases = [("sound", damaged(bytes))]
    cases += [(name, damaged(change)) for name, change in store_cases.contents(0, LONG).items()]
    report(failures(cases, tmp_path, judges=(other_weights,)))


def newest(folder):
    return max((folder / "run" / "checkpoints").glob("*.ckpt"))
