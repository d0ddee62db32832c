"""The online linear probe: what is learned, chosen and refused, on pictures in memory."""

import dataclasses
import os
import signal

import numpy as np
import pytest
import torch
from helpers import online_samples
from helpers.online_samples import Small, damaged, pictures, relabelled, small
from torch import nn

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import resolve_layers
from sslbench.errors import BackboneError, DataError, UsageError
from sslbench.features.array import ExtractSettings
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import ImageInputs, linear_online
from sslbench.protocols.linear_online import Settings
from sslbench.protocols.linear_online import run as planning
from sslbench.runtime.signals import StoppedError
from sslbench.targets.none import Unlabelled
from sslbench.targets.numbers import Numbers
from sslbench.train import loop
from sslbench.train.loop import NotFiniteError

QUICK = Settings(epochs=6, batch_size=8, lr=(0.3,), lr_scaling="none", flip=0.0)


def run(folder, settings=QUICK, *, train=None, test=None, backbone=None, layers=(), seed=0, progress=None):
    backbone = small() if backbone is None else backbone
    return linear_online.run_on_images(
        ImageInputs(
            settings,
            seed,
            pictures(48, 1) if train is None else train,
            pictures(48, 2) if test is None else test,
            backbone,
            resolve_layers(backbone, layers),
            ExtractSettings(torch.device("cpu"), batch_size=8, workers=0),
            folder,
            progress,
        )
    )


def changed(**values):
    return dataclasses.replace(QUICK, **values)


def test_several_labels_are_learned_and_ignored_ones_make_no_difference(tmp_path):
    train, test = pictures(48, 1, "multi"), pictures(48, 2, "multi")
    (outcome,) = run(tmp_path / "a", changed(lr=(0.1, 1.0)), train=train, test=test).values()
    assert outcome.headline == "mAP" and outcome.metrics["mAP"][0] > 0.8
    unknown = np.argwhere(train.target.values == -1)
    assert len(unknown) > 10
    heads = torch.zeros(12, 3, 4, requires_grad=True)
    labels = torch.from_numpy(train.target.values[:12])
    from sslbench.protocols.linear_online.heads import head_losses

    head_losses(heads, labels, 12, (labels >= 0).sum(0)).sum().backward()
    assert bool((heads.grad[(labels < 0)[:, None].expand(-1, 3, -1)] == 0).all())
    assert bool((heads.grad[(labels >= 0)[:, None].expand(-1, 3, -1)] != 0).all())


def test_binary_cross_entropy_is_a_mean_per_class_summed_over_classes():
    from sslbench.protocols.linear_online.heads import head_losses

    labels = torch.tensor([[1, -1], [0, 1], [1, -1]], dtype=torch.int8)
    logits = torch.tensor([[0.5, 2.0], [1.0, -1.0], [-2.0, 0.0]])
    log = torch.nn.functional.logsigmoid
    wanted = -(log(logits[0, 0]) + log(-logits[1, 0]) + log(logits[2, 0])) / 3 - log(logits[1, 1])
    found = head_losses(logits[:, None], labels, 3, (labels >= 0).sum(0))
    assert float(found) == pytest.approx(float(wanted), rel=1e-6)


@pytest.mark.parametrize(("norm", "nesterov"), [("none", False), ("batch", True), ("affine", False)])
def test_each_head_equals_a_plain_loop_of_torch(tmp_path, norm, nesterov):
    """The slow oracle: one nn.Linear and torch.optim.SGD per learning rate, BatchNorm in front, on the same batches."""
    settings = changed(
        epochs=3, lr=(0.05, 0.5), weight_decay=(0.0, 0.01), norm=norm, nesterov=nesterov, decay_bias=False,
        decay_norm=False, init="zeros", schedule="linear", warmup_epochs=1, select_on="test", flip=0.5,
    )  # fmt: skip
    train, test = pictures(48, 1), pictures(48, 2)
    backbone = small()
    (outcome,) = run(tmp_path, settings, train=train, test=test, backbone=backbone).values()
    choice = outcome.selected
    scores = _plain_loop(settings, choice["lr"], choice["weight_decay"], train, test)
    np.testing.assert_allclose(outcome.scores, scores, atol=1e-5 * np.abs(scores).max(), rtol=0)
    accuracies = {}
    for lr in settings.lr:
        for decay in settings.weight_decay:
            scores = _plain_loop(settings, lr, decay, train, test)
            accuracies[f"lr={lr:g} weight_decay={decay:g}"] = np.mean(scores.argmax(1) == test.target.values)
    for name, value in outcome.variants.items():
        assert value["top1"] == pytest.approx(accuracies[name], abs=1e-6)
    assert len(outcome.variants) == 3


