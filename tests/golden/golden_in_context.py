"""Segmentation without training: Hummingbird, VISSL's kNN segmentation, assignment of clusters to classes."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from golden_arrays import by_kind, options
from golden_cases import Case

from sslbench.metrics.dense import segmentation
from sslbench.metrics.dense.segmentation import confusion_matrix
from sslbench.solvers import in_context
from sslbench.solvers.neighbours import nearest
from sslbench.solvers.upsampling import upsampled_classes


def _table(prediction: np.ndarray, label: np.ndarray, n_predicted: int, n_classes: int) -> np.ndarray:
    """Return the pixels of each class and prediction; labels and predictions outside are left out."""
    inside = (label >= 0) & (label < n_classes) & (prediction >= 0) & (prediction < n_predicted)
    return confusion_matrix(prediction[inside], label[inside], n_classes, ignore=(), n_predicted=n_predicted)


def _positives(areas: np.ndarray) -> np.ndarray:
    """Return true positives, false positives and false negatives."""
    return np.stack([areas[0], areas[1] - areas[0], areas[2] - areas[0]])


def _mean_iou(areas: np.ndarray) -> float:
    found = segmentation.matched_values(np.ones((1, 1)), areas[None], absent="zero")[0, 0]
    return float(np.nan_to_num(found))  # without a pixel, too


def _assignments(table: np.ndarray) -> dict[str, np.ndarray]:
    """Return the class of each cluster as Hummingbird names the rules; clusters left over are of its class 0."""
    classes, clusters = table.shape
    direct = np.where(np.arange(clusters) < classes, np.arange(clusters), segmentation.UNASSIGNED)
    return {
        "direct": direct,
        "linear_probe": direct,
        "hungarian": np.maximum(segmentation.one_to_one(table, "iou"), 0),
        "many_to_one": segmentation._ious(table).argmax(axis=0),
        "many_to_one_precision": table.argmax(axis=0),
    }


def hummingbird(case: Case) -> None:
    """Compare with ignored pixels as class 0 in the memory, as its authors' code has them."""
    given, expected = case.inputs(), case.expected()
    args = options(
        case, n_neighbours=30, beta=0.02, memory_size=None, augmentation_epochs=1, ignore_index=255, torch_seed=None
    )
    patches, n_classes = expected["label_hat"].shape[-2:]
    grid = (args.get("grid", math.isqrt(patches)),) * 2
    epochs = args["augmentation_epochs"]
    labels = np.where(given["train_label"] == 255, 0, given["train_label"])
    counts = [in_context.class_counts(label, grid, n_classes, ignore=()) for label in labels] * epochs
    kept = [np.arange(len(each)) for each in counts]
    if args["memory_size"]:
        kept = _kept(counts, expected.get("sampled_patches"), max(1, args["memory_size"] // len(counts)), args)
    shares = in_context.shares(np.concatenate([c[k] for c, k in zip(counts, kept, strict=True)]))
    assert len(shares) == int(expected.get("memory_rows", len(shares)))
    if "memory_labels" in expected:
        np.testing.assert_allclose(shares, expected["memory_labels"], atol=1e-3)
    features = [*given["train_features"].astype(np.float32)] * epochs
    memory = np.concatenate([f[k] for f, k in zip(features, kept, strict=True)])
    for image, queries in enumerate(given["val_features"].astype(np.float32)):
        near = nearest(memory, queries, min(args["n_neighbours"], len(memory)), metric="cosine", max_memory=1.0)
        soft = in_context.weighted_labels(*near, shares, args["beta"])
        recorded = np.where(np.isnan(expected["label_hat"][image]), soft, expected["label_hat"][image])
        np.testing.assert_allclose(soft, recorded, rtol=2e-3, atol=2e-3)  # NaN for a patch of zeros
        scores = torch.from_numpy(soft.T.reshape(n_classes, *grid).copy())
        size = given["val_label"][image].shape
        large = torch.nn.functional.interpolate(scores[None], size, mode="bilinear")[0]
        best = large.topk(min(2, n_classes), dim=0).values
        clear = (best[0] - best[-1] > 1e-4).numpy()
        found = upsampled_classes(scores, size).numpy()
        if "prediction" in expected:
            np.testing.assert_array_equal(found[clear], expected["prediction"][image][clear])
    if "prediction" in expected:
        scored = given["val_label"] != args["ignore_index"]
        table = _table(expected["prediction"][scored], given["val_label"][scored], n_classes, n_classes)
        _scores(expected, table)


def _kept(counts: list[np.ndarray], recorded: np.ndarray | None, number: int, args: dict[str, Any]) -> list[np.ndarray]:
    """Return the patches of each image in a bounded memory, as recorded; those of the recorded draws are the same."""
    if args["torch_seed"] is not None:
        torch.manual_seed(args["torch_seed"])
        draws = [torch.rand(len(each)).numpy() for each in counts]
        ours = [in_context.rarest_patches(c, number, d) for c, d in zip(counts, draws, strict=True)]
        if recorded is None:
            return ours
        np.testing.assert_array_equal(np.sort(ours, axis=1), np.sort(recorded.reshape(len(ours), -1), axis=1))
    return list(recorded.reshape(len(counts), -1))


def _scores(expected: dict[str, np.ndarray], table: np.ndarray) -> None:
    for name, assigned in _assignments(table).items():
        areas = segmentation.assigned_areas(table, assigned)
        if f"miou_{name}" in expected:
            assert _mean_iou(areas) == pytest.approx(float(expected[f"miou_{name}"]), rel=1e-9), name
        if f"tp_fp_fn_{name}" in expected:
            np.testing.assert_array_equal(_positives(areas), expected[f"tp_fp_fn_{name}"], name)
        if name == "hungarian" and "miou_as_reported" in expected:
            assert _mean_iou(areas) == pytest.approx(float(expected["miou_as_reported"]), rel=1e-9)


def clusters(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    args = options(case, ignore=-1)
    n_classes = args["classes"] if "classes" in args else expected["stego/assignment"].shape[1]
    n_clusters = n_classes + args.get(
        "extra_clusters", len(expected.get("hbird/hungarian_mapping", range(n_classes))) - n_classes
    )
    prediction, label = (given[name].astype(np.int64) for name in ("prediction", "label"))
    _stego(expected, _table(prediction, label, n_classes, n_classes), n_clusters - n_classes)
    table = _table(prediction, np.where(label == args["ignore"], -1, label), n_clusters, n_classes)
    assert (segmentation.one_to_one(table, "iou") == segmentation.UNASSIGNED).sum() == n_clusters - n_classes
    for name, mapping in _assignments(table).items():
        if f"hbird/{name}_mapping" in expected:
            np.testing.assert_array_equal(mapping, expected[f"hbird/{name}_mapping"])
        if f"hbird/{name}" in expected:
            areas = segmentation.assigned_areas(table, mapping)
            assert _mean_iou(areas) == pytest.approx(float(expected[f"hbird/{name}"]), rel=1e-6)


def _stego(expected: dict[str, np.ndarray], table: np.ndarray, extra: int) -> None:
    """Compare with STEGO, which drops predictions beyond the number of classes, and counts an unassigned cluster."""
    identity = np.arange(len(table))
    table = np.pad(table, ((0, 0), (0, extra)))
    assigned = segmentation.one_to_one(table, "pixels")
    if "stego/assignment" in expected:
        of_clusters, classes = expected["stego/assignment"]
        best = sum(table[c, p] for p, c in enumerate(assigned.tolist()) if c != segmentation.UNASSIGNED)
        assert best == table[classes, of_clusters].sum()
    for name, mapping in (("stego", assigned), ("stego_linear", identity)):
        areas = segmentation.assigned_areas(table, mapping)
        mean_iou, accuracy = segmentation.matched_values(np.ones((1, 1)), areas[None])[0]
        present = int(((areas[1] + areas[2]) > 0).sum())
        if name == "stego" and table[:, assigned == segmentation.UNASSIGNED].any():
            mean_iou *= present / (present + 1)
        for key, ours in ((f"{name}/mIoU", mean_iou), (f"{name}/Accuracy", accuracy)):
            if key in expected:
                np.testing.assert_allclose(100 * ours, expected[key], rtol=1e-6, err_msg=key)


def vissl(case: Case) -> None:
    """Compare labels at one pixel per patch; the votes are those of our search without the division by their sum."""
    given, expected, args = case.inputs(), case.expected(), options(case, k=10, temperature=0.1)
    target, predicted = (
        next(v for k, v in expected.items() if k.startswith(f"{n}_")) for n in ("target", "prediction")
    )

    def corners(label: np.ndarray) -> np.ndarray:
        rows, columns = (np.arange(n) * size // n for n, size in zip(target.shape[1:], label.shape[1:], strict=True))
        return np.where(label == 255, 0, label)[:, rows][:, :, columns]

    np.testing.assert_array_equal(corners(given["val_label"]), target)
    memory, queries = (given[f"{n}_features"].reshape(-1, given[f"{n}_features"].shape[-1]) for n in ("train", "val"))
    of_memory = corners(given["train_label"]).ravel()
    n_classes = max(args.get("classes", 0), int(target.max()) + 1, int(of_memory.max()) + 1)
    votes = np.eye(n_classes, dtype=np.float32)[of_memory]
    similarity, rows = nearest(
        memory.astype(np.float32), queries.astype(np.float32), args["k"], metric="cosine", max_memory=1.0
    )
    soft = in_context.weighted_labels(similarity, rows, votes, args["temperature"])
    best = np.sort(soft, axis=1)
    clear = best[:, -1] - best[:, -2] > 1e-5 if n_classes > 1 else slice(None)
    recorded = predicted.ravel()
    np.testing.assert_array_equal(soft.argmax(axis=1)[clear], recorded[clear])
    table = _table(recorded, target.ravel(), n_classes, n_classes)
    areas = segmentation.assigned_areas(table, np.arange(n_classes))
    mean_iou, accuracy = segmentation.matched_values(np.ones((1, 1)), areas[None])[0]
    # Marked variant: VISSL weights IoU by the predicted, not by the true size of the classes.
    iou = areas[0] / np.maximum(areas[1] + areas[2] - areas[0], 1)
    found = {"jaccard_mean": mean_iou, "accuracy": accuracy, "jaccard_weighted": np.average(iou, weights=areas[1])}
    for name, ours in found.items():
        if name in expected:
            assert ours == pytest.approx(float(expected[name]), rel=1e-6), name
    # `jaccard_weighted_full_resolution` interpolates class numbers, `jaccard_weighted_binary` one of them: not built.


PATTERNS = {
    "18_in_context_segmentation/*": by_kind(
        {
            "HbirdEvaluation|^hummingbird": hummingbird,
            "UnsupervisedMetrics|^cluster_matching": clusters,
            "knn_segmentation|^vissl": vissl,
        }
    )
}
