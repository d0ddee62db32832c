"""Segmentation without training: Hummingbird, VISSL's kNN segmentation, assignment of clusters to classes."""

import numpy as np
import pytest
import torch
from golden_cases import Case

from sslbench.metrics.dense import matching
from sslbench.metrics.dense.segmentation import confusion_matrix
from sslbench.solvers import in_context
from sslbench.solvers.neighbours import nearest
from sslbench.solvers.upsampling import upsampled_classes


def _table(prediction: np.ndarray, label: np.ndarray, n_predicted: int, n_classes: int) -> np.ndarray:
    """Return the pixels of each class and prediction; labels and predictions outside are left out."""
    inside = (label >= 0) & (label < n_classes) & (prediction < n_predicted)
    return confusion_matrix(prediction[inside], label[inside], n_classes, ignore=(), n_predicted=n_predicted)


def _positives(areas: np.ndarray) -> np.ndarray:
    """Return true positives, false positives and false negatives."""
    return np.stack([areas[0], areas[1] - areas[0], areas[2] - areas[0]])


def _mean_iou(areas: np.ndarray) -> float:
    return float(matching.matched_values(np.ones((1, 1)), areas[None], absent="zero")[0, 0])


def hummingbird(case: Case) -> None:
    """Ignored pixels as class 0 in the memory, as its authors' code has them."""
    given, expected, args = case.inputs(), case.expected(), case.meta["args"]
    grid, n_classes, ignore = (args["grid"], args["grid"]), args["classes"], args["ignore_index"]
    epochs = args["augmentation_epochs"]
    labels = np.where(given["train_label"] == ignore, 0, given["train_label"])
    counts = [in_context.class_counts(label, grid, n_classes, ignore=()) for label in labels] * epochs
    kept = [np.arange(len(each)) for each in counts]
    if args["memory_size"]:
        torch.manual_seed(args["torch_seed"])
        draws = [torch.rand(len(each)).numpy() for each in counts]
        number = args["memory_size"] // len(counts)
        kept = [in_context.rarest_patches(c, number, d) for c, d in zip(counts, draws, strict=True)]
        np.testing.assert_array_equal(np.sort(kept, axis=1), np.sort(expected["sampled_patches"], axis=1))
        kept = list(expected["sampled_patches"])
    shares = in_context.shares(np.concatenate([c[k] for c, k in zip(counts, kept, strict=True)]))
    assert len(shares) == int(expected["memory_rows"])
    np.testing.assert_allclose(shares, expected["memory_labels"], atol=1e-3)
    features = [*given["train_features"].astype(np.float32)] * epochs
    memory = np.concatenate([f[k] for f, k in zip(features, kept, strict=True)])
    for image, queries in enumerate(given["val_features"].astype(np.float32)):
        soft = in_context.nearest_labels(memory, shares, queries, k=args["n_neighbours"], temperature=args["beta"])
        recorded = np.where(np.isnan(expected["label_hat"][image]), soft, expected["label_hat"][image])
        np.testing.assert_allclose(soft, recorded, rtol=2e-3, atol=2e-3)  # NaN for a patch of zeros
        scores = torch.from_numpy(soft.T.reshape(n_classes, *grid).copy())
        size = given["val_label"][image].shape
        large = torch.nn.functional.interpolate(scores[None], size, mode="bilinear")[0].topk(2, dim=0).values
        clear = (large[0] - large[1] > 1e-4).numpy()
        found = upsampled_classes(scores, size).numpy()
        np.testing.assert_array_equal(found[clear], expected["prediction"][image][clear])
    _scores(expected, _table(*_scored(expected["prediction"], given["val_label"], ignore), n_classes, n_classes))


def _scored(prediction: np.ndarray, label: np.ndarray, ignore: int) -> tuple[np.ndarray, np.ndarray]:
    return prediction[label != ignore], label[label != ignore]


def _scores(expected: dict[str, np.ndarray], table: np.ndarray) -> None:
    assignments = {
        "direct": np.arange(len(table)),
        "hungarian": matching.one_to_one(table, "iou"),
        "many_to_one": matching.each_to_best(table, "iou"),
        "many_to_one_precision": matching.each_to_best(table, "precision"),
    }
    for name, assigned in assignments.items():
        areas = matching.assigned_areas(table, assigned)
        assert _mean_iou(areas) == pytest.approx(float(expected[f"miou_{name}"]), rel=1e-9), name
        np.testing.assert_array_equal(_positives(areas), expected[f"tp_fp_fn_{name}"], name)
    assert float(expected["miou_as_reported"]) == pytest.approx(float(expected["miou_hungarian"]), rel=1e-9)


