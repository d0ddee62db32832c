"""What an evaluation refuses, check-data reports; what check-data calls an error, an evaluation refuses."""

import json

import numpy as np
import pytest
from PIL import Image

from sslbench.cli.main import main


def array(rows, seed, *shape, dtype=np.uint8):
    return np.random.default_rng([rows, seed]).integers(0, 255, shape).astype(dtype)


def folders(root, classes=("cat", "dog"), n=4, write=None):
    for c, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(n):
            if write is None:
                Image.fromarray(array(c, i, 6, 6, 3)).save(root / name / f"{i}.png")
            else:
                write(root / name, c, i)
    return root


def damaged(root, content):
    folders(root)
    (root / "cat" / "x.jpg").write_bytes(content)
    return root


def arrays(*channels):
    return lambda folder, c, i: np.save(folder / f"{i}.npy", array(c, i, 6, 6, channels[i % len(channels)]))


def table(root, text):
    folders(root)
    (root / "t.csv").write_text(text)
    return root / "t.csv"


def parts(root, train, val, copies=False):
    folders(root / "train", train)
    folders(
        root / "val",
        val,
        n=2,
        write=None if copies else lambda f, c, i: Image.fromarray(array(9 + c, i, 6, 6, 3)).save(f / f"{i}.png"),
    )
    return root


def manifest(root, change):
    folders(root)
    files = [f"{name}/{i}.png" for name in ("cat", "dog") for i in range(4)]
    content = {
        "images": [{"id": i, "file_name": name} for i, name in enumerate(files)],
        "annotations": [{"id": i, "image_id": i, "category_id": 1 + i // 4} for i in range(len(files))],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
    }
    change(content)
    (root / "m.json").write_text(json.dumps(content))
    return root / "m.json"


ROWS = "path,label\n" + "".join(f"{name}/{i}.png,{name}\n" for name in ("cat", "dog") for i in range(4))
USABLE = {
    "folders": folders,
    "a table": lambda root: table(root, ROWS),
    "grey": lambda root: folders(root, write=lambda f, c, i: Image.fromarray(array(c, i, 6, 6)).save(f / f"{i}.png")),
    "a palette with transparency": lambda root: folders(
        root, write=lambda f, c, i: Image.fromarray(array(c, i, 6, 6)).convert("P").save(f / f"{i}.png", transparency=1)
    ),
    "16 bits": lambda root: folders(
        root, write=lambda f, c, i: Image.fromarray(256 * array(c, i, 6, 6, dtype=np.uint16)).save(f / f"{i}.png")
    ),
    "a manifest": lambda root: manifest(root, lambda content: None),
    "train and val": lambda root: parts(root, ("cat", "dog"), ("cat", "dog")),
}
REFUSED = {
    "no labels": lambda root: folders(root, ("images",)),
    "one class": lambda root: folders(root, ("cat",)),
    "one image per class": lambda root: folders(root, n=1),
    "empty": lambda root: damaged(root, b""),
    "a web page": lambda root: damaged(root, b"<html>404</html>"),
    "truncated": lambda root: damaged(root, b"\xff\xd8\xff\xe0" + bytes(90)),
    "four bands": lambda root: folders(root, write=arrays(4)),
    "two bands": lambda root: folders(root, write=arrays(2)),
    "three and four bands": lambda root: folders(root, write=arrays(3, 4)),
    "dark 16 bits": lambda root: folders(
        root, write=lambda f, c, i: Image.fromarray(array(c, i, 6, 6, dtype=np.uint16)).save(f / f"{i}.png")
    ),
    "floats": lambda root: folders(
        root, write=lambda f, c, i: Image.fromarray(array(c, i, 6, 6, dtype=np.float32)).save(f / f"{i}.tif")
    ),
    "a missing file": lambda root: table(root, ROWS + "cat/none.png,cat\n"),
    "an image twice": lambda root: table(root, ROWS + "cat/0.png,dog\n"),
    "an empty label": lambda root: table(root, ROWS.replace("cat/0.png,cat", "cat/0.png,")),
    "a class of val alone": lambda root: parts(root, ("cat", "dog"), ("cat", "owl")),
    "val in train": lambda root: parts(root, ("cat", "dog"), ("cat", "dog"), copies=True),
    "an annotation of no image": lambda root: manifest(root, lambda m: m["annotations"][0].update(image_id=99)),
    "a category twice": lambda root: manifest(root, lambda m: m["categories"].append({"id": 3, "name": "cat"})),
}


@pytest.mark.parametrize("name", [*USABLE, *REFUSED])
def test_check_data_reports_what_an_evaluation_refuses(name, tmp_path, capsys):
    place = str({**USABLE, **REFUSED}[name](tmp_path / "data"))
    codes = []
    for command in (
        ["check-data", place, "--json", "--workers", "0"],
        ["eval", "knn", "--data", place, *EVAL, str(tmp_path / "out")],
    ):
        with pytest.raises(SystemExit) as end:
            main(command)
        codes.append(end.value.code or 0)
        if command[0] == "check-data":
            told = json.loads(capsys.readouterr().out)
    levels = {finding["level"] for finding in told["findings"]}
    assert (codes[1] != 0) == (name in REFUSED), capsys.readouterr().err
    if name in USABLE:
        assert "error" not in levels and codes[0] == 0, told
    elif name == "no labels":
        assert any("not for evaluation" in finding["message"] for finding in told["findings"])
    else:
        assert levels & {"error", "warning"}, told


EVAL = ("--weights", "pixels", "--no-floors", "--workers", "0", "k=1", "-o")


def test_check_data_reports_images_of_depth_that_cannot_be_read_or_are_turned(tmp_path, capsys):
    exif = Image.Exif()
    exif[0x0112] = 3
    for i in range(3):
        for kind in ("images", "depth"):
            (tmp_path / kind).mkdir(exist_ok=True)
        Image.fromarray(array(0, i, 6, 6, 3)).save(tmp_path / "images" / f"{i}.jpg", exif=exif)
        np.save(tmp_path / "depth" / f"{i}.npy", np.ones((6, 6), np.float32))
    for code, words in ((0, "3 of 3 images are turned by EXIF"), (1, "0.jpg: truncated JPEG")):
        with pytest.raises(SystemExit) as end:
            main(["check-data", str(tmp_path)])
        assert (end.value.code or 0) == code and words in capsys.readouterr().out
        (tmp_path / "images" / "0.jpg").write_bytes((tmp_path / "images" / "0.jpg").read_bytes()[:-40])
