"""Patches, shuffled patches, rotations, Lab colours and jigsaw permutations as VISSL makes them."""

import numpy as np
import pytest
import torch
from golden_cases import Case

from sslbench.data.views import pretext
from sslbench.errors import UsageError


def cut(case: Case) -> None:
    args, given, wanted = case.meta["args"], case.inputs(), case.expected()
    height, width = (int(part) for part in case.name.rpartition("_")[2].split("x"))
    drawn = np.random.RandomState(args["image_seed"]).randint(0, 256, (3, height, width)).astype(np.uint8)
    image = given.get("image", drawn)
    assert np.array_equal(image, drawn)
    found = pretext.cut_patches(torch.from_numpy(image), args["num_patches"], args["patch_jitter"], given["jitter"])
    assert np.array_equal(np.array([patch.shape for patch in found]), wanted["shapes"])
    assert np.array_equal(found.double().sum(dim=(1, 2, 3)).numpy(), wanted["sums"])
    if "patches" in wanted:
        assert np.array_equal(found.numpy(), wanted["patches"])


def shuffle(case: Case) -> None:
    given, wanted = case.inputs(), case.expected()
    permutations = pretext.counted_from_zero(given["perms"])
    found = pretext.shuffle_patches(torch.from_numpy(given["patches"]), permutations[int(wanted["label"][0])])
    assert np.array_equal(found.numpy(), wanted["out"])


def rotate(case: Case) -> None:
    """The reference draws the label with torch's generator; ours are given, only their meaning is compared."""
    count, wanted = case.meta["args"]["num_angles"], case.expected()
    image = torch.from_numpy(case.inputs()["image"]).permute(2, 0, 1)
    np.testing.assert_allclose(wanted["angles"], [360 * label / count for label in range(count)])
    assert set(wanted["labels_seq"]) <= set(range(count))
    for label in range(count):
        found = pretext.rotate(image, label, count).permute(1, 2, 0).numpy()
        assert np.array_equal(found, wanted[f"angle{label}"]), label


def lab(case: Case) -> None:
    found = pretext.to_lab(torch.from_numpy(case.inputs()["image_rgb"]).permute(2, 0, 1)).numpy()
    difference = np.abs(found - case.expected()["lab"])
    assert difference[0].max() <= 0.4 and difference[1:].max() <= 1


def permutations(case: Case) -> None:
    """The same greedy choice; where means tie, the reference lets their rounding decide, so distances are compared."""
    args, given, wanted = case.meta["args"], case.inputs(), case.expected()["perms"]
    choose = {"max_avg": "mean", "max_min": "min"}[args["method"]]
    found = pretext.distant_permutations(args["N"], args["M"], first=int(given["first_index"]), choose=choose)
    assert found.shape == wanted.shape and len(np.unique(found, axis=0)) == len(found)
    for k in range(1, len(wanted)):
        ours, theirs = (_distance(rows[k], rows[:k], choose) for rows in (found, wanted))
        assert ours == pytest.approx(theirs), k


def _distance(row: np.ndarray, others: np.ndarray, choose: str) -> float:
    distances = (row != others).mean(axis=1)
    return float(distances.mean() if choose == "mean" else distances.min())


def too_many_permutations(case: Case) -> None:
    """The reference crashes with argmax of nothing, also for all M! of them, which exist."""
    recorded = case.expected_json()
    assert "empty sequence" in recorded
    _, _, n, pieces, _, _ = case.name.split("_")
    n, pieces = int(n[1:]), int(pieces[1:])
    if n <= 24 and pieces == 4:
        assert len(np.unique(pretext.distant_permutations(n, pieces, first=0), axis=0)) == n
    else:
        with pytest.raises(UsageError, match="orders; asked for"):
            pretext.distant_permutations(n, pieces, first=0)


PATTERNS = {
    "09_transforms/patches_*": cut,
    "09_transforms/shuffle_*": shuffle,
    "09_transforms/rotate_*": rotate,
    "09_transforms/lab_*": lab,
    "09_transforms/jigsaw_N*": permutations,
    "09_transforms/jigsaw_error_*": too_many_permutations,
}
