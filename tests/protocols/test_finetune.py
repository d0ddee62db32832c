"""Finetuning: equal to a plain loop, continued after a kill, chosen on train only, written with its classifier."""

import dataclasses
import hashlib
import importlib
import itertools
import math
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import two_processes
from helpers.online_samples import PLAIN, Small, damaged, pictures, relabelled, small
from timm.models import group_parameters
from torch import nn
from torch.nn import functional

from sslbench import config
from sslbench.backbones.build import build
from sslbench.backbones.layers import resolve_layers
from sslbench.data.images import Arrays
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.features.array import ExtractSettings
from sslbench.library.presets import load_preset
from sslbench.protocols import ImageInputs, finetune
from sslbench.protocols.finetune.network import FinetunedNetwork, Targets, check_backbone, layer_numbers, make_network
from sslbench.protocols.finetune.plan import portions
from sslbench.protocols.finetune.settings import Rates as Rates_
from sslbench.protocols.finetune.settings import candidates, check_labels, optimizer_settings
from sslbench.runtime.signals import StoppedError
from sslbench.targets.classes import Classes
from sslbench.targets.none import Unlabelled
from sslbench.targets.numbers import Numbers
from sslbench.train.method import Setup
from sslbench.train.optimizers.optimizer import scaled_lr
from sslbench.train.parameter_groups import parameter_groups

QUICK = finetune.Settings(epochs=3, batch_size=16, lr=(0.5,), head_lr_factor=1.0, flip=0.0, scale=(0.5, 1.0))
ENGINE = ExtractSettings(torch.device("cpu"), workers=0, batch_size=16)


