"""Estimators of scikit-learn: the numbers are those of the protocols, and scikit-learn's own checks pass."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import sslbench
from sslbench import KNNProbe, LinearProbe


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
