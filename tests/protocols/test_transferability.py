"""Transferability against plain loops over the papers' formulas, and intervals against leaving samples out."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.covariance import LedoitWolf

from sslbench.backbones.build import build
from sslbench.backbones.classifier import ClassifierHead, ClassifierInfo, classifier_metadata
from sslbench.errors import DataError, UsageError
from sslbench.evaluation import Request, RunSettings, evaluate, make_task, prepare
from sslbench.metrics import transferability as scores
from sslbench.protocols import transferability
from sslbench.protocols.transferability import Settings
from sslbench.weights import save


def evidence(x, y):
    """Log evidence per sample as the density of the labels: normal, of covariance I / beta + X X' / alpha."""
    n, found = len(x), []
    eigenvalues, vectors = np.linalg.eigh(x.T @ x)
    for c in range(y.max() + 1):
        target, alpha, beta = (y == c).astype(float), 1.0, 1.0
        for _ in range(11):
            before = alpha / beta
            solution = vectors / (before + eigenvalues) @ vectors.T @ x.T @ target
            used = np.sum(eigenvalues / (before + eigenvalues))
            alpha = used / (solution @ solution + 1e-5)
            beta = (n - used) / (np.sum((target - x @ solution) ** 2) + 1e-5)
            if abs(alpha / beta - before) / before <= 1e-3:
                break
        error, size = np.sum((target - x @ solution) ** 2), solution @ solution
        determinant = np.linalg.slogdet(alpha * np.eye(x.shape[1]) + beta * x.T @ x)[1]
        powers = x.shape[1] * np.log(alpha) + n * np.log(beta / (2 * np.pi))
        found.append((powers - beta * error - alpha * size - determinant) / (2 * n))
    return np.mean(found)


def h_score(x, y, shrunk=False):
    x, model = x - x.mean(axis=0), LedoitWolf().fit(x)
    means = np.stack([x[y == c].mean(axis=0) for c in y])
    shrinkage = model.shrinkage_ if shrunk else 0.0
    covariance = model.covariance_ if shrunk else x.T @ x / len(x)
    return np.trace(np.linalg.pinv(covariance) @ ((1 - shrinkage) * means.T @ means / len(x)))


def transrate(x, y):
    x = x - x.mean(axis=0)

    def rate(part):
        return 0.5 * np.linalg.slogdet(np.eye(x.shape[1]) + part.T @ part / (len(part) * 1e-4))[1]

    return rate(x) - np.mean([rate(x[y == c]) for c in np.unique(y)])


def gbc(x, y):
    total = 0.0
    gaussians = [(x[y == c].mean(0), np.maximum(x[y == c].var(0), 1e-4).mean()) for c in np.unique(y)]
    for i, (mean, own) in enumerate(gaussians):
        for other, variance in gaussians[:i] + gaussians[i + 1 :]:
            both = (own + variance) / 2
            distance = np.sum((mean - other) ** 2) / both / 8 + 0.5 * np.log(both / np.sqrt(own * variance))
            total -= np.exp(-distance)
    return total


def leep(source, y):
    total = 0.0
    for i in range(len(y)):
        expected = 0.0
        for z in range(source.shape[1]):
            expected += source[i, z] * source[y == y[i], z].sum() / source[:, z].sum()
        total += np.log(expected)
    return total / len(y)


def nce(source, y):
    z = source.argmax(axis=1)
    return np.mean([np.log(np.mean(y[z == z[i]] == y[i])) for i in range(len(y))])


ORACLES = {
    "logme": evidence,
    "h_score": h_score,
    "h_score_regularised": lambda x, y: h_score(x, y, shrunk=True),
    "transrate": transrate,
    "gbc": gbc,
}
NAMES = {metric.name: function for metric, function in scores.SCORES}