class Bare(nn.Module):
    """A convolution and an average, without BatchNorm: (B, 3, H, W) -> (B, 12)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 12, 3, stride=2)

    def forward(self, x):
        return torch.relu(self.conv(x)).mean((2, 3))


def changed(**values):
    return dataclasses.replace(QUICK, **values)


def run(folder, settings=QUICK, *, backbone=None, train=None, test=None, progress=None, seed=0, layers=()):
    backbone = small() if backbone is None else backbone
    return finetune.run_on_images(
        ImageInputs(
            settings,
            seed,
            pictures(96, 1) if train is None else train,
            pictures(48, 2) if test is None else test,
            backbone,
            resolve_layers(backbone, layers),
            ENGINE,
            folder,
            progress,
        )
    )


def run_small(folder, settings, **given):
    """As many updates on half the images, for what does not depend on their number."""
    return run(folder, dataclasses.replace(settings, batch_size=8), **{"train": pictures(48, 1), **given})


def only(outcomes):
    (outcome,) = outcomes.values()
    return outcome


def normalised(source):
    pixels = torch.from_numpy(np.stack([source.images.read(i) for i in range(len(source))])).permute(0, 3, 1, 2)
    return (pixels.float() / 255 - 0.5) / 0.25


def test_it_is_the_plain_loop_of_sgd_on_backbone_and_head(tmp_path):
    """Oracle: a loop of a few lines with torch's own schedule, in float32."""
    settings = changed(augment="none", scale=(0.08, 1.0), nesterov=True, weight_decay=(0.01,), label_smoothing=0.1)
    outcome = only(run(tmp_path, settings))
    train, test = pictures(96, 1), pictures(48, 2)
    network = Small()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        head = nn.Linear(12, 4)
        nn.init.normal_(head.weight, std=0.01)
        nn.init.zeros_(head.bias)
    whole = nn.Sequential(network, head).train()
    decayed = [p for p in whole.parameters() if p.dim() > 1]
    groups = [{"params": decayed}, {"params": [p for p in whole.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.5 * 16 / 256, momentum=0.9, nesterov=True, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 18)
    images, labels = normalised(train), torch.from_numpy(train.target.values)
    for epoch in range(3):
        order = torch.from_numpy(np.random.default_rng((0, 0, epoch)).permutation(96))
        for rows in order.split(16):
            optimizer.zero_grad()
            functional.cross_entropy(whole(images[rows]), labels[rows], label_smoothing=0.1).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        np.testing.assert_allclose(outcome.scores, whole.eval()(normalised(test)), rtol=1e-4, atol=1e-3)


def test_the_backbone_and_the_random_state_stay_as_they_were(tmp_path):
    backbone = small()
    before = {name: tensor.clone() for name, tensor in backbone.module.state_dict().items()}
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    run(tmp_path, backbone=backbone)
    assert torch.equal(torch.rand(2), wanted)
    assert all(torch.equal(before[name], tensor) for name, tensor in backbone.module.state_dict().items())


EVERYTHING = changed(
    mixup=0.8, cutmix=1.0, erasing=0.5, randaugment=(2.0, 9.0), label_smoothing=0.1, ema=0.5, clip_norm=1.0,
    probe_epochs=1.0, norm="batch", accumulate=2, sampler="balanced", head_lr_factor=2.0, warmup_epochs=0.5,
)  # fmt: skip


def test_a_run_that_is_stopped_continues_to_the_same_bits(tmp_path):
    whole = only(run_small(tmp_path / "whole", EVERYTHING))
    stops = []

    def stop(stage, done, total):
        if "finetuning" in stage and done == 80 and not stops:
            stops.append(done)
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StoppedError, match="update 10 of 18"):
        run_small(tmp_path / "cut", EVERYTHING, progress=stop)
    again = only(run_small(tmp_path / "cut", EVERYTHING))
    assert np.array_equal(again.scores, whole.scores) and again.train == whole.train


def in_two(rank, folder, settings):
    return scores(run(Path(folder), settings, backbone=small(Bare())))


def scores(outcomes):
    return {row: outcome.scores for row, outcome in outcomes.items()}


def crashed_and_continued(rank, folder, settings):
    """Both processes end without a last checkpoint, four updates after the one of the first epoch."""

    def crash(stage, done, total):
        if "finetuning" in stage and done == 160:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run(Path(folder), settings, backbone=small(Bare()), progress=crash)
    assert [path.name for path in Path(folder).rglob("final/step_*")] == ["step_000000006.ckpt"]
    return in_two(rank, folder, settings)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_train_the_same_as_one(tmp_path, strategy):
    settings = changed(lr=(0.2, 0.5), ema=0.5, probe_epochs=1.0, accumulate=2, strategy=strategy)
    first, second = two_processes.run(in_two, str(tmp_path / "two"), settings)
    assert second == {}, "the first process has the result"
    one = scores(run(tmp_path / "one", settings, backbone=small(Bare())))
    assert first.keys() == one.keys()
    np.testing.assert_allclose(first["output"], one["output"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_that_crash_continue_to_the_same_bits(tmp_path, strategy):
    settings = dataclasses.replace(EVERYTHING, optimizer="adamw", nesterov=True, lr=(0.01,), norm="none")
    settings = dataclasses.replace(settings, strategy=strategy)
    whole, _ = two_processes.run(in_two, str(tmp_path / "whole"), settings)
    again, _ = two_processes.run(crashed_and_continued, str(tmp_path / "crashed"), settings)
    assert np.array_equal(again["output"], whole["output"])


def built(rank, folder, settings, everywhere):
    """Scores, and whether this process got the structure of the network only."""
    training = importlib.import_module("sslbench.protocols.finetune.training")
    seen, real = [], training.structure_from_first
    with pytest.MonkeyPatch.context() as patch:

        def structure(build):
            network = build() if everywhere else real(build)
            seen.append(all(p.is_meta for p in network.parameters()))
            return network

        patch.setattr(training, "structure_from_first", structure)
        return in_two(rank, folder, settings), seen


def test_with_fsdp_one_process_builds_the_network_and_the_scores_are_the_same_bits(tmp_path):
    settings = dataclasses.replace(EVERYTHING, norm="none", strategy="fsdp")
    (alone, whole), (_, structure) = two_processes.run(built, str(tmp_path / "first"), settings, False)
    (expected, _), _ = two_processes.run(built, str(tmp_path / "all"), settings, True)
    assert (whole, structure) == ([False], [True])
    assert np.array_equal(alone["output"], expected["output"])


def test_tensorboard_has_every_training_and_a_continued_one_repeats_no_update(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed (pip install tensorboard)")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    plain = only(run_small(tmp_path / "plain", changed(epochs=4, lr=(0.1, 0.5))))
    settings = changed(epochs=4, lr=(0.1, 0.5), tensorboard=True, histograms=True)

    def crash(stage, done, total):
        if "finetuning" in stage and done == 160:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run_small(tmp_path / "w-1.checkpoints", settings, progress=crash)
    outcome = only(run_small(tmp_path / "w-1.checkpoints", settings))
    assert np.array_equal(outcome.scores, plain.scores), "observers change nothing"
    rates = [f"lr={lr}_weight_decay=0.0001" for lr in (0.1, 0.5)]
    folders = {path.name: path for path in (tmp_path / "w-1.logs").iterdir()}
    assert set(folders) == {f"w-1-0.0-{name}" for name in (*rates, "final")}
    events = EventAccumulator(str(folders["w-1-0.0-final"])).Reload()
    assert [each.step for each in events.Scalars("Training/Loss")] == [10, 20, 24]
    assert "Parameters/head.head.weight" in events.Tags()["histograms"]
    assert not (tmp_path / "plain.logs").exists()


def test_wandb_has_a_run_of_its_own_for_every_training(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed (pip install wandb)")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run(tmp_path / "w-1.checkpoints", changed(epochs=1, wandb="mine"))
    (folder,) = (tmp_path / "w-1.logs").iterdir()
    assert len(list((folder / "wandb").glob("offline-run-*"))) == 1


def test_histograms_need_tensorboard():
    assert "histograms needs TensorBoard" in refused(changed(histograms=True))  # before anything is trained


def test_several_labels_per_image_leave_unknown_ones_out(tmp_path):
    train, test = pictures(96, 1, "multi"), pictures(48, 2, "multi")
    outcome = only(run(tmp_path / "a", changed(epochs=6), train=train, test=test))
    assert outcome.headline == "mAP" and outcome.metrics["mAP"][0] > 0.8
    values = train.target.values.copy()
    assert (values < 0).any()
    targets = Targets.of(train.target)
    setup = Setup(12, (10,), 16, 16, 1, 96, 4, 10, 10, "small")
    network = make_network(small(), resolve_layers(small(), ())[0], targets, QUICK, setup, probe=0, side=10, seed=0)
    indices = torch.arange(96)
    from sslbench.train.method import Batch, Step

    loss = network.eval().loss(Batch((normalised(train),), None, indices), Step(0, 1, 1)).value.detach()
    with torch.no_grad():
        scores = network.head(network.backbone(normalised(train))).numpy()
    known = values >= 0
    wanted = np.logaddexp(0, -scores * np.where(values > 0, 1, -1))[known].mean()
    assert float(loss) == pytest.approx(float(wanted), rel=1e-5)


def test_numbers_are_predicted_in_their_own_units(tmp_path):
    parts = []
    for n, seed in ((96, 1), (48, 2)):
        source = pictures(n, seed)
        numbers = 1000 + 50.0 * (np.arange(n) % 4)
        labels = Numbers(("age", "same"), np.column_stack([numbers, np.full(n, 7.0)]))
        parts.append(dataclasses.replace(source, target=labels))
    settings = changed(epochs=12, lr=(1.0,))
    outcome = only(run(tmp_path, settings, train=parts[0], test=parts[1]))
    assert outcome.headline == "r2" and 900 < outcome.scores[:, 0].mean() < 1200
    assert np.corrcoef(outcome.scores[:, 0], parts[1].target.values[:, 0])[0, 1] > 0.8
    np.testing.assert_allclose(outcome.scores[:, 1], 7, atol=1)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lr": (0.1, 0.1)}, "lr holds a value twice"),
        ({"lr": (-0.1,)}, "lr should be 0 or more"),
        ({"weight_decay": ()}, "weight_decay has no value"),
        ({"epochs": 0.0}, "epochs should be above 0"),
        ({"batch_size": 1}, "batch_size should be 2 or more"),
        ({"schedule": "cosin"}, "Did you mean 'cosine'"),
        ({"warmup_epochs": 7.0}, "does not fit into 3 epochs"),
        ({"probe_epochs": 3.0}, "leaves nothing"),
        ({"size": 12, "augment": "none", "scale": (0.08, 1.0)}, "size has no effect"),
        ({"augment": "none"}, "scale has no effect"),
        ({"optimizer": "adamw", "momentum": 0.8}, "momentum has no effect with optimizer=adamw"),
        ({"betas": (0.9, 0.95)}, "betas has no effect with optimizer=sgd"),
        ({"holdout": 0.2}, "holdout has no effect with one value"),
        ({"draws": 3}, "draws has no effect with all of train"),
        ({"fractions": (0.5,), "per_class": (3,)}, "exclude each other"),
        ({"fractions": (1.5,)}, "fractions should be above 0 to 1"),
        ({"randaugment": (2.0,)}, "randaugment should be"),
        ({"randaugment": (2.0, 11.0)}, "randaugment should be"),
        ({"ema": 1.0}, "ema should be above 0 and below 1"),
        ({"drop_path": 1.0}, "drop_path should be from 0 to below 1"),
    ],
)
def test_settings_that_cannot_work_or_have_no_effect_are_refused(values, words):
    with pytest.raises(UsageError, match=words):
        finetune.check(changed(**values), pictures(8, 1).target)


def test_augmentation_by_classes_is_refused_for_other_labels():
    for name in ("mixup", "cutmix", "label_smoothing"):
        with pytest.raises(UsageError, match=f"{name} needs images with one class each"):
            finetune.check(changed(**{name: 0.1}), pictures(8, 1, "multi").target)
    none = Unlabelled(8)
    with pytest.raises(DataError, match="no labels"):
        finetune.check(QUICK, none)


def refused(settings, backbone=None, layers=(), train=None):
    backbone = small() if backbone is None else backbone
    with pytest.raises((UsageError, DataError)) as caught:
        finetune.check_images(
            backbone, resolve_layers(backbone, layers), pictures(96, 1) if train is None else train, settings, seed=0
        )
    return str(caught.value)


def test_what_does_not_go_together_is_refused_before_any_training(tmp_path):
    assert "there are 2 layers" in refused(QUICK, layers=["bn", "output"])
    assert "has no trainable parameters" in refused(QUICK, small(nn.Flatten()))
    assert "has no stochastic depth" in refused(changed(drop_path=0.1))
    assert "no numbered blocks" in refused(changed(layer_decay=0.75))
    assert "no numbered blocks" in refused(changed(train_blocks=1))
    assert "features of different lengths" in refused(changed(size=14), layers=["bn:flatten"])
    assert "does not divide into 1 processes of 3" in refused(changed(accumulate=3))
    assert "too few images for per_class=25" in refused(changed(per_class=(25,)))
    assert "too small for a hold-out" in refused(changed(lr=(0.1, 0.5), batch_size=2), train=pictures(4, 1))
    assert "at least two training images" in refused(changed(fractions=(0.01,)))
    assert "are 1 updates, of 1 in all" in refused(changed(epochs=0.15, probe_epochs=0.1))
    assert "several labels each" in refused(changed(sampler="balanced"), train=pictures(96, 1, "multi"))
    assert "there is no file" in refused(changed(train_list=str(tmp_path / "none.txt")))
    wide = small(preprocessing=dataclasses.replace(PLAIN, crop=(10, 8)))
    assert "10 x 8 pixels" in refused(QUICK, wide)


def test_parts_of_train_are_results_of_their_own(tmp_path):
    settings = changed(epochs=2, fractions=(0.25, 1.0))
    rows = finetune.check_images(small(), resolve_layers(small(), ()), pictures(96, 1), settings, seed=0)
    outcomes = run(tmp_path, settings)
    assert tuple(outcomes) == rows == ("output, 25 % of train", "output, 100 % of train")
    assert any("on 24 of 96 train samples" in note for note in outcomes[rows[0]].notes)
    (five,) = run(tmp_path / "k", changed(epochs=2, per_class=(5,), draws=3)).items()
    assert five[0] == "output, 5 per class" and len(five[1].draws) == 3
    means = [note for one in (*outcomes.values(), five[1]) for note in one.notes if "means" in note]
    assert means == ["The metrics are means over 3 draws of 5 per class."]
    assert len(set(five[1].selected["draws"]["seeds"])) == 3
    assert five[1].metrics["top1"][0] == pytest.approx(
        np.mean([(draw.argmax(1) == pictures(48, 2).target.values).mean() for draw in five[1].draws])
    )


def test_log_loss_and_brier_score_of_draws_are_means_over_the_draws(tmp_path):
    outcome = only(run(tmp_path, changed(epochs=2, per_class=(5,), draws=3)))
    true = pictures(48, 2).target.values
    losses, squares = [], []
    for draw in outcome.draws:
        for scores, label in zip(draw.astype(np.float64), true, strict=True):
            shares = np.exp(scores) / np.exp(scores).sum()
            losses.append(-np.log(shares[label]))
            squares.append(sum((share - (c == label)) ** 2 for c, share in enumerate(shares)))
    for name, each in (("nll", losses), ("brier", squares)):
        value, low, high = outcome.metrics[name]
        assert value == pytest.approx(np.mean(each), rel=1e-6) and low < value < high
    assert 0 <= outcome.metrics["ece"][0] <= 1 and outcome.probabilities == "softmax"


def test_a_published_list_is_matched_by_file_name(tmp_path, monkeypatch):
    train = pictures(96, 1)
    folders = tuple(f"class/{name}.png" for name in train.ids)
    train = dataclasses.replace(train, ids=folders)
    chosen = [f"1-{i:04d}.png" for i in range(0, 96, 3)]
    file = tmp_path / "published.txt"
    file.write_text("\n".join(reversed(chosen)) + "\n")
    settings = changed(train_list=str(file))
    (portion,) = portions(settings, train)
    assert [train.ids[row] for row in portion.rows] == [f"class/{name}" for name in chosen]
    assert portion.text.startswith("32 images of published.txt (")
    file.write_text("\n".join([*chosen[:-1], "class/1-0001.png"]))
    assert portions(settings, train)[0].text != portion.text, "another list is another result"
    file.write_text("train/class/1-0003.png\nclass/1-0000.png\n")
    assert portions(settings, train)[0].rows.tolist() == [0, 3]
    for text in (
        "\ufeff1-0003.png\r\n\r\n1-0000.png\r\n",
        "\n  1-0000.png \n\n1-0003.png",
        "\ufeff\n1-0000.png\r1-0003.png",
    ):
        file.write_bytes(text.encode())  # as editors of Windows and of old Macs save it
        assert portions(settings, train)[0].rows.tolist() == [0, 3]
    file.write_text("class/1-0000.png\nother/1-0003.png\n")
    with pytest.raises(DataError, match=r"1 of the 2 images .* are not in train: other/1-0003.png"):
        portions(settings, train)
    file.write_text("\n".join([*chosen[:-1], "class/1-0001.png"]))
    monkeypatch.setenv("SSLBENCH_DATA", str(tmp_path))
    (in_data_folder,) = portions(changed(train_list="published.txt"), train)
    assert in_data_folder.text == portions(settings, train)[0].text
    file.write_text("n01440764_1.JPEG\n")
    with pytest.raises(DataError, match=r"1 of the 1 images in .* are not in train: n01440764_1.JPEG"):
        portions(settings, train)
    twice = dataclasses.replace(train, ids=tuple(sorted(f"{i % 2}/{i // 2:04d}.png" for i in range(96))))
    file.write_text("0003.png\n")
    with pytest.raises(DataError, match="2 train images have that file name"):
        portions(settings, twice)


def uneven(groups=None):
    """Return 400 images of four classes of 160, 120, 80 and 40, in a random order."""
    values = np.random.default_rng(5).permutation(np.repeat(np.arange(4), [160, 120, 80, 40]))
    ids = tuple(f"{i:04d}.png" for i in range(400))
    images = Arrays(np.zeros((400, 1, 1, 3), np.uint8), "uneven")
    attributes = {} if groups is None else {"video": tuple(groups)}
    labels = Classes(("a", "b", "c", "d"), values)
    return Source("uneven", ids, labels, images, attributes=attributes, grouped_by="" if groups is None else "video")


def chosen_rows(settings, train, seed):
    (portion,) = portions(settings, train)
    drawn = portion.of(train, seed)
    return [train.ids.index(name) for name in drawn.ids]


def test_few_labels_have_the_shares_of_the_classes_and_other_seeds_other_images():
    train = uneven()
    for settings, expected in (
        (changed(fractions=(0.1,)), [16, 12, 8, 4]),
        (changed(images=(200,)), [80, 60, 40, 20]),
        (changed(per_class=(7,)), [7, 7, 7, 7]),
    ):
        rows = chosen_rows(settings, train, 0)
        counted = [sum(train.target.values[row] == c for row in rows) for c in range(4)]
        assert counted == expected and rows == sorted(set(rows))
        assert rows == chosen_rows(settings, train, 0) != chosen_rows(settings, train, 1)
    often = np.zeros(400)
    for seed in range(300):
        often[chosen_rows(changed(per_class=(10,)), train, seed)] += 1
    for c, size in enumerate((160, 120, 80, 40)):
        own = often[train.target.values == c]
        assert own.sum() == 3000  # each image of a class as often as the others, within five standard deviations
        assert np.abs(own - 3000 / size).max() < 5 * np.sqrt(3000 / size)


def test_few_labels_keep_the_images_of_a_group_together():
    names = [f"video{i // 4}" for i in range(400)]
    train = uneven(names)
    rows = chosen_rows(changed(fractions=(0.25,)), train, 0)
    taken = {names[row] for row in rows}
    assert len(rows) == 4 * len(taken) and 80 <= len(rows) <= 120
    assert rows == [row for row in range(400) if names[row] in taken]
    assert rows != chosen_rows(changed(fractions=(0.25,)), train, 1)
    per_class = chosen_rows(changed(per_class=(10,)), train, 0)  # as many different videos as possible
    for c in range(4):
        own = [names[row] for row in per_class if train.target.values[row] == c]
        assert len(own) == len(set(own)) == 10


def test_the_name_of_a_list_has_the_digest_of_its_images(tmp_path):
    train, file = uneven(), tmp_path / "list.txt"
    file.write_text("0007.png\n0003.png\n0007.png\n")
    (portion,) = portions(changed(train_list=str(file)), train)
    digest = hashlib.sha256(b"0003.png\n0007.png").hexdigest()[:8]
    assert portion.text == f"2 images of list.txt ({digest})" and portion.rows.tolist() == [3, 7]


def test_rates_are_selected_on_held_out_samples_and_test_decides_nothing(tmp_path):
    settings = changed(lr=(0.0, 0.5), weight_decay=(0.0, 0.01), holdout=0.25)
    first = only(run_small(tmp_path / "a", settings))
    tried = first.selected["tried"]
    best = max(itertools.product((0.0, 0.5), (0.0, 0.01)), key=lambda r: tried[Rates_(*r).text])
    assert first.selected == {
        **{"lr": best[0], "weight_decay": best[1], "score": max(tried.values()), "seed": 0, "tried": tried},
        "on": "held-out 25 % of train, then trained on all of it",
    }
    assert best[0] == 0.5 and len(tried) == 4
    assert "on 48 of 48 train samples" in first.notes[0], "trained again on all of train"
    test = pictures(48, 2)
    other = relabelled(test, np.random.default_rng(0).permutation(test.target.values))
    second = only(run_small(tmp_path / "b", settings, test=other))
    assert first.selected == second.selected and np.array_equal(first.scores, second.scores)


def test_finished_candidates_are_not_trained_again(tmp_path):
    settings = changed(lr=(0.1, 0.5))

    def stop(stage, done, total):
        if "finetuning" in stage:
            os.kill(os.getpid(), signal.SIGTERM)

    stages = []
    whole = only(run_small(tmp_path / "whole", settings))
    with pytest.raises(StoppedError):
        run_small(tmp_path / "cut", settings, progress=stop)
    again = only(run_small(tmp_path / "cut", settings, progress=lambda stage, *_: stages.append(stage)))
    assert not any("lr=" in stage for stage in stages)
    assert np.array_equal(again.scores, whole.scores) and again.selected == whole.selected


def test_a_candidate_that_diverges_is_left_out(tmp_path):
    class Exploding(Small):
        def forward(self, x):
            out = super().forward(x)
            return out * float("inf") if self.training and float(self.conv.weight.detach().abs().max()) > 10 else out

    outcome = only(run(tmp_path, changed(lr=(0.5, 1e5), clip_norm=None), backbone=small(Exploding())))
    assert outcome.selected["lr"] == 0.5 and np.isnan(outcome.selected["tried"]["lr=100000 weight_decay=0.0001"])


def test_groups_are_held_out_together(tmp_path):
    groups = tuple(str(i // 4 * 4 + i % 2) for i in range(96))
    train = dataclasses.replace(pictures(96, 1), attributes={"video": groups}, grouped_by="video")
    seen = []
    import sslbench.protocols.finetune.run as module

    original = module.FinetuneRun._held_out_score

    def watch(self, fit, held_out, *more):
        seen.append((set(fit.attributes["video"]), set(held_out.attributes["video"])))
        return original(self, fit, held_out, *more)

    patch = pytest.MonkeyPatch()
    patch.setattr(module.FinetuneRun, "_held_out_score", watch)
    run(tmp_path, changed(epochs=1, lr=(0.1, 0.5)), train=train)
    patch.undo()
    assert seen and all(not fit & held for fit, held in seen)


def trained_network(backbone, settings, layer=None):
    layers = resolve_layers(backbone, (layer,) if layer else ())
    setup = Setup(8, (32,), 4, 4, 1, 8, 2, 4, 2, backbone.name)
    labels = Classes(("a", "b"), np.arange(8) % 2)
    from sslbench.protocols.finetune.network import feature_width

    channels = backbone.preprocessing.channels
    width = feature_width(backbone.module, layers[0], (32,), channels, name="")
    setup = dataclasses.replace(setup, feature_dim=width)
    return make_network(backbone, layers[0], Targets.of(labels), settings, setup, probe=0, side=32, seed=0)


def test_resnets_decay_by_stage_vision_transformers_by_block_others_as_in_timm():
    resnet = layer_numbers(build("resnet18w0.125"))
    assert resnet.head == 5 and resnet.backbone["conv1.weight"] == resnet.backbone["bn1.bias"] == 0
    assert resnet.backbone["layer1.1.conv2.weight"] == 1 and resnet.backbone["layer4.0.conv1.weight"] == 4
    vit = layer_numbers(build("timm:vit_tiny_patch16_224,depth=3,embed_dim=24,num_heads=2"))
    assert vit.head == 4 and vit.backbone["pos_embed"] == 0 and vit.backbone["norm.weight"] == 4
    assert [vit.backbone[f"blocks.{i}.attn.qkv.weight"] for i in range(3)] == [1, 2, 3]
    conv = layer_numbers(build("timm:convnext_atto"))
    assert conv.backbone["stem.0.weight"] == 0 and conv.head == conv.backbone["head.norm.weight"] == 13
    others = {"mobilenetv3_small_050": "conv_stem", "mixer_s16_224": "stem.proj", "hrnet_w18_small": "conv2"}
    for name, stem in others.items():
        backbone = build(f"timm:{name}")
        theirs = group_parameters(backbone.module, backbone.module.group_matcher(coarse=False), reverse=True)
        assert layer_numbers(backbone).backbone == theirs and theirs[f"{stem}.weight"] == 0
    hrnet = layer_numbers(build("timm:hrnet_w18_small"))
    assert hrnet.head == 5 and hrnet.backbone["stage4.0.branches.0.0.conv1.weight"] == 4


def test_layer_decay_gives_the_published_rates():
    """MAE's lrd.py: scale = decay ** (depth + 1 - layer), the head 1."""
    backbone = build("timm:vit_tiny_patch16_224,depth=3,embed_dim=24,num_heads=2,img_size=32")
    settings = changed(layer_decay=0.65, optimizer="adamw", nesterov=True, lr=(0.001,))
    network = trained_network(backbone, settings)
    layers = layer_numbers(backbone)
    numbers = {
        name: layers.backbone[name[9:]] if name.startswith("backbone.") else layers.head
        for name, _ in network.named_parameters()
    }
    groups = parameter_groups(network, optimizer_settings(settings, Rates_(0.001, 0.05)), numbers)
    factors = {name: group["lr_factor"] for group in groups for name in group["names"]}
    assert factors["backbone.patch_embed.proj.weight"] == pytest.approx(0.65**4)
    assert factors["backbone.blocks.0.attn.qkv.weight"] == pytest.approx(0.65**3)
    assert factors["backbone.blocks.2.mlp.fc1.bias"] == pytest.approx(0.65)
    assert factors["backbone.norm.weight"] == factors["head.head.weight"] == 1
    decays = {name: group["weight_decay_factor"] for group in groups for name in group["names"]}
    assert not decays["backbone.norm.weight"] and not decays["backbone.blocks.0.attn.qkv.bias"]
    assert decays["backbone.blocks.0.attn.qkv.weight"] == 1


@pytest.mark.parametrize(("optimizer", "factor"), [("sgd", 10), ("adamw", 1)])
def test_the_head_learns_faster_than_the_backbone_by_default(optimizer, factor):
    settings = finetune.Settings(optimizer=optimizer)
    assert optimizer_settings(settings, Rates_(0.01, 0.0)).head_lr_factor == factor
    with pytest.raises(UsageError, match="head_lr_factor should be above 0"):
        finetune.check(changed(head_lr_factor=0.0), pictures(8, 1).target)


def test_only_the_last_blocks_train_and_frozen_statistics_stay():
    backbone = build("resnet18w0.125")
    network = trained_network(backbone, changed(train_blocks=1)).train()
    trainable = {name.split(".")[1] for name, p in network.named_parameters() if p.requires_grad}
    assert trainable == {"layer4", "head"}
    assert not network.backbone.bn1.training and network.backbone.layer4[0].bn1.training
    assert not any(p.requires_grad for p in trained_network(backbone, changed(train_blocks=0)).backbone.parameters())
    frozen = trained_network(backbone, changed(batch_norm="frozen")).train()
    norms = [part for part in frozen.backbone.modules() if isinstance(part, nn.BatchNorm2d)]
    assert norms and not any(norm.training for norm in norms) and all(norm.weight.requires_grad for norm in norms)
    with pytest.raises(UsageError, match="has 4 blocks or stages"):
        check_backbone(backbone, changed(train_blocks=5))


def test_parameters_that_the_features_do_not_need_are_frozen():
    network = trained_network(build("resnet18w0.125"), QUICK, "res4")
    names = {name.split(".")[1] for name, p in network.named_parameters() if p.requires_grad}
    assert names == {"conv1", "bn1", "layer1", "layer2", "layer3", "head"}


def test_stochastic_depth_of_timm_is_trained_with_and_not_stored():
    from timm.layers.drop import DropPath

    backbone = build("timm:vit_tiny_patch16_224,depth=3,embed_dim=24,num_heads=2,img_size=32", seed=4)
    network = trained_network(backbone, changed(drop_path=0.3))
    rates = [part.drop_prob for part in network.backbone.modules() if isinstance(part, DropPath)]
    assert max(rates) == pytest.approx(0.3)
    for name, tensor in backbone.module.state_dict().items():
        assert torch.equal(network.backbone.state_dict()[name], tensor)


def test_the_first_epochs_train_the_head_only(tmp_path, monkeypatch):
    """Neither the backbone's weights nor its statistics move, and the head does."""
    seen = []

    def watch(self, step):
        seen.append(
            [self.backbone.conv.weight.clone(), self.backbone.bn.running_mean.clone(), self.head.head.bias.clone()]
        )

    monkeypatch.setattr(FinetunedNetwork, "after_update", watch)
    run(tmp_path, changed(probe_epochs=1.0))
    moves = [[not torch.equal(a, b) for a, b in zip(seen[i], seen[i + 1], strict=True)] for i in range(len(seen) - 1)]
    assert moves[:5] == [[False, False, True]] * 5 and moves[5:] == [[True, True, True]] * 12


def test_the_average_is_what_is_evaluated(tmp_path):
    plain, average, nearly = (only(run(tmp_path / str(ema), changed(ema=ema))).scores for ema in (None, 0.9, 1e-6))
    np.testing.assert_allclose(nearly, plain, rtol=1e-4, atol=1e-3)
    assert not np.allclose(average, plain, atol=1e-2)


def test_an_average_that_is_mostly_the_first_network_is_said(tmp_path, caplog):
    outcome = only(run(tmp_path, changed(ema=0.999, epochs=1.0)))
    (note,) = (note for note in outcome.notes if "moving average" in note)
    assert "(ema=0.999) still has " in note and note in caplog.text and "WARNING" in caplog.text
    share, smaller = (float(found) for found in re.search(r"has (\d+) %.*such as ([\d.]+),", note).groups())
    assert share > 90 and 0 < smaller < 0.999
    assert not any("moving average" in note for note in only(run(tmp_path / "b", changed(ema=0.5, epochs=1.0))).notes)


def test_classes_are_drawn_equally_often(tmp_path):
    source = pictures(60, 1)
    rows = np.r_[np.flatnonzero(np.arange(60) % 4 == 0)[:13], [1, 2, 3]]
    train = source.select(np.sort(rows))
    from sslbench.protocols.finetune.plan import make_batches

    data = make_batches(train, PLAIN, changed(sampler="balanced", batch_size=16), 10, seed=0, engine=ENGINE)
    labels = torch.cat([piece.labels for (piece,) in data.batches(0, data.steps_per_epoch)])
    assert np.bincount(labels.numpy(), minlength=4).tolist() == [4, 4, 4, 4]


def test_an_unreadable_image_stops_training_and_all_are_listed(tmp_path):
    with pytest.raises(DataError, match="2 of 96 images"):
        run(tmp_path, train=damaged(pictures(96, 1)))


def test_images_of_four_channels(tmp_path):
    from sslbench.data.images import Arrays

    def four(source):
        array = np.stack([source.images.read(i) for i in range(len(source))])
        return dataclasses.replace(source, images=Arrays(np.concatenate([array, array[..., :1]], axis=3), "four"))

    class Wide(Bare):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 12, 3, stride=2)

    plain = dataclasses.replace(PLAIN, mean=(0.5,) * 4, std=(0.25,) * 4)
    backbone = small(Wide(), plain)
    outcome = only(
        run(tmp_path, changed(epochs=8), backbone=backbone, train=four(pictures(96, 1)), test=four(pictures(48, 2)))
    )
    assert outcome.metrics["top1"][0] > 0.6
    assert "randaugment is for RGB" in refused(changed(randaugment=(2.0, 9.0)), backbone, train=four(pictures(96, 1)))


# The presets of finetuning: the rates at given epochs are those of their publications.


# Name -> epoch -> learning rate of the last layers of the backbone, by the formulas of the published scripts.
PUBLISHED = {
    "vissl": {0: 0.1, 29.9: 0.1, 30: 0.01, 60: 1e-3, 90: 1e-4, 100: 1e-5, 104: 1e-5},
    "simclr_1pct": {0: 0.05, 29.9: 0.05, 30: 0.005, 69: 0.005},
    "simclr_10pct": {0: 0.05, 29.9: 0.05, 30: 0.005, 69: 0.005},
    "swav_1pct": {0: 0.02, 12: 0.004, 16: 0.0008},
    "swav_10pct": {0: 0.01, 12: 0.002, 16: 0.0004},
    "mae": {0: 0, 2.5: 1e-3, 5: 2e-3, 52.5: 1e-6 + (2e-3 - 1e-6) / 2, 100: 1e-6},
    "beit": {0: 0, 10: 2e-3, 20: 4e-3, 60: 1e-6 + (4e-3 - 1e-6) / 2, 100: 1e-6},
    "dino": {0: 0, 20: 4e-3, 110: 1e-6 + (4e-3 - 1e-6) / 2, 155: 1e-6 + (4e-3 - 1e-6) * (1 - math.sqrt(0.5)) / 2},
    # Of 1,000 updates: up to 80 warm-up, then a tenth from 300, 600 and 900 on.
    "vtab1k": {0: 0, 4: 0.05, 8: 0.1, 29.9: 0.1, 30.1: 0.01, 60.1: 1e-3, 90.1: 1e-4},
}
HEADS = {"swav_1pct": 5.0, "swav_10pct": 0.2}


def settings_of(name):
    preset = load_preset(f"finetune/{name}")
    return config.build(finetune.Settings, preset.settings, preset.name)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_the_rate_at_given_epochs_is_the_published_one(name):
    settings = settings_of(name)
    check_labels(settings, Classes(("a", "b"), [0, 1]))
    epochs = 100 if settings.updates else settings.epochs
    options = optimizer_settings(settings, candidates(settings)[0])
    factor, peak = settings.rate_schedule(epochs), scaled_lr(options, settings.batch_size)
    for epoch, rate in PUBLISHED[name].items():
        assert factor(epoch / epochs) * peak == pytest.approx(rate, rel=1e-5, abs=1e-12), epoch
    if name in HEADS:
        assert peak * options.head_lr_factor == pytest.approx(HEADS[name])
    else:
        assert options.head_lr_factor == 1, "published with one rate for all layers"


def test_the_published_augmentation_and_decay():
    for name, decay in (("mae", 0.65), ("beit", 0.65), ("dino", 0.75)):
        settings = settings_of(name)
        assert (settings.mixup, settings.cutmix, settings.erasing, settings.label_smoothing) == (0.8, 1.0, 0.25, 0.1)
        assert settings.randaugment == (2, 9) and settings.layer_decay == decay and settings.drop_path == 0.1
        assert settings.weight_decay == (0.05,) and not settings.decay_norm and not settings.decay_bias
    for name in ("vissl", "simclr_1pct", "swav_1pct", "vtab1k"):
        assert settings_of(name).weight_decay == (0.0,)
