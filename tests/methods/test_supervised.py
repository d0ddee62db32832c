import dataclasses

import numpy as np
import pytest
import torch
from helpers import two_processes
from helpers.training_samples import batch_of, gradient, network, random_rows, setup_for, step_of, train
from PIL import Image

from sslbench.backbones.classifier import find_classifier
from sslbench.backbones.layers import Layer, forward_layers
from sslbench.backbones.load import load_file
from sslbench.backbones.sizes import layer_dim
from sslbench.errors import DataError, UsageError
from sslbench.methods import supervised
from sslbench.methods._parts.heads import LOSSES, Head, TorchLoss, column_target
from sslbench.methods._parts.losses import cross_entropy, multi_label_loss, top1
from sslbench.targets.classes import Classes
from sslbench.targets.numbers import Numbers
from sslbench.weights.reading import files


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equals_the_formula(smoothing):
    logits, labels = random_rows(6, 4), np.array([0, 3, 1, -1, 2, 0])
    terms = []
    for row, label in zip(logits, labels, strict=True):
        if label >= 0:
            target = np.full(4, smoothing / 4)
            target[label] += 1 - smoothing
            terms.append(-(target * np.log(np.exp(row) / np.exp(row).sum())).sum())
    ours = cross_entropy(torch.from_numpy(logits), torch.from_numpy(labels), smoothing)
    assert ours.item() == pytest.approx(np.mean(terms), rel=1e-12)


def test_top1_is_a_percentage():
    assert top1(torch.eye(4), torch.tensor([0, 1, 2, 0])).item() == 75


@pytest.mark.parametrize("classes", [0, 1])
def test_data_without_classes_is_refused(classes):
    backbone = network()
    with pytest.raises(UsageError, match="one of at least two classes"):
        supervised.Method(backbone, supervised.Config(), setup_for(backbone, sizes=(32,), classes=classes))


def test_a_batch_without_labels_is_refused():
    setup = setup_for(network(), sizes=(32,))
    method = supervised.Method(network(), supervised.Config(), setup)
    with pytest.raises(UsageError, match="without labels"):
        method(dataclasses.replace(batch_of(setup), labels=None), step_of(0, setup))


TARGETS = np.array([[1, 0, -1], [0, 0, -1], [-1, 1, -1], [1, 1, -1], [0, 0, -1], [-1, 0, -1]], np.int8)


def slow_multi_label(logits, targets):
    """VISSL's: every class is divided by its known labels; one without any counts nothing."""
    total = 0.0
    for c in range(targets.shape[1]):
        terms = []
        for z, y in zip(logits[:, c], targets[:, c], strict=True):
            if y >= 0:
                terms.append(-np.log(1 / (1 + np.exp(-z))) if y else -np.log(1 - 1 / (1 + np.exp(-z))))
        total += np.mean(terms) if terms else 0.0
    return total


def test_the_loss_of_several_labels_equals_the_formula():
    logits, targets = random_rows(6, 3), torch.from_numpy(TARGETS)
    value, slope = gradient(lambda x: multi_label_loss(x, targets), logits)
    assert value == pytest.approx(slow_multi_label(logits, TARGETS), rel=1e-12)
    for at in [(0, 0), (3, 1), (2, 0), (1, 2)]:
        step = np.zeros_like(logits)
        step[at] = 1e-6
        numeric = (slow_multi_label(logits + step, TARGETS) - slow_multi_label(logits - step, TARGETS)) / 2e-6
        assert slope[at] == pytest.approx(numeric, rel=1e-6, abs=1e-9)


def _half_of_the_labels(rank, logits):
    mine = slice(3 * rank, 3 * rank + 3)
    return gradient(lambda x: multi_label_loss(x, torch.from_numpy(TARGETS[mine])), logits[mine])


def test_two_processes_equal_one_where_labels_are_missing():
    logits = random_rows(6, 3)
    value, slope = gradient(lambda x: multi_label_loss(x, torch.from_numpy(TARGETS)), logits)
    (first, first_slope), (second, second_slope) = two_processes.run(_half_of_the_labels, logits)
    assert (first + second) / 2 == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(np.concatenate([first_slope, second_slope]) / 2, slope, atol=1e-15)


