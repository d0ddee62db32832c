"""A frozen network has the parameters and buffers it had; scores depend on neither batch size nor order of samples."""

import numpy as np
import pytest
import torch
from helpers.coloured_pictures import class_folders
from torch import nn

import sslbench
from sslbench.errors import BackboneError
from sslbench.evaluation import RunSettings

LOOK = {"resize": [16, 16], "crop": None}


class Net(nn.Module):
    """BatchNorm, dropout and a counter: all that could move."""

    def __init__(self, unfrozen=False):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, 2)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.unfrozen = unfrozen
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        if self.unfrozen:
            self.norm.train()
        return self.drop(torch.relu(self.norm(self.conv(x)))).mean((2, 3))


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    return class_folders(tmp_path, ("dark", "bright"), lambda c: rng.integers(0, 90, (20, 20, 3)) + 150 * c)


def run(batch_size):
    return RunSettings(device="cpu", workers=int(batch_size == 1), batch_size=batch_size, floors=False)


@pytest.mark.parametrize("protocol", ["knn", "linear", "svm", "low-shot", "lsr", "clustering"])
def test_no_protocol_moves_a_parameter_or_a_buffer(photos, tmp_path, protocol):
    net = Net().train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    settings = {"low-shot": {"k": [1]}, "lsr": {"k": [1]}}.get(protocol, {})
    sslbench.evaluate(
        net,
        photos,
        protocols=[protocol],
        settings={protocol: settings},
        out=tmp_path / "r",
        run=run(8),
        preprocessing=LOOK,
    )
    assert net.training and all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_one_that_moves_is_refused(photos, tmp_path):
    for _ in range(2):  # nothing of the first attempt is taken for features
        with pytest.raises(BackboneError, match="changed while it was evaluated"):
            sslbench.evaluate(Net(unfrozen=True), photos, out=tmp_path / "r", run=run(8), preprocessing=LOOK)
    assert not list((tmp_path / "r").rglob("*.json"))


def test_batches_of_1_and_64_and_another_order_give_the_same_features(photos, tmp_path):
    net = Net()
    found = [
        sslbench.extract_features(net, photos, store=tmp_path / str(n), run=run(n), preprocessing=LOOK) for n in (1, 64)
    ]
    for split in found[0]:
        np.testing.assert_allclose(found[0][split]["output"].x, found[1][split]["output"].x, atol=1e-5)
    x = found[0]["train"]["output"].x
    y = np.arange(len(x)) * 2 // len(x)
    train, test = np.arange(0, len(x), 2), np.arange(1, len(x), 2)
    order = np.random.default_rng(0).permutation(train)
    scores = []
    for rows in (train, order):
        (result,) = sslbench.evaluate(
            None,
            (x[rows], y[rows]),
            (x[test], y[test]),
            protocols="linear",
            settings={"linear": {"c": [1.0]}},
            out=tmp_path / "o",
        )
        scores.append(result.metrics["top1"].value)
    assert scores[0] == scores[1]
