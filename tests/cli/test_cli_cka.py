import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sslbench.metrics.spectrum import cka_matrix

NET = "tiny_net_of_the_tests:net"


def matrix(path):
    with Path(path).open() as file:
        head, *rows = csv.reader(file)
    return head[1:], [row[0] for row in rows], np.array([[float(value) for value in row[1:]] for row in rows])


def test_layers_of_two_networks_on_the_same_images(world, sslbench):
    code, out, err = sslbench(
        *("cka", "w.pth", "random", "--backbone", NET, "--data", "photos", "--layers", "conv1,conv2"),
        *("--csv", "cka.csv", "--png", "cka.png"),
    )
    assert code == 0, err
    assert "15 images" in err, "the test part"
    columns, rows, values = matrix("cka.csv")
    assert columns == rows == ["conv1", "conv2"] and np.all((values > 0) & (values <= 1))
    assert f"{values[1, 0]:.3f}" in out
    assert Image.open("cka.png").size[0] > 200
    again = ("cka", "w.pth", "w.pth", "--backbone", NET, "--data", "photos", "--layers", "conv1,conv2")
    code, _, err = sslbench(*again, "--csv", "same.csv")
    assert code == 0 and "features were stored" in err
    np.testing.assert_allclose(np.diag(matrix("same.csv")[2]), 1)


def test_by_default_all_named_layers_of_each_side(world, sslbench):
    code, _, err = sslbench(
        *("cka", "random", "pixels", "--backbone", "resnet18w0.25", "--data", "photos", "--limit", "6"),
        *("--backbone-b", "pixels", "--csv", "cka.csv", "--resize", "32x32", "--crop", "none"),
    )
    assert code == 0, err
    columns, rows, _ = matrix("cka.csv")
    assert columns == ["pixels"]
    assert rows == ["conv1", "res1", "res2", "res3", "res4", "res5", "res5avg"]


@pytest.mark.parametrize("debiased", [False, True])
def test_features_made_elsewhere_and_folders_of_the_store(world, sslbench, debiased):
    generator = np.random.default_rng(0)
    x, y = (generator.normal(size=(30, width)).astype(np.float32) for width in (4, 7))
    np.save("x.npy", x)
    np.save("y.npy", y)
    flags = ["--debiased"] if debiased else []
    code, _, err = sslbench("cka", "x.npy", "y.npy", "--csv", "cka.csv", *flags)
    assert code == 0, err
    assert matrix("cka.csv")[2][0, 0] == pytest.approx(cka_matrix([x], [y], debiased=debiased)[0, 0], abs=1e-12)
    code, out, err = sslbench(
        "extract", "--weights", "w.pth", "--backbone", NET, "--data", "photos", "--layers", "conv1,conv2"
    )
    train = next(line.split("\t")[-1] for line in out.splitlines() if line.startswith("train"))
    test = next(line.split("\t")[-1] for line in out.splitlines() if line.startswith("test"))
    folder = Path(train).parent
    code, _, err = sslbench("cka", folder, folder, "--layers", "conv2", "--layers-b", "conv1,conv2", "--csv", "s.csv")
    assert code == 0, err
    columns, rows, values = matrix("s.csv")
    assert (columns, rows) == (["conv1", "conv2"], ["conv2"]) and values[0, 1] == pytest.approx(1)
    code, _, err = sslbench("cka", folder, Path(test).parent)
    assert code == 1 and "the samples differ" in err
    (world / "photos" / "train" / "blue" / "0.png").rename(world / "photos" / "train" / "blue" / "zero.png")
    _, out, _ = sslbench("extract", "--weights", "w.pth", "--backbone", NET, "--data", "photos")
    renamed = Path(next(line.split("\t")[-1] for line in out.splitlines() if line.startswith("train"))).parent
    code, _, err = sslbench("cka", folder, renamed, "--layers", "conv2", "--layers-b", "output")
    assert code == 1 and "the samples differ" in err, "as many, with other ids"
    shutil.copy(world / "photos" / "train" / "blue" / "1.png", world / "photos" / "train" / "blue" / "zero.png")
    _, out, _ = sslbench("extract", "--weights", "w.pth", "--backbone", NET, "--data", "photos")
    other = Path(next(line.split("\t")[-1] for line in out.splitlines() if line.startswith("train"))).parent
    code, _, err = sslbench("cka", other, renamed)
    assert code == 1 and "different images with the same names" in err
    code, _, err = sslbench("cka", folder, folder, "--layers", "conv3")
    assert code == 2 and "no layer 'conv3'" in err and "conv" in err


def test_mistakes_are_said_plainly(world, sslbench):
    np.save("x.npy", np.eye(5, dtype=np.float32))
    code, _, err = sslbench("cka", "x.npy", "w.pth")
    assert code == 2 and "both be weights or both be features" in err
    np.save("nan.npy", np.full((5, 2), np.nan, np.float32))
    code, _, err = sslbench("cka", "x.npy", "nan.npy")
    assert code == 1 and "not all finite" in err
    code, _, err = sslbench("cka", "x.npy", "missing.npy")
    assert code == 2 and "missing.npy" in err
    assert "Traceback" not in err