def clusters(case: Case) -> None:
    given, expected, args = case.inputs(), case.expected(), case.meta["args"]
    n_classes, n_clusters = args["classes"], args["classes"] + args["extra_clusters"]
    label = np.where(given["label"] == args["ignore"], -1, given["label"])
    once = np.ones((1, 1))

    # STEGO drops predictions beyond the number of classes, ours does not.
    table = _table(given["prediction"], label, n_classes, n_classes)
    assigned = matching.one_to_one(table, "pixels")
    rows, columns = expected["stego/assignment"]
    best = sum(table[c, p] for p, c in enumerate(assigned.tolist()))
    assert best in {table[rows, columns].sum(), table[columns, rows].sum()}
    for name, mapping in (("stego", assigned), ("stego_linear", np.arange(n_classes))):
        if f"{name}/mIoU" in expected:
            values = matching.matched_values(once, matching.assigned_areas(table, mapping)[None])[0]
            assert 100 * values[0] == pytest.approx(float(expected[f"{name}/mIoU"]), rel=1e-6)
            assert 100 * values[1] == pytest.approx(float(expected[f"{name}/Accuracy"]), rel=1e-6)

    # Hummingbird takes clusters that are left over for class 0.
    table = _table(given["prediction"], label, n_clusters, n_classes)
    hungarian = matching.one_to_one(table, "iou")
    assert (hungarian == matching.UNASSIGNED).sum() == args["extra_clusters"]
    for name, mapping in (
        ("hungarian", np.maximum(hungarian, 0)),
        ("many_to_one", matching.each_to_best(table, "iou")),
        ("many_to_one_precision", matching.each_to_best(table, "precision")),
    ):
        np.testing.assert_array_equal(mapping, expected[f"hbird/{name}_mapping"])
        areas = matching.assigned_areas(table, mapping)
        assert _mean_iou(areas) == pytest.approx(float(expected[f"hbird/{name}"]), rel=1e-6)


def vissl(case: Case) -> None:
    """Labels at one pixel per patch; the votes are those of our search without the division by their sum."""
    given, expected, args = case.inputs(), case.expected(), case.meta["args"]
    n_classes = args["classes"]
    target, predicted = (
        next(v for k, v in expected.items() if k.startswith(f"{n}_")) for n in ("target", "prediction")
    )
    side = target.shape[1]

    def corners(label: np.ndarray) -> np.ndarray:
        step = label.shape[1] // side
        return np.where(label == 255, 0, label)[:, ::step, ::step]

    np.testing.assert_array_equal(corners(given["val_label"]), target)
    memory, queries = (given[f"{n}_features"].reshape(-1, given[f"{n}_features"].shape[2]) for n in ("train", "val"))
    votes = np.eye(n_classes, dtype=np.float32)[corners(given["train_label"]).ravel()]
    similarity, rows = nearest(
        memory.astype(np.float32), queries.astype(np.float32), args["k"], metric="cosine", max_memory=1.0
    )
    soft = in_context.weighted_labels(similarity, rows, votes, args["temperature"])
    best = np.sort(soft, axis=1)
    clear = best[:, -1] - best[:, -2] > 1e-5
    recorded = predicted.ravel()
    np.testing.assert_array_equal(soft.argmax(axis=1)[clear], recorded[clear])
    table = _table(recorded, target.ravel(), n_classes, n_classes)
    areas = matching.assigned_areas(table, np.arange(n_classes))
    mean_iou, accuracy = matching.matched_values(np.ones((1, 1)), areas[None])[0]
    assert mean_iou == pytest.approx(float(expected["jaccard_mean"]), rel=1e-6)
    assert accuracy == pytest.approx(float(expected["accuracy"]), rel=1e-9)
    # Marked variant: VISSL weights IoU by the predicted, not by the true size of the classes.
    iou = areas[0] / np.maximum(areas[1] + areas[2] - areas[0], 1)
    weighted = np.average(iou, weights=areas[1])
    assert weighted == pytest.approx(float(expected["jaccard_weighted"]), rel=1e-6)
    # `jaccard_weighted_full_resolution` interpolates class numbers, `jaccard_weighted_binary` one of them: not built.


PATTERNS = {
    "18_in_context_segmentation/hummingbird*": hummingbird,
    "18_in_context_segmentation/cluster_matching*": clusters,
    "18_in_context_segmentation/vissl_knn_segmentation*": vissl,
}