def test_smoothing_of_several_labels_is_refused():
    setup = setup_for(network(), sizes=(32,), classes=0, targets=torch.ones(100, 4, dtype=torch.int8))
    with pytest.raises(UsageError, match="label_smoothing has no effect"):
        supervised.Method(network(), supervised.Config(label_smoothing=0.1), setup)


def test_trains_on_several_labels():
    targets = torch.randint(-1, 2, (100, 4), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    setup = setup_for(network(), sizes=(32,), classes=0, targets=targets)
    losses = train(supervised.Method(network(), supervised.Config(), setup).train(), batch_of(setup), setup, 20)
    assert np.mean(losses[10:]) < np.mean(losses[:10])


OPTIONS = {
    "CrossEntropyLoss": {"label_smoothing": 0.1, "weight": [1, 2, 0.5]},
    "MultiMarginLoss": {"margin": 0.5, "weight": [1, 2, 0.5]},
    "BCEWithLogitsLoss": {"pos_weight": [1, 2, 0.5]},
    "SmoothL1Loss": {"beta": 0.3},
    "HuberLoss": {"delta": 0.3},
}


def sample_of(name):
    """Outputs of six samples, and targets of the kind that a loss takes."""
    random = np.random.default_rng(1)
    kind = LOSSES[name]
    outputs = torch.from_numpy(random_rows(6, 1 if kind is Numbers else 3)).float()
    if kind is Classes:
        return outputs, torch.tensor([0, 2, 1, 1, 2, 0]), -1
    if kind is Numbers:
        return outputs, torch.from_numpy(random.normal(size=6)).float(), float("nan")
    return outputs, torch.from_numpy(random.integers(0, 2, (6, 3))).to(torch.int8), -1


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_torch_is_its_mean_over_the_known_targets(name):
    options = OPTIONS.get(name, {})
    tensors = {key: torch.tensor(value) if isinstance(value, list) else value for key, value in options.items()}
    outputs, targets, unknown = sample_of(name)
    wanted = getattr(torch.nn, name)(**tensors)

    def of_torch(rows):
        filled = targets[rows] if targets.dtype == torch.int64 else targets[rows].float()
        return wanted(outputs[rows].squeeze(1), filled).item()

    ours = TorchLoss(name, options, outputs.shape[1])
    assert ours(outputs, targets).item() == pytest.approx(of_torch(slice(None)), rel=1e-6)
    targets[4:] = unknown
    assert ours(outputs, targets).item() == pytest.approx(of_torch(slice(0, 4)), rel=1e-6)


@pytest.mark.parametrize("options", [{}, {"weight": [1.0, 2.0, 0.5]}])
def test_labels_of_minus_1_equal_ignored_ones_of_torch(options):
    outputs, targets, unknown = sample_of("CrossEntropyLoss")
    tensors = {key: torch.tensor(value) for key, value in options.items()}
    wanted = torch.nn.CrossEntropyLoss(**tensors, ignore_index=2)(outputs, targets)
    ours = TorchLoss("CrossEntropyLoss", options, 3)(outputs, torch.where(targets == 2, unknown, targets))
    assert ours.item() == pytest.approx(wanted.item(), rel=1e-6)


@pytest.mark.parametrize("options", [{}, OPTIONS["CrossEntropyLoss"]])
def test_the_loss_of_mixed_images_is_that_of_torch(options):
    outputs, shares = sample_of("CrossEntropyLoss")[0], torch.from_numpy(random_rows(6, 3)).float().softmax(1)
    tensors = {key: torch.tensor(value) if isinstance(value, list) else value for key, value in options.items()}
    wanted = torch.nn.CrossEntropyLoss(**tensors)(outputs, shares)
    assert TorchLoss("CrossEntropyLoss", options, 3)(outputs, shares).item() == pytest.approx(wanted.item(), rel=1e-6)


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_mixed_images_are_trained_with_cross_entropy_of_torch(name):
    net, setup = with_columns()
    config = supervised.Config(loss="CrossEntropyLoss", loss_options={"label_smoothing": 0.1}, **{name: 1.0})
    assert np.isfinite(train(supervised.Method(net, config, setup).train(), batch_of(setup), setup, 2)).all()


def _half_with_torch(rank, outputs, targets):
    mine = slice(3 * rank, 3 * rank + 3)
    return TorchLoss("CrossEntropyLoss", None, 3)(outputs[mine], targets[mine]).item()


def test_two_processes_have_the_loss_of_one_where_cells_are_empty():
    outputs, targets, _ = sample_of("CrossEntropyLoss")
    targets[3:5] = -1
    parts = two_processes.run(_half_with_torch, outputs, targets)
    assert np.mean(parts) == pytest.approx(TorchLoss("CrossEntropyLoss", None, 3)(outputs, targets).item(), rel=1e-6)


HEADS = (
    Head(layer="layer3", target="colour", weight=0.5, hidden=(16,), norm="layer", loss="CrossEntropyLoss"),
    Head(target="size", weight=3.0, loss="MSELoss"),
    Head(),
)


def with_columns(**changes):
    net = network()
    layer = Layer("layer3", "layer3")
    columns = {"colour": ["red", "blue", "", "red"] * 25, "size": ["0.5", "", "2", "1"] * 25}
    layers = {"layer3": (layer, layer_dim(net, layer, 32))}
    return net, setup_for(net, sizes=(32,), columns=columns, layers=layers, **changes)


def test_several_heads_are_the_weighted_sum_of_their_losses():
    net, setup = with_columns()
    method = supervised.Method(net, supervised.Config(heads=HEADS), setup).eval()
    batch = batch_of(setup)
    found = forward_layers(net, batch.views[0], (Layer("output", ""), setup.layers["layer3"][0]))
    of_colour = method.networks[0](found["layer3"])
    of_size, of_labels = (network(found["output"]) for network in method.networks[1:])
    colours, sizes = [1, 0, 1, 1, 0, 1], [0.5, 2, 1, 0.5, 2, 1]
    known, measured = [0, 1, 3, 4, 5, 7], [0, 2, 3, 4, 6, 7]
    parts = (
        torch.nn.functional.cross_entropy(of_colour[known], torch.tensor(colours)),
        (of_size[measured, 0] - torch.tensor(sizes)).square().mean(),
        torch.nn.functional.cross_entropy(of_labels, batch.labels),
    )
    loss = method(batch, step_of(0, setup))
    assert loss.value.item() == pytest.approx((0.5 * parts[0] + 3 * parts[1] + parts[2]).item(), rel=1e-5)
    logged = [loss.parts[f"loss_{name}"].item() for name in ("colour@layer3", "size", "labels")]
    assert logged == pytest.approx([part.item() for part in parts], rel=1e-5)
    right = (of_colour[known].argmax(1) == torch.tensor(colours)).float().mean() * 100
    assert loss.parts["top1_colour@layer3"].item() == pytest.approx(right.item(), rel=1e-5)


def test_several_heads_learn_and_one_on_the_labels_is_saved():
    net, setup = with_columns()
    method = supervised.Method(net, supervised.Config(heads=HEADS), setup).train()
    assert list(method.heads("student")) == ["head"] and method.heads("student")["head"] is method.networks[2]
    losses = train(method, batch_of(setup), setup, 20, lr=0.001)
    assert np.mean(losses[10:]) < np.mean(losses[:10])
    with pytest.raises(UsageError, match="compile=true has no hooks"):
        method.compile_networks()
    assert supervised.Method(net, supervised.Config(heads=HEADS[:2]), setup).heads("student") == {}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"loss": "CrossEntropyLos"}, "no loss 'CrossEntropyLos' for heads\nDid you mean 'CrossEntropyLoss'"),
        ({"loss": "MSELoss"}, "MSELoss takes numbers as labels, and the data have one class each"),
        ({"loss": "CrossEntropyLoss", "loss_options": {"smoothing": 0.1}}, "has no argument 'smoothing'"),
        ({"loss": "CrossEntropyLoss", "loss_options": {"reduction": "sum"}}, "has no argument 'reduction'"),
        ({"loss": "CrossEntropyLoss", "loss_options": {"ignore_index": 2}}, "'ignore_index'.*not taken\n.*-1 or empty"),
        ({"heads": (Head(loss="CrossEntropyLoss", loss_options={"ignore_index": 2}),)}, "'ignore_index'.*not taken"),
        ({"loss": "MultiMarginLoss", "mixup": 0.2}, "mixup needs CrossEntropyLoss, not MultiMarginLoss"),
        ({"loss": "MSELoss", "cutmix": 1.0}, "cutmix needs CrossEntropyLoss, not MSELoss"),
        ({"loss": "CrossEntropyLoss", "loss_options": {"weight": [1.0, 2.0]}}, "CrossEntropyLoss with .* fails"),
        ({"loss": "CrossEntropyLoss", "label_smoothing": 0.1}, "label_smoothing has no effect with loss"),
        ({"heads": (Head(),), "mixup": 0.2}, "mixup has no effect with heads"),
        ({"heads": (Head(), Head(weight=2.0))}, "two heads have the target and layer labels"),
        ({"heads": (Head(target="colour", loss="BCEWithLogitsLoss"),)}, "a column has a class or number each"),
    ],
)
def test_losses_and_heads_that_do_not_fit_are_refused(config, message):
    net, setup = with_columns()
    with pytest.raises(UsageError, match=message):
        supervised.Method(net, supervised.Config(**config), setup)


