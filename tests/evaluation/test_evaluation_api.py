"""The Python functions and estimators: any nn.Module in, the same records out, nothing of the caller's changed."""

import numpy as np
import pytest
import torch
from helpers.coloured_pictures import class_folders
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

import sslbench
from sslbench import KNNProbe, LinearProbe
from sslbench.errors import UsageError
from sslbench.evaluation import RunSettings
from sslbench.evaluation.preparation import extract_settings

RUN = RunSettings(device="cpu", workers=0, batch_size=8, floors=False)


class Net(nn.Module):
    """BatchNorm, dropout and a counter: all that could move while a network is 'frozen'."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, 2)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.drop(torch.relu(self.norm(self.conv(x)))).mean((2, 3))


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    return class_folders(tmp_path, ("dark", "bright"), lambda c: rng.integers(0, 90, (20, 20, 3)) + 150 * c)


def test_import_is_lazy_and_lists_its_names():
    names = {"compare", "evaluate", "extract_features", "list_names", "load_backbone", "make_leaderboard", "pretrain"}
    names |= {"evaluate_checkpoints", "evaluate_detection", "export", "extract", "load_detector", "predict"}
    assert set(dir(sslbench)) == names | {"KNNProbe", "LinearProbe", "SslbenchError"}
    assert "knn" in sslbench.list_names("protocol")
    with pytest.raises(AttributeError, match="has no attribute 'evaluat'"):
        _ = sslbench.evaluat


def test_wrong_arguments_are_usage_errors(photos, tmp_path):
    with pytest.raises(UsageError, match="Did you mean 'resize'"):
        sslbench.evaluate(Net(), photos, out=tmp_path / "r", run=RUN, preprocessing={"resise": 3})
    with pytest.raises(UsageError, match="no protocol called 'nn'"):
        sslbench.evaluate(Net(), photos, protocols=["nn"], out=tmp_path / "r", run=RUN)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": -1}, "seed should be from 0 to 4294967295, not -1"),
        ({"workers": -2}, "workers should be 0 or more"),
        ({"batch_size": 0}, "batch_size should be 1 or more, not 0"),
        ({"max_pixels": 0}, "max_pixels should be 1 or more, not 0"),
    ],
)
def test_numbers_out_of_range_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        extract_settings(RunSettings(**{"device": "cpu", "workers": 0, **settings}))


def test_the_ends_of_the_ranges_are_allowed():
    RunSettings(device="cpu", batch_size=1, workers=0, seed=0, seeds=1, only_seed=0, max_pixels=1).check()
    RunSettings(device="cpu", seed=2**32 - 1, seeds=1, only_seed=2**32 - 1).check()
    RunSettings(device="cpu", seed=2**32 - 3, seeds=3).check()


def test_a_single_protocol_may_be_given_by_its_name(photos, tmp_path):
    (result,) = sslbench.evaluate(
        "pixels:8", photos / "train", test=photos / "val", protocols="knn", out=tmp_path / "out", run=RUN
    )
    assert result.protocol.name == "knn"


def test_a_network_no_better_than_untrained_is_warned_about(photos, tmp_path, caplog, monkeypatch):
    """The weights of a random network are scored against the untrained one of the same name: tied."""
    import sys
    import types

    module = types.ModuleType("nets_of_the_floor_test")
    module.net = Net
    monkeypatch.setitem(sys.modules, "nets_of_the_floor_test", module)
    torch.manual_seed(0)
    torch.save(Net().state_dict(), tmp_path / "w.pth")
    run = RunSettings(device="cpu", workers=0, batch_size=8)
    sslbench.evaluate(
        tmp_path / "w.pth",
        photos,
        backbone="nets_of_the_floor_test:net",
        protocols=["linear"],
        out=tmp_path / "results",
        run=run,
        preprocessing={"resize": [16, 16], "crop": None},
    )
    assert "is not clearly above the 3 untrained nets_of_the_floor_test:net" in caplog.text


def test_test_labels_in_another_order_than_those_of_train_are_warned_about(tmp_path, caplog):
    rng = np.random.default_rng(0)
    train, test = np.repeat(np.arange(5), 40), np.repeat(np.arange(5), 20)
    features = [np.eye(5)[labels] * 4 + rng.normal(size=(len(labels), 5)) for labels in (train, (test + 1) % 5)]
    for labels, warned in ((test, True), ((test + 1) % 5, False)):
        caplog.clear()
        (result,) = sslbench.evaluate(None, (features[0], train), (features[1], labels), protocols="knn", out=tmp_path)
        assert any("is below chance (20.00)" in note for note in result.notes) == warned
        assert ("is below chance" in caplog.text) == warned


@pytest.mark.parametrize("probe", [KNNProbe(), LinearProbe(c=1.0)], ids=lambda probe: type(probe).__name__)
@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn_pass(probe):
    found = check_estimator(probe, on_fail=None, on_skip=None)
    wrong = {check["check_name"]: check["exception"] for check in found if check["status"] == "failed"}
    assert len(found) > 40 and not wrong


@pytest.mark.parametrize(
    ("probe", "protocol", "settings"), [(KNNProbe, "knn", {}), (LinearProbe, "linear", {"c": 0.1})]
)
def test_the_score_is_that_of_the_protocol(probe, protocol, settings):
    x, y = load_digits(return_X_y=True)
    train, test = (x[:600], y[:600]), (x[600:900], y[600:900])
    (result,) = sslbench.evaluate(
        None, train, test, protocols=protocol, settings={protocol: settings}, out=None, device="cpu"
    )
    fitted = probe(**settings).fit(*train)
    assert 100 * fitted.score(*test) == pytest.approx(result.metrics["top1"].value)
    np.testing.assert_allclose(fitted.predict_proba(test[0]).sum(axis=1), 1, rtol=1e-5)


def test_probes_go_into_pipelines_and_take_names_of_classes():
    x, y = load_digits(n_class=3, return_X_y=True)
    names = np.array(["zero", "one", "two"])[y]
    pipeline = make_pipeline(StandardScaler(), KNNProbe(k=5))
    assert cross_val_score(pipeline, x[:150], names[:150], cv=3).mean() > 0.9
    assert set(KNNProbe(5).fit(x[:60], names[:60]).predict(x[60:80])) <= set(names)


def test_settings_that_are_not_possible_are_refused_by_name():
    x, y = load_digits(n_class=2, return_X_y=True)
    with pytest.raises(sslbench.errors.UsageError, match="temperature"):
        KNNProbe(temperature=0).fit(x, y)
    with pytest.raises(sslbench.errors.UsageError, match="holdout"):
        LinearProbe(holdout=2.0).fit(x, y)
