"""Public functions with data in memory: the same numbers and keys as from files, and clear refusals."""

import logging

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

import sslbench
from sslbench.errors import SslbenchError, UsageError

N = 240
QUICK = {"device": "cpu", "floors": False, "overlaps": False, "resize": 8, "crop": 8}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, 8, 3, 2, 1)

    def forward(self, x):
        return torch.relu(self.conv(x)).flatten(1)


@pytest.fixture(scope="module")
def digits():
    found = load_digits()
    return (found.images[:N] * 15).astype(np.uint8), found.target[:N]


def one(model, *data, **options):
    (result,) = sslbench.evaluate(model, *data, protocols="knn", **{"out": None, **QUICK, **options})
    return result


def test_every_form_of_the_same_images_is_one_measurement(digits):
    images, labels = digits
    tensors = torch.from_numpy(images)[:, None]
    forms = [
        (images, labels),
        (tensors, torch.from_numpy(labels)),
        torch.utils.data.TensorDataset(tensors.float() / 255, torch.from_numpy(labels)),
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tensors, torch.from_numpy(labels)), batch_size=7),
        ([Image.fromarray(image) for image in images], labels.tolist()),
        {"all": (images, labels)},
    ]
    net = Net()
    results = [one(net, form) for form in forms]
    assert len({result.id for result in results[:5]}) == 1
    assert len({result.metrics["top1"].value for result in results}) == 1


def test_files_and_images_in_memory_have_the_same_features(digits, tmp_path):
    images, labels = digits
    files = []
    for i, image in enumerate(images):
        files.append(tmp_path / "photos" / str(labels[i]) / f"{i:04d}.png")
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(files[-1])
    expected = sslbench.extract(Net(), images, resize=8, crop=8, device="cpu")
    np.testing.assert_array_equal(sslbench.extract(Net(), files, resize=8, crop=8, device="cpu"), expected)
    (folder,) = sslbench.extract_features(Net(), tmp_path / "photos", resize=8, crop=8, device="cpu").values()
    of_file = {
        sample.rsplit("/", 1)[-1]: row for sample, row in zip(folder["output"].ids, folder["output"].x, strict=True)
    }
    np.testing.assert_array_equal(np.stack([of_file[file.name] for file in files]), expected)
    assert expected.shape == (N, 8 * 4 * 4)


def test_processes_decode_images_in_memory(digits):
    images, _ = digits
    expected = sslbench.extract(Net(), images[:20], resize=8, crop=8, device="cpu", workers=0)
    pictures = [Image.fromarray(image).convert("RGB") for image in images[:20]]
    np.testing.assert_array_equal(
        sslbench.extract(Net(), pictures, resize=8, crop=8, device="cpu", workers=2, batch_size=3), expected
    )


def test_train_and_test_may_be_of_different_kinds(digits, tmp_path):
    images, labels = digits
    for i in range(40):
        folder = tmp_path / "test" / str(labels[i])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[i]).save(folder / f"{i}.png")
    result = one(Net(), (images, labels), tmp_path / "test")
    assert result.data.test.n == 40 and result.metrics["top1"].value > 90


def test_wrapped_modules_are_unwrapped_and_names_are_used(digits):
    plain, wrapped = one(Net(), digits, name="epoch 1"), one(nn.DataParallel(Net()), digits, name="epoch 2")
    assert plain.id == wrapped.id
    assert (plain.weights.name, wrapped.weights.name) == ("epoch 1", "epoch 2")
    assert wrapped.weights.backbone == "Net"


def test_features_are_scored_without_a_model(digits):
    images, labels = digits
    x = images.reshape(N, -1).astype(np.float64)
    options = {"device": "cpu", "out": None, "protocols": "knn"}
    (of_array,) = sslbench.evaluate(None, (x, labels), **options)
    (of_tensor,) = sslbench.evaluate(None, (torch.from_numpy(x), torch.from_numpy(labels)), **options)
    assert of_array.id == of_tensor.id
    (parts,) = sslbench.evaluate(None, (x[:200], labels[:200]), (x[200:], labels[200:]), **options)
    assert parts.data.test.n == 40
    with pytest.raises(UsageError, match="'resize' has no effect"):
        sslbench.evaluate(None, (x, labels), resize=3, **options)


def test_without_out_nothing_is_written_and_results_compare(digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"protocols": "knn", "out": None, "device": "cpu", "floors": False}
    a, b = (sslbench.evaluate(f"pixels:{side}", digits, **options)[0] for side in (1, 8))
    assert sslbench.compare(a, b).verdict == "B better"
    assert not list(tmp_path.iterdir())