def _plain_loop(settings, lr, decay, train, test):
    from sslbench.data.loading.probing import EpochBatches
    from sslbench.data.views import View

    module = Small().eval()
    view = View(size=10, flip=settings.flip)
    data = EpochBatches(train, view, size=10, batch_size=settings.batch_size, piece=100, seed=0)
    norm = {"none": nn.Identity(), "batch": nn.BatchNorm1d(12, affine=False), "affine": nn.BatchNorm1d(12)}[
        settings.norm
    ]
    head = nn.Linear(12, 4)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    groups = [{"params": [head.weight], "weight_decay": decay}]
    groups.append({"params": [head.bias, *norm.parameters()], "weight_decay": 0.0})
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=0.9, nesterov=settings.nesterov)
    total = 18
    for index, (piece,) in enumerate(data.batches(0, total)):
        done = index / total
        factor = 3 * done if done < 1 / 3 else 1 - (done - 1 / 3) / (2 / 3)
        for group in optimizer.param_groups:
            group["lr"] = lr * factor
        with torch.no_grad():
            features = module(_normalised(piece.views[0]))
        loss = nn.functional.cross_entropy(head(norm(features)), piece.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    norm.eval()
    with torch.no_grad():
        images = torch.stack([torch.from_numpy(test.images.read(i)) for i in range(len(test))]).permute(0, 3, 1, 2)
        return head(norm(module(_normalised(images)))).numpy()


def _normalised(images):
    return (images.float() / 255 - 0.5) / 0.25


def test_a_head_does_not_depend_on_those_beside_it(tmp_path):
    alone = run(tmp_path / "a", changed(select_on="test", lr=(0.3,)))["output"]
    both = run(tmp_path / "b", changed(select_on="test", lr=(0.3,)), layers=["bn", "output"])["output"]
    np.testing.assert_allclose(both.scores, alone.scores, atol=1e-5)


def test_the_head_is_chosen_on_a_held_out_part_of_train(tmp_path):
    settings = changed(lr=(1e-6, 0.3, 1.0))
    train, test = pictures(48, 1), pictures(48, 2)
    (outcome,) = run(tmp_path / "a", settings, train=train, test=test).values()
    assert outcome.selected["lr"] in (0.3, 1.0) and outcome.selected["on"] == "held-out 10 % of train"
    assert set(outcome.variants) == {f"lr={lr:g}" for lr in (1e-6, 0.3, 1.0)} - {f"lr={outcome.selected['lr']:g}"}
    shuffled = relabelled(test, np.random.default_rng(0).permutation(test.target.values))
    (other,) = run(tmp_path / "b", settings, train=train, test=shuffled).values()
    assert other.selected == outcome.selected and np.array_equal(other.scores, outcome.scores)


def test_a_choice_on_test_is_said(tmp_path):
    (outcome,) = run(tmp_path / "a", changed(lr=(1e-6, 0.3), select_on="test")).values()
    assert outcome.selected["on"] == "test" and outcome.selected["lr"] == 0.3
    assert outcome.selected["score"] == pytest.approx(outcome.metrics["top1"][0], abs=1e-6)
    assert any("selected on the reported test samples" in note for note in outcome.notes)
    (outcome,) = run(tmp_path / "b", changed(select_on="test")).values()
    assert outcome.selected == {}, "one head: there was nothing to choose"


def test_a_head_that_diverges_is_left_out_and_named(tmp_path):
    (outcome,) = run(tmp_path / "a", changed(lr=(0.3, 1e38), norm="none")).values()
    assert outcome.selected["lr"] == 0.3 and any("lr=1e+38" in note for note in outcome.notes)
    alone = run(tmp_path / "b", changed(lr=(0.3,), norm="none", select_on="test"), train=_fit_part())["output"]
    np.testing.assert_allclose(outcome.scores, alone.scores, atol=1e-5)


def _fit_part():
    from sslbench.protocols._parts.selection import holdout_rows

    train = pictures(48, 1)
    return train.select(holdout_rows(train.target, 0.1, 0, None)[0])


def test_when_all_heads_diverge_the_message_says_what_to_do(tmp_path):
    with pytest.raises(NotFiniteError, match="all heads diverged") as caught:
        run(tmp_path, changed(lr=(1e38, 2e38), norm="none"))
    assert "lower learning rates" in caught.value.remedy


class Overflowing(Small):
    def forward(self, x):
        return super().forward(x) * float("inf")


def test_features_that_are_not_finite_are_named_and_not_taken_for_a_bad_rate(tmp_path):
    with pytest.raises(DataError, match="features of layer 'output' are not finite"):
        run(tmp_path, backbone=small(Overflowing()))


class Moving(Small):
    def forward(self, x):
        self.bn.running_mean.add_(1e-3)
        return super().forward(x)


def test_a_backbone_that_moves_is_refused(tmp_path):
    for _ in range(2):  # the second time nothing is left to be continued
        with pytest.raises(BackboneError, match="changed while heads were trained"):
            run(tmp_path, backbone=small(Moving()))


def test_the_backbone_is_bit_for_bit_what_it_was(tmp_path):
    backbone = small()
    before = {name: tensor.clone() for name, tensor in backbone.module.state_dict().items()}
    run(tmp_path, backbone=backbone)
    assert not backbone.module.training and not any(p.requires_grad for p in backbone.module.parameters())
    assert all(p.grad is None for p in backbone.module.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.module.state_dict().items())


class Interrupting:
    """Sends the process a signal after so many images."""

    def __init__(self, after):
        self.after, self.sent = after, False

    def __call__(self, what, done, total):
        if "training" in what and done >= self.after and not self.sent:
            self.sent = True
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(("updates", "words"), [(12, "of 30"), (30, "the last update")])
def test_a_run_that_was_stopped_continues_bit_for_bit(tmp_path, updates, words):
    settings = changed(lr=(0.1, 0.3), norm="affine", optimizer="adamw", weight_decay=(0.01,), flip=0.5)
    (whole,) = run(tmp_path / "whole", settings).values()
    with pytest.raises(StoppedError) as caught:
        run(tmp_path / "parts", settings, progress=Interrupting(after=8 * updates))
    assert caught.value.exit_code == 143 and f"{words}; everything is saved" in caught.value.message
    assert len(list((tmp_path / "parts").glob("*.ckpt"))) == 1
    (parts,) = run(tmp_path / "parts", settings).values()
    assert np.array_equal(parts.scores, whole.scores) and parts.selected == whole.selected


def test_a_run_that_was_killed_continues_from_the_last_checkpoint(tmp_path, monkeypatch):
    (whole,) = run(tmp_path / "whole").values()
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)

    class Killed(BaseException):
        pass

    def kill(what, done, total):
        if "training" in what and done >= 8 * 20:
            raise Killed

    with pytest.raises(Killed):
        run(tmp_path / "parts", progress=kill)
    (checkpoint,) = (tmp_path / "parts").glob("*.ckpt")
    assert 1 <= int(checkpoint.stem.removeprefix("step_")) < 36
    seen = []
    (parts,) = run(tmp_path / "parts", progress=lambda what, done, total: seen.append((what, done))).values()
    assert np.array_equal(parts.scores, whole.scores)
    assert min(done for what, done in seen if "training" in what) > 8 * 19, "it did not begin anew"


