"""The presets of finetuning: the rates at given epochs are those of their publications."""

import math

import pytest

from sslbench import config
from sslbench.library.presets import load_preset
from sslbench.protocols import finetune
from sslbench.protocols.finetune.settings import candidates, check_labels, optimizer_settings
from sslbench.targets.classes import Classes
from sslbench.train.optimizers.optimizer import scaled_lr

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