def test_results_show_themselves(digits, capsys):
    results = sslbench.evaluate(Net(), digits, protocols=["knn"], name="<b>", out=None, **QUICK)
    frame = results.to_pandas()
    assert frame.loc[0, "weights"] == "<b>" and frame.loc[0, "top1"] == results[0].metrics["top1"].value
    assert "&lt;b&gt;" in results._repr_html_() and "<b>" not in results[0]._repr_html_()
    assert set(results[0].to_pandas()["metric"]) == set(results[0].metrics)
    results.show()
    results[0].show()
    with pytest.raises(KeyError, match=r"no metric 'top_1'; there are: top1, .*Did you mean 'top1'"):
        results.metrics["top_1"]
    assert "mAP" in results.metrics and results.metrics.get("r2") is None
    assert results.metrics is results[0].metrics and results[0].images() in str(results)
    assert not hasattr(type(results)([*results, *results]), "metrics"), "of several results no one is meant"
    out = capsys.readouterr().out
    assert "top1" in out and f"{results[0].metrics['top1'].value:.2f}" in out
    assert float(results.metrics["top1"]) == results.metrics["top1"].value
    assert str(results.metrics["top1"]).startswith(f"{results.metrics['top1'].value:.2f} [")


def test_comparisons_boards_and_backbones_show_themselves(digits, tmp_path):
    a, b = (
        sslbench.evaluate(f"pixels:{side}", digits, protocols="knn", device="cpu", floors=False, out=tmp_path)
        for side in (2, 8)
    )
    found = sslbench.compare(a, b)
    assert found.verdict in repr(found) and "pixels:8" in repr(found) and "Result(" not in repr(found)
    board = sslbench.make_leaderboard(tmp_path)
    assert str(b.metrics["top1"]) in repr(board) and len(repr(board).splitlines()) == 3
    assert board.to_pandas().iloc[:, -1].max() == pytest.approx(b.metrics["top1"].value)
    backbone = repr(sslbench.load_backbone("random", backbone="resnet18w0.125"))
    assert backbone.startswith("Backbone resnet18w0.125 untrained: ") and "res5avg" in backbone
    with pytest.raises(sslbench.SslbenchError, match="this is 2 results"):
        sslbench.compare(type(a)([*a, *b]), b)


def test_data_in_memory_are_refused_where_files_are_read(digits, tmp_path):
    calls = [
        lambda: sslbench.evaluate_detection("random", digits, backbone="resnet18"),
        lambda: sslbench.pretrain("simclr", digits, tmp_path / "run"),
        lambda: sslbench.predict("w.pth", digits, tmp_path / "a.csv"),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="a location as text, not of the type tuple"):
            call()
    with pytest.raises(UsageError, match=r"'epochs' is a setting\nPass settings="):
        sslbench.pretrain("simclr", "photos", tmp_path / "run", epochs=3)
    with pytest.raises(UsageError, match=r"no option 'resum'\nDid you mean 'resume'"):
        sslbench.pretrain("simclr", "photos", tmp_path / "run", resum="never")
    assert not list(tmp_path.iterdir())