def in_one_of_two_processes(rank, folder):
    settings = changed(lr=(0.1, 0.3), norm="affine")
    outcomes = run(folder, settings)
    return {row: (outcome.scores, outcome.selected, outcome.train) for row, outcome in outcomes.items()}


def test_two_processes_give_what_one_gives(tmp_path):
    from helpers import two_processes

    first, second = two_processes.run(in_one_of_two_processes, tmp_path / "two")
    assert second == {}, "the first process has the result"
    (one,) = run(tmp_path / "one", changed(lr=(0.1, 0.3), norm="affine")).values()
    scores, selected, train = first["output"]
    np.testing.assert_allclose(scores, one.scores, atol=1e-4)
    assert selected["lr"] == one.selected["lr"] and train == pytest.approx(one.train, abs=1e-6)


class Counting(online_samples.Arrays):
    """Counts how often an image is read."""

    reads = 0

    def read(self, index):
        Counting.reads += 1
        return super().read(index)


def test_images_are_read_once_per_epoch_whatever_the_number_of_heads(tmp_path):
    train = pictures(96, 1)
    train = dataclasses.replace(train, images=Counting(train.images.array, "counted"))
    Counting.reads = 0
    run(
        tmp_path,
        changed(epochs=3, batch_size=16, lr=(0.1, 0.3, 1.0), select_on="test"),
        train=train,
        layers=["bn", "output"],
    )
    assert Counting.reads == 3 * 96 + 2, "and the first one twice more, to see how large views should be"


def test_layers_are_rows_of_their_own_and_may_have_a_second_head(tmp_path):
    outcomes = run(tmp_path, changed(plain_layers=("output",)), layers=["bn:flatten", "output"])
    assert list(outcomes) == ["bn:flatten", "output", "output, no norm"]
    assert not np.allclose(outcomes["output"].scores, outcomes["output, no norm"].scores)


