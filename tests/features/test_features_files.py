"""Embeddings in every format score alike, what extract -o writes is read back, and damaged files are named."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import average_precision_score

import sslbench
from sslbench.cli.main import main
from sslbench.errors import DataError, SslbenchError, UsageError
from sslbench.features.external import read_train_test
from sslbench.results import records
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel

N = 300


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return x[:N].astype(np.float32), y[:N]


def read(features, labels, **options):
    return read_train_test(features, labels, None, None, label_column=None, test_fraction=0.2, seed=0, **options)


def save(folder, x, y, suffix):
    """Write features and labels in a format; return both paths."""
    h5py = pytest.importorskip("h5py")
    a, b = folder / f"x{suffix}", folder / f"y{suffix}"
    if suffix == ".npy":
        np.save(a, x), np.save(b, y)
    elif suffix == ".npz":
        np.savez(a, features=x, other=y), np.savez(b, labels=y, other=x)
    elif suffix == ".h5":
        with h5py.File(a, "w") as one, h5py.File(b, "w") as two:
            one["features"], two["y"] = x, y
    elif suffix == ".pt":
        torch.save(torch.from_numpy(x), a), torch.save({"labels": torch.from_numpy(y)}, b)
    else:
        columns = pd.DataFrame(x, columns=[f"f{i}" for i in range(x.shape[1])])
        labels = (
            pd.DataFrame({"label": y}) if y.ndim == 1 else pd.DataFrame(y, columns=[f"c{i}" for i in range(y.shape[1])])
        )
        for frame, path in ((columns, a), (labels, b)):
            frame.to_parquet(path) if suffix == ".parquet" else frame.to_csv(
                path, index=False, sep="\t" if suffix == ".tsv" else ","
            )
    return a, b


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".h5", ".pt", ".parquet", ".csv", ".tsv"])
def test_every_format_holds_the_same_features_and_labels(tmp_path, digits, suffix):
    x, y = digits
    expected = read(*save(tmp_path, x, y, ".npy"))
    found = read(*save(tmp_path, x, y, suffix))
    assert found.test.target.classes == expected.test.target.classes == tuple("0123456789")
    np.testing.assert_array_equal(found.test.target.values, expected.test.target.values)
    np.testing.assert_allclose(found.train.x, expected.train.x, rtol=1e-6)
    several = read(*save(tmp_path, x, np.eye(10, dtype=np.int64)[y] | np.eye(10, dtype=np.int64)[(y * 7) % 10], suffix))
    assert isinstance(several.train.target, MultiLabel) and len(several.train.target.classes) == 10
    assert several.train.target.values.sum() > len(several.train)


WITHOUT_HEADER = {"x.csv": {"delimiter": ","}, "spaces.csv": {}, "x.txt": {}, "x.tsv": {"delimiter": "\t"}}


@pytest.mark.parametrize("name", WITHOUT_HEADER)
def test_the_first_row_of_a_table_without_header_is_a_sample(tmp_path, digits, name):
    x, y = digits
    np.save(tmp_path / "y.npy", y)
    np.savetxt(tmp_path / name, x, **WITHOUT_HEADER[name])
    found = read(tmp_path / name, tmp_path / "y.npy")
    np.testing.assert_array_equal(found.whole.x, x)


def test_names_that_pandas_gives_to_columns_are_no_sample(tmp_path, digits):
    x, y = digits
    for index in (True, False):
        pd.DataFrame(x).to_csv(tmp_path / "x.csv", index=index)
        pd.Series(y).to_csv(tmp_path / "y.csv", index=index)
        found = read(tmp_path / "x.csv", tmp_path / "y.csv")
        np.testing.assert_array_equal(found.whole.x, x)
        assert found.whole.target.classes == tuple("0123456789")


def test_labels_without_header_lose_no_row(tmp_path, digits):
    x, y = digits
    np.save(tmp_path / "x.npy", x)
    names = np.array([f"a digit {i}" for i in y])
    for labels, classes in ((y, 10), (y % 2, 2), (names, 10)):
        (tmp_path / "y.txt").write_text("\n".join(map(str, labels)))
        found = read(tmp_path / "x.npy", tmp_path / "y.txt").whole.target
        assert isinstance(found, Classes) and len(found.classes) == classes
        assert [found.text(i) for i in range(N)] == [str(label) for label in labels]
    flags = np.stack([y % 2, y < 5], axis=1).astype(int)
    np.savetxt(tmp_path / "y.txt", flags, fmt="%d")
    np.testing.assert_array_equal(read(tmp_path / "x.npy", tmp_path / "y.txt").whole.target.values, flags)
    (tmp_path / "y.txt").write_text("\n".join(map(str, ["label", *y[1:]])))
    with pytest.raises(DataError, match="299 rows below its header"):
        read(tmp_path / "x.npy", tmp_path / "y.txt")


TABLES_THAT_DO_NOT_FIT = {
    "a,b\n1,2\n3,4,5\n": "in line 3, saw 3",
    "a,b\n1,2\n3\n": "'b' has no number in 1 row, the first is row 2",
    "a,b\n1,2\n,4\n": "'a' has no number",
    "a,b\n1,2,3\n": "line 2: 3 cells, but line 1 has 2",
    "a;b\n1;2\n": "separated by ';'",
    "a,b\n": "no rows below its header",
    "a,b\n1,cat\n": "'b' does not hold numbers",
}


@pytest.mark.parametrize("text", TABLES_THAT_DO_NOT_FIT)
def test_tables_with_other_cells_than_their_header_are_refused(tmp_path, text):
    (tmp_path / "x.csv").write_text(text)
    np.save(tmp_path / "y.npy", np.arange(2))
    with pytest.raises(SslbenchError, match=TABLES_THAT_DO_NOT_FIT[text]):
        read(tmp_path / "x.csv", tmp_path / "y.npy")


def test_tables_in_utf_16_are_read(tmp_path):
    for name, text in (("x.csv", "a,b\n" + "1,2\n3,4\n" * 4), ("y.csv", "label\n" + "café\ndog\n" * 4)):
        (tmp_path / name).write_text(text, encoding="utf-16")
    found = read(tmp_path / "x.csv", tmp_path / "y.csv").whole
    assert found.target.classes == ("café", "dog") and np.asarray(found.x).tolist() == [[1, 2], [3, 4]] * 4


def test_the_column_of_labels_is_no_feature(tmp_path, digits):
    x, y = digits
    table = pd.DataFrame(x[:, :4], columns=list("abcd"))
    for suffix in (".csv", ".parquet"):
        path = tmp_path / f"t{suffix}"
        write = "to_parquet" if suffix == ".parquet" else "to_csv"
        getattr(table.assign(grade=y), write)(path)
        assert (
            read_train_test(path, path, None, None, label_column="grade", test_fraction=0.2, seed=0).train.x.shape[1]
            == 4
        )
        getattr(table.assign(Label=y), write)(path)
        assert read(path, path).train.x.shape[1] == 4
        getattr(table.assign(is_even=y % 2, is_small=(y < 5).astype(int)), write)(path)
        with pytest.raises(UsageError, match="could be either"):
            read(path, path)


def test_usual_names_of_arrays_are_known_and_others_listed(tmp_path, digits):
    x, y = digits
    expected = None
    for names in (("features", "labels"), ("X", "y"), ("embeddings", "targets"), ("x", "label")):
        np.savez(tmp_path / "t.npz", **dict(zip(names, (x, y), strict=True)))
        found = read(tmp_path / "t.npz", tmp_path / "t.npz")
        expected = expected or found
        assert found.fingerprints == expected.fingerprints and found.features_sha256 == expected.features_sha256
    for names, words in (
        (("X", "x"), r"could be the features: X, x"),
        (("x_train", "y_train"), r"none that is called 'features'; it holds x_train \(300, 64\)"),
        (("labels",), "none that is called 'features'"),
    ):
        np.savez(tmp_path / "t.npz", **dict.fromkeys(names, x))
        with pytest.raises(UsageError, match=words):
            read(tmp_path / "t.npz", tmp_path / "t.npz")
    np.savez(tmp_path / "t.npz", features=x)
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(UsageError, match="none that is called 'labels'"):
        read(tmp_path / "x.npy", tmp_path / "t.npz")


def test_ids_beside_other_arrays_are_read(tmp_path, digits):
    x, y = digits
    flags = np.stack([y % 2, y < 5], axis=1).astype(int)
    ids = [f"{i}.png" for i in range(N)]
    np.savez(tmp_path / "t.npz", features=x, labels=flags, id=ids)
    tensors = {"features": torch.from_numpy(x).bfloat16(), "labels": [f"c{i}" for i in y], "id": ids}
    torch.save(tensors, tmp_path / "t.pt")
    for name, kind in (("t.npz", "multi"), ("t.pt", "single")):
        found = read(tmp_path / name, tmp_path / name)
        assert found.known_by == "ids" and found.whole.target.name == kind and found.whole.ids == tuple(sorted(ids))


def test_objects_in_a_file_of_torch_are_named_with_the_remedy(tmp_path, digits):
    x, y = digits
    np.save(tmp_path / "y.npy", y)
    for content, words in (({"features": x}, "an array of NumPy"), ((torch.from_numpy(x),), "holds a tuple")):
        torch.save(content, tmp_path / "x.pt")
        with pytest.raises(UsageError, match=words) as refused:
            read(tmp_path / "x.pt", tmp_path / "y.npy")
        assert "torch.save" in str(refused.value.remedy) and "weights_only" not in refused.value.message
    np.save(tmp_path / "objects.npy", np.array([1, "a", None] * 100, dtype=object), allow_pickle=True)
    with pytest.raises(UsageError, match="other objects than numbers and text"):
        read(tmp_path / "objects.npy", tmp_path / "y.npy")


def test_flags_and_joined_names_are_the_same_labels(tmp_path, digits):
    x, y = digits
    flags = np.stack([np.ones_like(y), y % 2], axis=1)
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "flags.csv").write_text("c0,c1\n" + "\n".join(f"{a},{b}" for a, b in flags))
    (tmp_path / "names.csv").write_text("label\n" + "\n".join("c0;c1" if row[1] else "c0" for row in flags))
    one, other = (read(tmp_path / "x.npy", tmp_path / name) for name in ("flags.csv", "names.csv"))
    assert one.train.target.classes == other.train.target.classes == ("c0", "c1")
    np.testing.assert_array_equal(one.train.target.values, other.train.target.values)


def command(*words):
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 0


def test_extracted_files_are_scored_like_the_images(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    quick = ["--device", "cpu", "--no-floors", "--no-overlaps"]
    command("eval", "knn", "--weights", "pixels:8", "--data", "sklearn:digits", *quick, "--out", "images")
    expected = records.read_tree(tmp_path / "images")[0].metrics["top1"].value
    for suffix in (".parquet", ".npz", ".h5"):
        command("extract", "--weights", "pixels:8", "--data", "sklearn:digits", "--device", "cpu", "-o", f"x{suffix}")
        command("eval", "knn", "--features", f"x{suffix}", "--labels", f"x{suffix}", *quick, "--out", f"r{suffix}")
        assert records.read_tree(tmp_path / f"r{suffix}")[0].metrics["top1"].value == expected
    frame = pd.read_parquet("x.parquet")
    assert list(frame.columns) == ["id", "path", "split", "width", "height", "label", "features"]
    assert (frame["width"] == 8).all() and len(frame) == 1797 and len(frame["features"][0]) == 192
    capsys.readouterr()


@pytest.mark.parametrize(("protocol", "draws"), [("knn", 1), ("lsr", 3)])
def test_the_predictions_and_the_matrix_lie_beside_the_record(tmp_path, digits, protocol, draws):
    (result,) = sslbench.evaluate(None, digits, protocols=protocol, out=tmp_path, device="cpu")
    beside = {suffix: result.file.with_suffix(suffix) for suffix in (".predictions.csv", ".confusion.csv")}
    rows = pd.read_csv(beside[".predictions.csv"])
    assert len(rows) == draws * result.data.test.n_used
    assert ("draw" in rows) == (draws > 1) and rows.get("draw", pd.Series([1])).nunique() == draws
    assert 100 * rows["correct"].mean() == pytest.approx(result.metrics["top1"].value)
    matrix = pd.read_csv(beside[".confusion.csv"], index_col=0)
    assert matrix.to_numpy().sum() == len(rows) and np.trace(matrix.to_numpy()) == rows["correct"].sum()
    assert result.file.with_suffix(".confusion.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("protocol", "draws"), [("knn", 1), ("low-shot", 2)])
def test_the_scores_of_every_class_lie_beside_a_record_of_several_labels(tmp_path, digits, protocol, draws):
    x, y = digits
    labels = np.stack([y < 5, y % 2 == 0, y % 3 == 0], axis=1).astype(np.int64)
    settings = {"low-shot": {"k": (4,), "draws": 2}} if draws > 1 else None
    options = {"protocols": protocol, "settings": settings, "out": tmp_path, "device": "cpu", "floors": False}
    (result,) = sslbench.evaluate(None, (x, labels), **options)
    table = pd.read_csv(result.file.with_suffix(".predictions.csv"), dtype={"id": str}, keep_default_na=False)
    found = records.read_scores(records.scores_path(result))
    last = ["draw"] if draws > 1 else []
    assert list(table.columns) == ["id", "labels", "unknown", *(f"score:{name}" for name in found.classes), *last]
    precision = []
    for _, rows in table.groupby("draw" if draws > 1 else np.ones(len(table))):
        assert list(rows["id"]) == list(found.ids)
        for number, name in enumerate(found.classes):
            true = rows["labels"].str.split(";").map(lambda names, name=name: name in names)
            np.testing.assert_array_equal(true, found.labels[:, number] == 1)
            precision.append(average_precision_score(true, rows[f"score:{name}"]))
    assert len(precision) == 3 * draws
    assert 100 * np.mean(precision) == pytest.approx(result.metrics["mAP_noninterpolated"].value, abs=0.001)
    assert not list(tmp_path.rglob("*.confusion.*"))


def test_parts_named_in_an_archive_are_used(tmp_path, digits):
    x, y = digits
    split = np.array(["train"] * 200 + ["test"] * 100)
    np.savez(tmp_path / "all.npz", features=x, label=y, split=split)
    found = read(tmp_path / "all.npz", tmp_path / "all.npz")
    assert len(found.train) == 200 and found.whole is None


BROKEN = {
    "x.npy": b"\x93NUMPY nothing",
    "x.npz": b"PK\x03\x04",
    "x.h5": b"\x89HDF\r\n\x1a\n nothing",
    "x.pt": b"PK\x03\x04 nothing",
    "x.parquet": b"PAR1",
    "x.csv": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("name", BROKEN)
def test_damaged_files_are_refused_by_name(tmp_path, digits, name):
    (tmp_path / name).write_bytes(BROKEN[name])
    np.save(tmp_path / "good.npy", digits[0])
    with pytest.raises(SslbenchError, match=name.replace(".", r"\.")):
        read(tmp_path / name, tmp_path / "good.npy")
    with pytest.raises(SslbenchError, match=name.replace(".", r"\.")):
        read(tmp_path / "good.npy", tmp_path / name)


class Harmful:
    def __reduce__(self):
        return (print, ("run",))


def test_nothing_is_unpickled_but_tensors(tmp_path, digits, capsys):
    torch.save({"features": Harmful()}, tmp_path / "x.pt")
    np.save(tmp_path / "y.npy", np.array([Harmful()], dtype=object), allow_pickle=True)
    np.save(tmp_path / "x.npy", digits[0])
    for pair in (("x.pt", "y.npy"), ("x.npy", "y.npy")):
        with pytest.raises(UsageError):
            read(*(tmp_path / name for name in pair))
    assert capsys.readouterr().out == ""


def test_labels_that_do_not_fit_are_refused(tmp_path, digits):
    x, y = digits
    np.save(tmp_path / "x.npy", x)
    for labels, words in ((y[1:], "299 labels"), (np.arange(2 * N).reshape(N, 2), "0, 1 and -1")):
        np.save(tmp_path / "y.npy", labels)
        with pytest.raises(DataError, match=words):
            read(tmp_path / "x.npy", tmp_path / "y.npy")
    np.save(tmp_path / "y.npy", y)
    with pytest.raises(UsageError, match="no column 'site'"):
        read(tmp_path / "x.npy", tmp_path / "y.npy", attribute_columns=("site",))