def test_a_column_that_is_no_target_is_refused():
    with pytest.raises(DataError, match="the column 'size' has no number\n"):
        column_target("size", ["", ""], Numbers)
    with pytest.raises(DataError, match="'colour' has 1 classes"):
        column_target("colour", ["red", "red"], Classes)


@pytest.mark.parametrize("text", ["large", "inf", "-inf", "1e400", "3.5e38", "-1e39", "1_000"])
def test_a_cell_that_is_no_number_is_refused(text):
    with pytest.raises(DataError, match=rf"the column 'size' has no number in row 3 \('{text}'\)"):
        column_target("size", ["1", "", text, text], Numbers)


def test_the_largest_and_unknown_numbers_of_a_column_are_kept():
    values, outputs = column_target("size", ["3.4e38", "", "-2e3", "nan"], Numbers)
    torch.testing.assert_close(values, torch.tensor([3.4e38, np.nan, -2000, np.nan]), equal_nan=True, rtol=0, atol=0)
    assert outputs == 1


def test_heads_on_columns_of_a_table_are_trained_by_the_command(tmp_path, monkeypatch, sslbench):
    monkeypatch.chdir(tmp_path)
    rows = ["path,label,colour"]
    for i in range(16):
        Image.fromarray(np.random.default_rng(i).integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(f"{i}.png")
        rows.append(f"{i}.png,{'ab'[i % 2]},{('red', 'blue', '')[i % 3]}")
    (tmp_path / "t.csv").write_text("\n".join(rows))
    words = ("--data", "t.csv", "--label-column", "label", "--backbone", "resnet18w0.125", "--batch-size", "8")
    words += ("--workers", "0", "--epochs", "1", "augment.views=[{size: 32}]", "--out", "run")
    heads = "method.heads=[{layer: res4, target: colour, hidden: [8], dropout: 0.5}, {}]"
    code, _, err = sslbench("pretrain", "supervised", *words, heads.replace("colour", "color"))
    assert code == 2 and "has no column 'color'" in err and not (tmp_path / "run").exists()
    code, _, err = sslbench("pretrain", "supervised", *words, heads)
    assert code == 0 and "loss_colour@res4" in err + (tmp_path / "run/metrics.jsonl").read_text()
    file = files.read(tmp_path / "run/weights.torch")
    classifier = find_classifier(file, load_file(file, heads=True))
    assert classifier.info.classes == ("a", "b") and classifier.info.layer == "output"
    code, _, err = sslbench(
        "pretrain", "supervised", *words[:-1], "mlp", heads.replace("{}", "{hidden: [8], dropout: 0.5}")
    )
    assert code == 0
    file = files.read(tmp_path / "mlp/weights.torch")
    assert [type(layer).__name__ for layer in load_file(file, heads=True).heads["head"]] == [
        *("Linear", "ReLU", "Identity", "Linear")
    ]