def test_a_map_is_normalised_by_channel():
    from sslbench.protocols.linear_online.training import InputEncoder, layer_inputs

    backbone = small()
    inputs = layer_inputs(resolve_layers(backbone, ["bn:flatten", "bn:adaptive(2,2)", "output"]))
    encode = InputEncoder(backbone, inputs, sides=(10, 10), device=torch.device("cpu"))
    assert encode.widths == {"bn:flatten": (192, 12), "bn:adaptive(2,2)": (48, 12), "output": (12, 12)}


def tiny_vit() -> Backbone:
    from sslbench.backbones.load import load_backbone

    name = "timm:vit_tiny_patch16_224,img_size=32,depth=4,embed_dim=24,num_heads=2"
    backbone = load_backbone("random", backbone=name, seed=0)
    values = dataclasses.replace(backbone.preprocessing, resize=(32, 32), crop=None)
    generator = torch.Generator().manual_seed(1)
    for parameter in backbone.module.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return dataclasses.replace(backbone, preprocessing=values)


def test_blocks_are_class_tokens_after_the_last_norm_as_in_dino():
    from sslbench.protocols.linear_online.training import InputEncoder, block_inputs

    backbone = tiny_vit()
    inputs = block_inputs(backbone, (1, 3), (False, True))
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
    found = InputEncoder(backbone, inputs, sides=(32, 32), device=torch.device("cpu"))(images)
    mean, std = (torch.tensor(v)[:, None, None] for v in (backbone.preprocessing.mean, backbone.preprocessing.std))
    with torch.no_grad():
        # The independent way: timm's own, which is that of DINO's get_intermediate_layers.
        layers = backbone.module.get_intermediate_layers(
            (images / 255 - mean) / std, n=3, norm=True, return_prefix_tokens=True
        )
    tokens = [prefix[:, 0] for _, prefix in layers]
    wanted = {
        "blocks=1 patch_mean=false": tokens[-1],
        "blocks=1 patch_mean=true": torch.cat([tokens[-1], layers[-1][0].mean(1)], dim=1),
        "blocks=3 patch_mean=false": torch.cat(tokens, dim=1),
        "blocks=3 patch_mean=true": torch.cat([*tokens, layers[-1][0].mean(1)], dim=1),
    }
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        torch.testing.assert_close(found[name], values, rtol=1e-4, atol=1e-4)


def test_one_of_several_numbers_of_blocks_is_chosen(tmp_path):
    outcomes = run(tmp_path, changed(epochs=1, blocks=(1, 4), patch_mean=(False, True)), backbone=tiny_vit())
    ((row, outcome),) = outcomes.items()
    assert row == "last 1,4 blocks:cls, with and without mean"
    assert set(outcome.selected) == {"lr", "blocks", "patch_mean", "on", "score", "seed"}
    assert len(outcome.variants) == 3


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lr": ()}, "lr has no value"),
        ({"lr": (0.1, -1.0)}, "lr should be above 0"),
        ({"lr": (0.1, 0.1)}, "lr holds a value twice"),
        ({"epochs": 0.0}, "epochs should be above 0"),
        ({"batch_size": 1}, "batch_size should be at least 2 with norm=batch"),
        ({"schedule": "cosin"}, "Did you mean 'cosine'"),
        ({"schedule": {"name": "multistep", "values": (1.0,), "milestones": (3.0,)}}, "milestones"),
        ({"warmup_epochs": 7.0}, "does not fit into 6 epochs"),
        ({"patch_mean": (True,)}, "patch_mean has no effect without blocks"),
        ({"momentum": 1.5}, "momentum"),
        ({"nesterov": True, "momentum": 0.0}, "nesterov needs optimizer.momentum"),
        ({"scale": (0.5, 0.1)}, "scale should ascend"),
        ({"holdout": 1.0}, "holdout should be above 0 and below 1"),
        ({"size": 32, "augment": "none"}, "size has no effect"),
    ],
)
def test_settings_that_cannot_work_are_refused(values, words):
    with pytest.raises(UsageError, match=words):
        linear_online.check(changed(**values), pictures(8, 1).target)


def test_labels_that_are_no_classes_are_refused():
    train = pictures(8, 1).target
    for target in (Unlabelled(8), Numbers(train.classes, np.zeros((8, 1)))):
        with pytest.raises(DataError, match="linear-online needs classes"):
            linear_online.check(QUICK, target)


