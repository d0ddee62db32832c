"""The linear presets that train on images: the learning rate at given epochs is the one their publications have."""

import math

import pytest

from sslbench import config
from sslbench.library.presets import load_preset
from sslbench.protocols import linear_online
from sslbench.protocols.linear_online.heads import Heads, LinearBank
from sslbench.protocols.linear_online.settings import optimizer_settings
from sslbench.train.optimizers.lars import LARS
from sslbench.train.optimizers.optimizer import make_optimizer, set_rates

# Name -> epoch -> learning rate of the update that begins there, by the formulas of the published scripts.
PUBLISHED = {
    "vissl": {0: 0.01, 7.99: 0.01, 8: 0.001, 16: 1e-4, 24: 1e-5},
    "moco": {0: 30, 59.9: 30, 60: 3, 79.9: 3, 80: 0.3},
    "simclr": {0: 1.6, 45: 0.8, 30: 0.8 * (1 + math.cos(math.pi / 3)), 30.5: 0.8 * (1 + math.cos(math.pi * 30.5 / 90))},
    # Read once per epoch: in the middle of one the rate is that of its beginning.
    "swav": {0: 0.3, 50: 0.15, 25.7: 0.15 * (1 + math.cos(math.pi * 25 / 100))},
    "dino": {0: 0.004, 50: 0.002, 25.7: 0.002 * (1 + math.cos(math.pi * 25 / 100))},
    "dinov2": {0: 4e-5, 5: 2e-5, 2.5: 2e-5 * (1 + math.cos(math.pi / 4))},
    "mae": {0: 0, 5: 3.2, 10: 6.4, 50: 3.2, 70: 3.2 * (1 + math.cos(math.pi * 60 / 80))},
}


def settings_of(name):
    preset = load_preset(f"linear/{name}")
    return config.build(linear_online.Settings, preset.settings, preset.name)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_the_rate_at_given_epochs_is_the_published_one(name):
    settings = settings_of(name)
    epochs = 10 if settings.updates else settings.epochs  # DINOv2's epochs are 1,250 updates each
    heads = Heads([LinearBank("x", [linear_online_head(settings)], widths=(3, 3), classes=2, norm=settings.norm)])
    optimizer = make_optimizer(
        heads.groups(optimizer_settings(settings), settings.batch_size), optimizer_settings(settings)
    )
    factor = settings.rate_schedule(epochs)
    for epoch, rate in PUBLISHED[name].items():
        set_rates(optimizer, lr=factor(epoch / epochs))
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate, rel=1e-6, abs=1e-12), epoch


def linear_online_head(settings):
    from sslbench.protocols.linear_online.heads import Head

    return Head(settings.lr[0], settings.weight_decay[0])


def groups_of(name):
    settings = settings_of(name)
    heads = Heads([LinearBank("x", [linear_online_head(settings)], widths=(3, 3), classes=2, norm=settings.norm)])
    optimizer = make_optimizer(
        heads.groups(optimizer_settings(settings), settings.batch_size), optimizer_settings(settings)
    )
    decays = {n: group["weight_decay"] for group in optimizer.param_groups for n in group["names"]}
    return optimizer, decays


def test_weight_decay_momentum_and_nesterov_are_the_published_ones():
    optimizer, decays = groups_of("vissl")
    assert decays == {"weight": 5e-4, "bias": 5e-4, "scale": 0, "shift": 0}
    assert all(group["nesterov"] and group["momentum"] == 0.9 for group in optimizer.param_groups)
    optimizer, decays = groups_of("swav")
    assert decays == {"weight": 1e-6, "bias": 1e-6} and not optimizer.param_groups[0]["nesterov"]
    for name in ("moco", "simclr", "dino", "dinov2", "mae"):
        assert set(groups_of(name)[1].values()) == {0.0}, name


def test_mae_has_lars_without_trust_ratio_for_biases():
    optimizer, _ = groups_of("mae")
    (group,) = optimizer.param_groups
    assert isinstance(optimizer, LARS) and group["exclude_1d"] and group["trust_coefficient"] == 1e-3
    assert settings_of("mae").norm == "batch" and settings_of("mae").norm_eps == 1e-6


def test_dinov2_has_52_heads_and_chooses_on_test():
    settings = settings_of("dinov2")
    assert len(settings.lr) * len(settings.blocks) * len(settings.patch_mean) == 52
    assert settings.select_on == "test" and settings.updates == 12500 and settings.batch_size == 1024


def test_only_dinov2_has_a_choice():
    for name in PUBLISHED:
        settings = settings_of(name)
        counts = (settings.lr, settings.weight_decay, settings.blocks or (0,), settings.patch_mean)
        assert (math.prod(len(values) for values in counts) > 1) == (name == "dinov2")
