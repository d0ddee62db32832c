"""`sslbench check-data`: what is wrong is said, files hold what was asked for, and the exit code tells."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

from sslbench.cli.main import main


@pytest.fixture
def photos(tmp_path):
    """train/ and val/ with two classes of twelve and six images."""
    rng = np.random.default_rng(0)
    for part, n in (("train", 12), ("val", 6)):
        for name in ("cat", "dog"):
            (tmp_path / "photos" / part / name).mkdir(parents=True)
            for i in range(n):
                pixels = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
                picture = Image.fromarray(pixels).resize((48, 40), Image.Resampling.BICUBIC)
                picture.save(tmp_path / "photos" / part / name / f"{i}.png")
    return tmp_path / "photos"


@pytest.fixture
def check(capsys):
    """`check(*words)`: exit code, stdout."""

    def run(*words):
        with pytest.raises(SystemExit) as exit_:
            main(["check-data", *map(str, words), "--workers", "0"])
        captured = capsys.readouterr()
        return exit_.value.code, captured.out + ("" if exit_.value.code == 0 else captured.err)

    return run


def test_clean_data(check, photos):
    code, out = check(photos)
    assert code == 0
    assert "decoded: 36 of 36 images" in out
    assert "no errors found" in out and "warning" not in out and "note" not in out
    rows = [line.split() for line in out.splitlines() if line.startswith(("cat ", "dog "))]
    assert rows == [["cat", "12", "6"], ["dog", "12", "6"]]


def test_usage_errors(check, photos):
    assert check(photos.parent / "phots")[0] == 2
    code, out = check(photos, "--decode", "some")
    assert code == 2 and "should be 'all' or a number" in out
    code, out = check(photos, "--near-copies", "features", "--store", photos.parent)
    assert code == 2 and "no features of all images" in out


def test_a_sample_is_decoded_unless_all_are_asked_for(check, photos):
    broken = photos / "train" / "cat" / "7.png"
    broken.write_bytes(broken.read_bytes()[:60])
    code, out = check(photos, "--decode", "2")
    assert code == 0 and "decoded: 4 of 36 images (--decode all)" in out
    for words in (("--decode", "all"), ("--decode",), ()):
        code, out = check(photos, *words)
        assert code == 1
        assert f"error: {broken}: truncated PNG" in out or f"error: {broken}: " in out
        assert "decoded: 35 of 36 images, 1 cannot be used\n" in out


def test_images_of_both_parts_and_their_first_pairs(check, photos):
    for i in range(3):
        copy = photos / "train" / "dog" / f"copy{i}.png"
        copy.write_bytes((photos / "val" / "dog" / f"{i}.png").read_bytes())
    code, out = check(photos)
    assert code == 1 and out.splitlines()[-1] == "found: 1 warning; test images lie in train"
    assert "--pairs FILE.csv lists all" in out.splitlines()[-2]
    assert f"3 of 12 images of {photos}/ (val) also in {photos}/ (train): " in out
    assert f"{photos}/val/dog/0.png = {photos}/train/dog/copy0.png" in out
    code, out = check(photos, "--no-copies")
    assert "also in" not in out and "not searched: 39 files would be read" in out


def test_images_that_were_encoded_again_are_found_by_pixels(check, photos):
    for i in range(3):
        picture = Image.open(photos / "val" / "cat" / f"{i}.png").resize((40, 40))
        picture.save(photos / "train" / "cat" / f"again{i}.jpg", quality=80)
    code, out = check(photos)
    assert code == 0
    (line,) = [line for line in out.splitlines() if "nearly the same" in line]
    assert line.startswith(f"warning: 3 images of {photos}/ (val) nearly the same as one of {photos}/ (train) by 16 x")
    assert "again0.jpg" in line and "again2.jpg" in line
    for words in (("--near-copies", "none"), ("--near-threshold", "1")):
        assert "nearly" not in check(photos, *words)[1]


def test_what_a_large_set_is_not_searched_for_is_said(check, photos, monkeypatch):
    monkeypatch.setattr("sslbench.cli.commands.check_data.flags.DECODED", 35)
    assert "near duplicates were not searched: 36 images would be decoded (--near-copies pixels)" in check(photos)[1]
    assert "not searched" not in check(photos, "--near-copies", "none")[1]
    assert "not searched" not in check(photos, "--near-copies", "pixels")[1]


def test_stored_features_serve_to_find_them_too(check, photos, tmp_path, capsys):
    Image.open(photos / "val" / "cat" / "3.png").save(photos / "train" / "cat" / "again.jpg", quality=95)
    words = ["--weights", "random", "--backbone", "resnet18w0.25", "--resize", "32", "--crop", "32", "--workers", "0"]
    with pytest.raises(SystemExit):
        main(["extract", *words, "--device", "cpu", "--data", str(photos), "--store", str(tmp_path / "store")])
    capsys.readouterr()
    code, out = check(photos, "--store", tmp_path / "store", "--near-threshold", "0.9")
    assert code == 0
    assert "by features of resnet18w0.25, layer res5avg: " in out
    assert f"{photos}/val/cat/3.png ~ {photos}/train/cat/again.jpg" in out


def test_what_a_user_gets_wrong_most(check, photos):
    (photos / "val" / "Dog").mkdir()
    Image.new("RGB", (9, 9), (1, 2, 3)).save(photos / "val" / "Dog" / "0.png")
    (photos / "train" / ".ipynb_checkpoints").mkdir()
    (photos / "train" / "eel").mkdir()
    code, out = check(photos)
    assert code == 1
    assert "It differs from 'dog' only in case." in out
    assert ".ipynb_checkpoints" in out
    assert "class folders without images, not counted as classes: eel" in out


def test_unlabelled_data_are_fine_to_pretrain_on(check, photos):
    flat = photos.parent / "flat"
    flat.mkdir()
    for i, file in enumerate(sorted(photos.rglob("*.png"))):
        (flat / f"{i}.png").write_bytes(file.read_bytes())
    code, out = check(flat)
    assert code == 0
    assert "no labels: usable for pretraining and extraction, not for evaluation" in out


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (lambda i: f"{i:02d}", "24 of 24 labels equal the file's name"),
        (lambda i: f"id{i // 2 if i < 6 else i}", "classes for 24 images: they look like ids, not classes"),
    ],
)
def test_a_column_of_ids_is_no_column_of_labels(check, photos, label, message):
    files = sorted((photos / "train").rglob("*.png"))
    for i, file in enumerate(files):
        file.rename(photos / f"{i:02d}.png")
    for name, rows in (("train", range(24)), ("test", range(4))):
        lines = [f"{i:02d}.png,{label(i)}" for i in rows]
        (photos / f"{name}.csv").write_text("\n".join(["path,label", *lines]) + "\n")
    _, out = check(photos / "train.csv", "--test-data", photos / "test.csv")
    assert message in out


def boxes_in(folder, photos, name, boxes):
    files = sorted((photos / name).rglob("*.png"))[: len(boxes)]
    images = [{"id": i, "file_name": str(f), "width": 48, "height": 40} for i, f in enumerate(files)]
    annotations = [
        {"id": 10 * i + j, "image_id": i, "category_id": 1, "bbox": box}
        for i, several in enumerate(boxes)
        for j, box in enumerate(several)
    ]
    path = folder / f"{name}.json"
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "cell"}]}
    path.write_text(json.dumps(content))
    return path


def test_boxes(check, photos, tmp_path):
    good = [2, 2, 20, 20]
    odd = [[good, good], [[60, 60, 9, 9]], [[30, 30, 40, 40]], [[5, 5, 0, 8]], [[1, 1, 1, 30]], [], [good]]
    train = boxes_in(tmp_path, photos, "train", odd)
    test = boxes_in(tmp_path, photos, "val", [[good], [good]])
    code, out = check(train, "--test-data", test, "--boxes", "--sheet", tmp_path / "s.png")
    assert code == 0
    assert "warning: " in out
    for part in (
        "1 object without width or height left out",
        "1 object outside of the image left out",
        "1 box clipped to the image",
        "1 box of the same class at the same place twice",
        "1 box less than 2 pixels wide or high",
        "3 images without an object",
    ):
        assert part in out
    pixels = np.array(Image.open(tmp_path / "s.png").convert("RGB"))
    assert (pixels == (230, 30, 30)).all(axis=2).sum() > 100, "the boxes are drawn"


def test_files(check, photos, tmp_path):
    out = tmp_path / "new"
    code, printed = check(photos, "--csv", out / "n.csv", "--sheet", out / "s.png", "--html", out / "p.html")
    assert code == 0
    assert [line for line in printed.splitlines() if line.startswith("written: ")] == [
        f"written: {out / name}" for name in ("n.csv", "s.png", "p.html")
    ]
    assert sorted(file.name for file in out.iterdir()) == ["n.csv", "p.html", "s.png"]
    with (out / "n.csv").open() as file:
        assert list(csv.reader(file)) == [["class", "train", "test"], ["cat", "12", "6"], ["dog", "12", "6"]]
    page = (out / "p.html").read_text()
    assert page.count("<img ") == 8 + 8 + 6 + 6
    assert "http" not in page and "data:image/jpeg;base64," in page
    assert Image.open(out / "s.png").height > 4 * 80


def test_names_in_the_page_are_text(check, photos, tmp_path):
    (photos / "train" / "dog").rename(photos / "train" / "<b>dog")
    (photos / "val" / "dog").rename(photos / "val" / "<b>dog")
    assert check(photos, "--html", tmp_path / "p.html")[0] == 0
    page = (tmp_path / "p.html").read_text()
    assert "<b>dog" not in page and "&lt;b&gt;dog" in page


def test_json(check, photos):
    code, out = check(photos, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["parts"]["train"]["counts"] == {"cat": 12, "dog": 12}
    assert found["findings"] == [] and found["unreadable"] == [] and found["copies_looked_for"] is True
    (photos / "val" / "cat" / "0.png").write_bytes(b"")
    code, out = check(photos, "--json")
    found = json.loads(out)
    assert code == 1
    assert found["unreadable"][0]["path"].endswith("val/cat/0.png")
    assert found["findings"][0]["level"] == "error"


def test_every_class_is_listed_on_request(check, tmp_path):
    for i in range(60):
        (tmp_path / f"c{i:02d}").mkdir()
        for j in range(2):
            pixels = np.full((4, 4, 3), 2 * i + j, np.uint8)
            Image.fromarray(pixels).save(tmp_path / f"c{i:02d}" / f"{j}.png")
    (_, usual), (_, every) = check(tmp_path), check(tmp_path, "-v")
    assert "c30" not in usual and "(-v lists all)" in usual
    assert all(f"\nc{i:02d} " in every for i in range(60))