def refused(settings, backbone=None, layers=(), train=None):
    backbone = small() if backbone is None else backbone
    with pytest.raises(UsageError) as caught:
        linear_online.check_images(
            backbone, resolve_layers(backbone, layers), pictures(48, 1) if train is None else train, settings, seed=0
        )
    return str(caught.value)


def test_what_does_not_go_together_is_refused_before_any_training():
    assert "has no modules blocks.0" in refused(changed(blocks=(4,)))
    assert "exclude each other" in refused(changed(blocks=(4,)), tiny_vit(), ["blocks.1"])
    assert "has 4 blocks" in refused(changed(blocks=(5,)), tiny_vit())
    assert "Did you mean 'output'" in refused(changed(plain_layers=("outptu",)))
    assert "too small for a hold-out" in refused(changed(batch_size=2, lr=(0.1, 0.3)), train=pictures(4, 1))
    wide = small(preprocessing=dataclasses.replace(online_samples.PLAIN, crop=(10, 8)))
    assert "10 x 8 pixels" in refused(QUICK, wide)


def test_views_of_another_size_need_a_pool_that_gives_as_many_features(tmp_path):
    with pytest.raises(UsageError, match="432 features for views of 14 pixels and 192"):
        run(tmp_path, changed(size=14), layers=["bn:flatten"])
    (outcome,) = run(tmp_path, changed(size=14), layers=["bn:avg"]).values()
    assert outcome.scores.shape == (48, 4)


def test_without_augmentation_the_evaluation_transform_is_what_heads_see(tmp_path):
    """Train score and training agree then: pictures are the same, and so are the features."""
    settings = changed(augment="none", flip=0.0, norm="none", lr=(0.0001,), epochs=1, batch_size=96)
    seen = []
    original = Small.forward

    class Watching(Small):
        def forward(self, x):
            seen.append(x.clone())
            return original(self, x)

    run(tmp_path, settings, backbone=small(Watching()))
    pixels = {tuple(image.flatten()[:20].tolist()) for batch in seen for image in batch}
    assert len(pixels) <= 96 + 48 + 2, "each picture looks the same whenever it is seen; two are probes"


@pytest.mark.parametrize("optimizer", ["lars", "larc", "adamw"])
def test_other_optimizers_treat_each_head_as_if_it_were_alone(tmp_path, optimizer):
    """Layer-wise rates depend on norms: those of one head, not of the tensor that holds them all."""
    rates = (0.05, 0.5)
    settings = changed(optimizer=optimizer, lr=rates, select_on="test", epochs=3)
    both = run(tmp_path / "both", settings)["output"]
    for lr in rates:
        alone = run(tmp_path / f"{lr}", dataclasses.replace(settings, lr=(lr,)))["output"]
        value = both.metrics["top1"][0] if both.selected["lr"] == lr else both.variants[f"lr={lr:g}"]["top1"]
        assert value == pytest.approx(alone.metrics["top1"][0], abs=1e-6)
        if both.selected["lr"] == lr:
            np.testing.assert_allclose(both.scores, alone.scores, atol=1e-5)


def test_an_unreadable_image_stops_training_and_all_are_listed(tmp_path):
    with pytest.raises(DataError, match="2 of 96 images") as caught:
        run(tmp_path, train=damaged(pictures(96, 1)))
    assert "broken[3]" in caught.value.message and "broken[50]" in caught.value.message


def test_a_preprocessing_with_a_fixed_crop_gives_the_size(tmp_path):
    backbone = small(preprocessing=Preprocessing(resize=12, crop=(8, 8), mean=(0.5,) * 3, std=(0.25,) * 3))
    (outcome,) = run(tmp_path, backbone=backbone).values()
    assert outcome.metrics["top1"][0] > 0.6


def test_a_head_is_chosen_on_groups_that_were_not_trained_on():
    source = pictures(60, 0)
    groups = tuple(str(i // 4 * 4 + i % 2) for i in range(60))
    grouped = dataclasses.replace(source, attributes={"video": groups}, grouped_by="video")
    backbone = small()
    settings = linear_online.Settings(lr=(0.1, 0.2), holdout=0.3)
    plans = planning.planned(backbone, resolve_layers(backbone, (backbone.default_layer,)), settings)
    fit, held = planning.split(grouped, plans, settings, 0)
    assert not set(fit.attributes["video"]) & set(held.attributes["video"])
    one = dataclasses.replace(source, attributes={"video": ("a",) * 60}, grouped_by="video")
    with pytest.raises(UsageError, match="all training samples belong to one group, so no group can be held out"):
        planning.split(one, plans, settings, 0)
