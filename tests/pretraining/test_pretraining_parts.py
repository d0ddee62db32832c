"""Rates of parts of a network, mixed images, and the user's own function of batches, in whole runs."""

import sys

import pytest
import torch
from helpers import kills, runs

from sslbench.errors import UsageError
from sslbench.pretraining import PretrainRequest, prepare
from sslbench.pretraining.settings import plain
from sslbench.train.observers import Observer

GROUPS = {
    "head": {"lr": 0.2, "weight_decay": 0.0, "schedule": {"lr": {"name": "linear", "start": 1, "end": 0}}},
    "backbone.layer4": {"schedule": {"warmup_epochs": 0, "weight_decay": {"name": "linear", "start": 0.1, "end": 0.3}}},
}
MODULE = """
import dataclasses


def mixed(batch):
    '''Mix every image with the next one of the batch, all of its views alike.'''
    views = tuple(0.8 * view + 0.2 * view.roll(1, 0) for view in batch.views)
    return dataclasses.replace(batch, views=views)


def cut(batch):
    return dataclasses.replace(batch, views=tuple(view[:, :, 1:] for view in batch.views))


def number(batch):
    return 3


def wrong(batch):
    return batch.view
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "of_batches.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("of_batches", None)


class Recorder(Observer):
    """Observer that keeps the records."""

    def __init__(self):
        self.records = []

    def line(self, record):
        self.records.append(record)


def request(method, out, **changes):
    return PretrainRequest(runs.settings(method, **changes), "sklearn:digits", out, limit=96)


def test_the_rates_of_each_part_follow_its_schedule(tmp_path):
    """9 updates: a line from 0.2 after the run's warm-up of 3; the run's cosine from the start."""
    recorder = Recorder()
    runs.run("simclr", tmp_path / "run", groups=GROUPS, observers=[recorder])
    found = {record.step - 1: record for record in recorder.records}
    scale = 16 / 256
    for index in range(9):
        parts = found[index].parts
        after = max(index - 3, 0) / 6
        assert parts["lr_head"] == pytest.approx(0.2 * scale * min(index / 3, 1) * (1 - after))
        cosine = (1 + torch.tensor(torch.pi * index / 9).cos().item()) / 2
        assert parts["lr_backbone.layer4"] == pytest.approx(0.05 * scale * cosine, rel=1e-5)


def test_the_plan_has_the_rates_of_each_part(tmp_path):
    plan = prepare(request("simclr", tmp_path, groups=GROUPS)).plan
    assert plan.parts["head"].weight_decay(0.5) == 0.0
    assert plan.parts["backbone.layer4"].weight_decay(0.5) == pytest.approx(0.2)
    assert plan.parts["head"].peak_lr == pytest.approx(0.2 / 16)
    assert plan.rates.weight_decay is None


@pytest.mark.parametrize("changes", [{}, {"optimizer": {"name": "lars", "lr": 0.05}}])
def test_a_run_with_parts_continues_bit_for_bit(tmp_path, changes):
    continues_bit_for_bit("simclr", tmp_path, groups=GROUPS, epochs=2, **changes)


def continues_bit_for_bit(method, folder, /, **changes):
    """Check that a run of 6 updates ends alike if it goes on from update 4; return the digest of its weights."""
    whole = runs.run(method, folder / "whole", **changes)
    kills.leave_off(folder / "whole", 4, folder / "rest")
    assert whole.steps == 6 and runs.run(method, folder / "rest", **changes).resumed_from == 4
    digest = kills.digest(folder / "whole")
    assert kills.digest(folder / "rest") == digest
    return digest


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"heads": {"lr": 0.1}}, "no trained parameter is called 'heads'"),
        ({"head": {"rate": 0.1}}, "unknown key 'rate'"),
        ({"head": {"schedule": {"warmup": 1}}}, "unknown key 'warmup'"),
        ({"head": {"schedule": {"lr": {"name": "cosin"}}}}, "groups.head.schedule.lr: there is no schedule 'cosin'"),
    ],
)
def test_groups_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, groups, message):
    with pytest.raises(UsageError, match=message):
        runs.run("simclr", tmp_path / "run", groups=groups)
    assert not (tmp_path / "run").exists()


def test_supervised_with_mixed_images_continues_bit_for_bit(tmp_path):
    """Batches take turns at random; test_supervised.py has each of the two mixings by itself."""
    mixing = {"method": {"name": "supervised", "mixup": 0.8, "cutmix": 1.0}}
    mixed = continues_bit_for_bit("supervised", tmp_path, epochs=2, **mixing)
    runs.run("supervised", tmp_path / "unmixed", epochs=2)
    assert kills.digest(tmp_path / "unmixed") != mixed


def test_a_function_of_batches_changes_every_batch(tmp_path, own):
    short = {"epochs": 1, "schedule": {"lr": 1.0}}
    mixed = runs.run("simclr", tmp_path / "mixed", batch_transform="of_batches:mixed", **short)
    unmixed = runs.run("simclr", tmp_path / "unmixed", **short)
    assert kills.digest(mixed.weights.parent) != kills.digest(unmixed.weights.parent)
    assert prepare(request("simclr", tmp_path, batch_transform="of_batches:mixed")).code()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("of_batches:mixd", "has no 'mixd'"),
        ("of_batches:number", "gives a int, not a Batch"),
        ("of_batches:wrong", "fails: AttributeError"),
        ("of_batches:cut", "gives views of"),
        ("of_batches:dataclasses", "is a module, not a function"),
    ],
)
def test_functions_of_batches_that_do_not_work_are_refused(tmp_path, own, name, message):
    with pytest.raises(UsageError, match=message):
        prepare(request("simclr", tmp_path, batch_transform=name))


def test_settings_at_their_defaults_are_not_recorded():
    """Runs of earlier versions continue."""
    recorded = plain(runs.settings("simclr"))
    assert "groups" not in recorded and "batch_transform" not in recorded
    assert plain(runs.settings("simclr", groups=GROUPS))["groups"]["head"]["lr"] == 0.2