def samples(n, width, classes=3, spread=0.7, seed=0):
    generator = np.random.default_rng(seed)
    y = generator.permutation(np.arange(n) % classes)
    return spread * generator.normal(size=(classes, width))[y] + generator.normal(size=(n, width)) + 1, y


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("n", "width"), [(200, 6), (30, 12), (30, 45)])
def test_scores_are_those_of_the_formulas(name, n, width):
    x, y = samples(n, width)
    # With a constant and a repeated feature the covariance has no inverse.
    x = np.column_stack([x, x[:, 0]]) if name in ("h_score", "gbc") else x
    value = NAMES[name](scores.LabelledFeatures.of(x, y))[0]
    if name == "logme" and width > n:
        assert value < 1.5, "the directions without variance do not count, unlike in the authors' code"
        x = np.linalg.qr(x.T)[1].T
    assert value == pytest.approx(ORACLES[name](x, y), rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_intervals_are_those_of_samples_that_are_left_out(name):
    x, y = samples(200, 4)
    x *= 3  # of a spread whose powers differ
    value, low, high = NAMES[name](scores.LabelledFeatures.of(x, y))
    without = [ORACLES[name](np.delete(x, i, axis=0), np.delete(y, i)) for i in range(len(x))]
    error = np.sqrt(np.var(without) * (len(x) - 1))  # the delete-one jackknife
    half = (high - low) / 2 / (abs(value) if name.startswith(("h_score", "gbc")) else 1)
    expected = np.sinh(1.97 * error / abs(value)) if name.startswith(("h_score", "gbc")) else 1.97 * error
    assert half == pytest.approx(expected, rel=0.06 if name == "gbc" else 0.12)


def test_source_classes_are_scored_as_in_the_papers():
    x, y = samples(80, 5)
    logits = x[:, :4] / 2
    source = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    found = scores.of_source_classes(lambda rows: rows[:, :4] / 2, x, y)
    assert found["leep"][0] == pytest.approx(leep(source, y)) and found["nce"][0] == pytest.approx(nce(source, y))
    for name, oracle, close in (("leep", leep, 0.05), ("nce", nce, 0.15)):
        without = [oracle(np.delete(source, i, axis=0), np.delete(y, i)) for i in range(80)]
        value, low, _ = found[name]
        error = np.sqrt(np.var(without) * 79)
        assert np.log(low / value) == pytest.approx(1.99 * error / -value, rel=close)


def test_shuffled_labels_score_worse_and_few_samples_are_noted(blobs):
    train, test = blobs(120, 40, spread=0.5)
    outcome = transferability.run(train, test, Settings(), seed=0)
    floor = outcome.floors["shuffled labels"]
    assert set(floor) == set(outcome.metrics) == set(NAMES) and outcome.notes == () and outcome.scored == 120
    assert all(floor[name] < value for name, (value, _, _) in outcome.metrics.items())
    assert outcome.metrics != transferability.run(train, test, Settings(part="test"), seed=0).metrics
    few = transferability.run(train, test, Settings(samples=15), seed=0)
    assert [note.split(" ", 4)[:4] for note in few.notes] == [
        ["Scored", "on", "a", "random"],
        ["There", "are", "fewer", "than"],
    ]


def test_labels_and_features_without_a_difference_are_refused(blobs):
    train, test = blobs(40, 20)
    one = dataclasses.replace(train, target=train.target.changed(values=np.zeros(40, np.int64)))
    with pytest.raises(DataError, match="40 train samples have one class"):
        transferability.run(one, test, Settings(), seed=0)
    with pytest.raises(DataError, match="features of all 40 train samples are 0"):
        transferability.run(dataclasses.replace(train, x=0 * train.x), test, Settings(), seed=0)
    with pytest.raises(UsageError, match="classifier=file takes the classifier in a weights file"):
        transferability.run(train, test, Settings(classifier="file"), seed=0)
    same = dataclasses.replace(train, x=0 * train.x + 1)
    metrics = transferability.run(same, test, Settings(), seed=0).metrics
    assert metrics["h_score"][0] == pytest.approx(0, abs=1e-9) and metrics["gbc"][0] == pytest.approx(-12)


def test_the_classifier_of_the_weights_file_gives_leep_and_nce_whatever_its_classes(tmp_path):
    rng = np.random.default_rng(0)
    for name, colour in (("dark", 40), ("light", 190)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(8):
            pixels = (colour + rng.integers(0, 40, (16, 16, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    torch.manual_seed(0)
    module, head = build("resnet18w0.125", seed=0).module, ClassifierHead(64, 5)
    info = ClassifierInfo("res5avg", "none", "single", tuple("vwxyz"))
    metadata = {"classifier": classifier_metadata(info)}
    file = tmp_path / "w.torch"
    save.save(file, module.state_dict(), backbone="resnet18w0.125", metadata=metadata, heads=head.state_dict())
    task = make_task("transferability", {"classifier": "file"})
    request = Request(str(file), str(tmp_path / "photos"), (task,), preprocessing={"resize": (16, 16), "crop": None})
    run = RunSettings(device="cpu", workers=0)
    (result,) = evaluate(prepare(request, run), store=tmp_path / "store", out=tmp_path / "out", command="")
    assert result.metrics["leep"].value < 0 and result.data.train.classes == ("dark", "light")
    assert {"leep", "nce"} <= set(result.floors["shuffled labels"])
    with pytest.raises(UsageError, match="--layers has no effect with classifier=file"):
        prepare(dataclasses.replace(request, layers=("res4",)), run)