REFUSED = {
    "a misspelt option": ({"batchsize": 3}, "Did you mean 'batch_size'"),
    "a value of another type": ({"batch_size": "many"}, "whole number"),
    "a misspelt protocol": ({"protocols": "knnn"}, "Did you mean 'knn'"),
    "a protocol on label maps": (
        {"protocols": "segmentation-knn", "layers": "conv"},
        "needs a location|not images in memory|grid",
    ),
    "protocols of another type": ({"protocols": 3}, "a name or a list of names, not 3"),
    "labels as an argument": ({"labels": [0, 1]}, r"\(images, labels\)"),
    "images alone": ({"train": np.zeros((8, 8, 8, 3), np.uint8)}, r"in Python \(images, labels\)"),
    "items without an image": (
        {"train": [{"a": 1, "b": 2}]},
        r"none of its keys a, b .*\n.*should be \(image, label\)",
    ),
    "a column": ({"label_column": "x"}, "no column 'x'"),
    "no model": ({"model": None}, "model=None"),
    "a class in place of a module": ({"model": Net}, "the class Net, neither"),
    "a function": ({"model": lambda images: images}, "of the type function.*\nCall it if it makes a module"),
    "a state dict": ({"model": Net().state_dict()}, "of the type OrderedDict.*\n.*load_state_dict"),
    "several models": ({"model": ["a.pth", "b.pth"]}, "of the type list.*\nCall this once for each"),
    "an architecture": ({"model": "resnet50"}, "no weights file resnet50\n.*timm:resnet50"),
    "another order": ({"model": "photos", "train": Net()}, "train is a module, Net\n.*the model comes first"),
    "a protocol as test": ({"test": "knn"}, r"test is 'knn', which is a protocol\nWrite protocols='knn'"),
    "labels as test": (
        {"model": None, "train": np.eye(4), "test": [0, 1, 0, 1]},
        r"4 labels\n.*evaluate\(None, \(x, y\)\)",
    ),
    "settings beside their protocols": ({"protocols": {"knn": {"k": 5}}}, r"\nWrite protocols=\['knn'\], settings="),
    "a setting as an option": ({"protocols": "knn", "k": 5}, r'setting of knn: settings=\{"knn": \{"k"'),
    "an option of images for features": (
        {"model": None, "train": (np.eye(4), [0, 1, 0, 1]), "device": "cpu", "crop": 8},
        "'crop' has no effect on features",
    ),
    "masked features": (
        {"model": None, "train": (np.ma.masked_equal(np.eye(4), 0), [0, 1, 0, 1])},
        "masked in 12 places",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_calls_end_in_one_message(case, digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options, words = REFUSED[case]
    with pytest.raises(SslbenchError, match=words) as error:
        sslbench.evaluate(**{"model": Net(), "train": digits, **options})
    assert "0x" not in str(error.value) and not list(tmp_path.iterdir())


def test_mappings_name_arrays_as_keras_and_scikit_learn_do(digits, tmp_path):
    images, labels = digits
    expected = one(Net(), (images[:160], labels[:160]), (images[160:], labels[160:])).metrics["top1"]
    np.savez(tmp_path / "d.npz", x_train=images[:160], y_train=labels[:160], x_test=images[160:], y_test=labels[160:])
    assert one(Net(), np.load(tmp_path / "d.npz")).metrics["top1"] == expected
    assert one(Net(), {"images": images, "labels": labels}).metrics == one(Net(), (images, labels)).metrics
    x = images.reshape(len(images), -1).astype(np.float32)
    quick = {"protocols": "knn", "out": None}
    pairs = {"train": (x[:160], labels[:160]), "test": (x[160:], labels[160:])}
    (by_split,), (apart,) = (sslbench.evaluate(None, *data, **quick) for data in ([pairs], pairs.values()))
    assert by_split.data.test.n_used == 80 and by_split.metrics == apart.metrics


def test_a_frame_cannot_be_extracted_in_its_order(tmp_path):
    pd = pytest.importorskip("pandas")
    with pytest.raises(UsageError, match="frame\\['path'\\]"):
        sslbench.extract(Net(), pd.DataFrame({"path": ["a.png"]}))


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.ERROR, "sslbench")


def test_features_of_one_image(tmp_path):
    pixels = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    Image.fromarray(pixels).save(tmp_path / "one.png")
    for image in (tmp_path / "one.png", str(tmp_path / "one.png"), Image.fromarray(pixels)):
        features = sslbench.extract("pixels:8", image, device="cpu")
        assert features.shape == (1, 192) and np.array_equal(features, sslbench.extract("pixels:8", pixels[None]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 5}, "'k' is none of the protocols knn\nSettings belong to a protocol: settings="),
        ({"knnn": {"k": 5}}, "'knnn' is none of the protocols knn\nDid you mean 'knn'"),
        ({"linear": {"c": 1.0}}, "'linear' is none of the protocols knn"),
        ({"knn": 5}, "settings of knn should map names to values"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(settings, message):
    features = np.eye(8, dtype=np.float32)
    with pytest.raises(UsageError, match=message):
        sslbench.evaluate(None, (features, np.arange(8) % 2), protocols="knn", settings=settings, out=None)


def test_a_misspelt_argument_has_the_nearest_one():
    with pytest.raises(UsageError, match="no option 'protocol'\nDid you mean 'protocols'"):
        sslbench.evaluate("pixels:8", "sklearn:digits", protocol="knn")


def test_one_hot_labels_are_noticed(caplog):
    labels = np.eye(2, dtype=int)[np.arange(40) % 2]
    caplog.set_level("INFO", "sslbench")
    features = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    sslbench.evaluate(None, (features, labels), protocols="knn", out=None, settings={"knn": {"k": [3]}})
    assert "32 train and 8 test samples" in caplog.text and "no sample has several labels" in caplog.text


def test_messages_name_arguments_and_not_flags(digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images, labels = digits
    calls = {
        "model='random' needs backbone=": lambda: one("random", (images, labels)),
        "Use device='cpu'": lambda: one("pixels:8", (images, labels), device="cuda:9"),
        "settings: unknown key 'kk'": lambda: one("pixels:8", (images, labels), settings={"knn": {"kk": 3}}),
        "have no labels": lambda: one("pixels:8", images),
        "weights='random' needs backbone=": lambda: sslbench.load_backbone("random"),
    }
    for message, call in calls.items():
        with pytest.raises(sslbench.SslbenchError) as error:
            call()
        assert message in str(error.value) and "--" not in str(error.value)
        assert str(error.value) == "\n".join(filter(None, (error.value.message, error.value.remedy)))


def test_warnings_name_arguments_and_not_flags(digits, caplog):
    caplog.set_level(logging.INFO, "sslbench")
    factory = logging.getLogRecordFactory()
    classifier = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10))
    one(classifier, digits)
    assert "To evaluate the features before it: layers='3@input'" in caplog.text and "--" not in caplog.text
    assert logging.getLogRecordFactory() is factory


@pytest.mark.parametrize(
    ("call", "nearest"),
    [
        (lambda: sslbench.compare("a", "b", metrik="top1"), "metric"),
        (lambda: sslbench.make_leaderboard("results", metrc="top1"), "metric"),
        (lambda: sslbench.load_backbone("random", backbon="resnet18"), "backbone"),
        (lambda: sslbench.predict("w.pth", "photos", "a.csv", treshold=1), "threshold"),
        (lambda: sslbench.export("w.pth", "a.onnx", overwrit=True), "overwrite"),
        (lambda: sslbench.pretrain("simclr", "photos", "run", devise="cpu"), "device"),
        (lambda: sslbench.evaluate_detection("random", "kwcoco:shapes8", devise="cpu"), "device"),
    ],
)
def test_every_public_function_answers_a_misspelt_argument_with_the_nearest(call, nearest):
    with pytest.raises(UsageError, match=f"Did you mean .*'{nearest}'"):
        call()


def test_arguments_may_have_the_names_of_flags(digits):
    (found,) = sslbench.evaluate(weights="pixels:8", data="sklearn:digits", protocols="knn", out=None, **QUICK)
    assert found.weights.name == "pixels:8"
    for call, words in (
        (lambda: sslbench.evaluate(model="pixels:8", weights="a", data="photos"), "'weights' and 'model' are the same"),
        (
            lambda: sslbench.evaluate("pixels:8"),
            "missing a required argument: 'train'\nCall evaluate.model, train, test",
        ),
        (lambda: sslbench.evaluate("pixels:8", "photos", None, "knn"), "too many positional arguments\nCall"),
        (lambda: sslbench.extract("pixels:8"), "'images'\nCall extract.model, images.; further"),
    ):
        with pytest.raises(UsageError, match=words):
            call()


def test_two_data_sets_of_torch_are_train_and_test(digits):
    images = torch.from_numpy(digits[0])[:, None]
    parts = [torch.utils.data.TensorDataset(images[i::2], torch.from_numpy(digits[1])[i::2]) for i in range(2)]
    assert one("pixels:8", tuple(parts)).metrics == one("pixels:8", parts[0], parts[1]).metrics


def test_options_without_effect_on_detection_are_refused():
    backbone = {"backbone": "resnet_basic_1-1-1-1w0.125", "recipe": "detection/toy", "out": None}
    for option in ({"interpolation": "nearest"}, {"mean": (0.5, 0.5, 0.5)}, {"groups": ("patient",)}):
        with pytest.raises(UsageError, match=f"{next(iter(option))} has no effect on detection"):
            sslbench.evaluate_detection("random", "kwcoco:shapes8-64", **backbone, **option)


def test_three_arrays_end_in_a_message_with_the_call_that_works(digits):
    x, y = torch.from_numpy(digits[0])[:, None], digits[1]
    with pytest.raises(UsageError, match=r"a tuple of 3.*\nPass \(x\[0\], x\[1\]\)"):
        one("pixels:8", (x, y, np.arange(len(y))))


def test_a_librarys_classifier_is_scored_by_its_features(digits, caplog):
    import torchvision

    caplog.set_level(logging.INFO, "sslbench")
    model = torchvision.models.resnet18(num_classes=7)
    sizes = {"resize": 32, "crop": 32, "limit": 20}
    found = one(model, digits, **sizes)
    assert found.layer == "fc@input" and "before its classifier 'fc'" in caplog.text
    assert one(model, digits, **sizes, layers="output").layer == "output"
    model.fc = nn.Identity()
    assert one(model, digits, **sizes).metrics == found.metrics
