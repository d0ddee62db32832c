"""Patches, shuffled patches, rotations, Lab colours and jigsaw permutations as VISSL makes them."""

import itertools
import math
import re

import cv2
import numpy as np
import pytest
import torch
from golden_cases import Case, option
from PIL import Image
from torchvision.transforms.v2 import functional

from sslbench.data.views.ops import cut_patches
from sslbench.errors import UsageError
from sslbench.methods._parts.patches import distant_permutations, reorder
from sslbench.methods.rotnet import rotations


def cut(case: Case) -> None:
    """VISSL rounds a number of patches that is no square down; ours refuses it."""
    args, given, wanted = case.args, case.inputs(), case.expected()
    asked, jitter = option(args, "num_patches", default=9), option(args, "patch_jitter", default=21)
    side = math.isqrt(asked)
    image = torch.from_numpy(_image(case))
    drawn = np.random.RandomState(option(args, "seed", default=0)).randint(0, jitter, (2, side, side))
    offsets = given.get("jitter", drawn)
    if side**2 != asked:
        with pytest.raises(ValueError, match=f"{asked} patches"):
            cut_patches(image, asked, jitter, offsets)
    found = cut_patches(image, side**2, jitter, offsets)
    assert wanted
    if "shapes" in wanted:
        assert np.array_equal(np.array([patch.shape for patch in found]), wanted["shapes"])
    if "sums" in wanted:
        np.testing.assert_allclose(found.double().sum(dim=(1, 2, 3)).numpy(), wanted["sums"], rtol=1e-12)
    if "patches" in wanted:
        assert np.array_equal(found.numpy(), wanted["patches"])


def _image(case: Case) -> np.ndarray:
    """Return the image of a case, stored or drawn from the seed that it says."""
    if "image" in case.inputs():
        return case.inputs()["image"]
    height, width = map(int, re.findall(r"(\d+)x(\d+)", case.name)[-1])
    random = np.random.RandomState(case.args["image_seed"])
    return random.randint(0, 256, (3, height, width)).astype(np.uint8)


def shuffle(case: Case) -> None:
    given, wanted = case.inputs(), case.expected()
    permutation = given["perms"][int(wanted["label"].ravel()[0])] - given["perms"].min()  # VISSL's count from 1
    found = reorder(torch.from_numpy(given["patches"])[:, None], torch.from_numpy(permutation)[None].long())
    assert np.array_equal(found.numpy(), wanted["out"])


def _rotated(image: torch.Tensor, label: int, count: int) -> torch.Tensor:
    """Rotate by 360 * label / count degrees: quarter turns by RotNet's method, others by torchvision."""
    if count == 4 and image.shape[1] == image.shape[2]:
        return rotations(image[None].contiguous())[0][label]
    if (4 * label) % count == 0:
        return torch.rot90(image, 4 * label // count, (1, 2))
    picture = Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy()))
    return torch.from_numpy(np.array(functional.rotate(picture, 360 * label / count))).permute(2, 0, 1)


def rotate(case: Case) -> None:
    """The reference draws the label with torch's generator; ours are given, only their meaning is compared.

    Its angles are float32 numbers, so a pixel may fall on another side of a boundary. Of a picture that is not square
    it turns what the frame holds; ours turns the picture.
    """
    wanted = case.expected()
    count = option(case.args, "num_angles", default=4)
    picture = case.inputs()["image"]
    image = torch.from_numpy(picture).permute(2, 0, 1)
    if "angles" in wanted:
        np.testing.assert_allclose(wanted["angles"], [360 * label / count for label in range(count)], rtol=1e-6)
    assert set(wanted.get("labels_seq", ())) <= set(range(count))
    labels = [label for label in range(count) if f"angle{label}" in wanted]
    assert labels
    for label in labels:
        quarter = (4 * label) % count == 0 and (2 * label) % count != 0
        if quarter and picture.shape[0] != picture.shape[1]:
            continue
        found = _rotated(image, label, count).permute(1, 2, 0).numpy()
        other = (found != wanted[f"angle{label}"]).any(axis=2)
        exact = float(np.float32(360 * label / count)) == 360 * label / count
        assert other.mean() <= (0 if exact else 0.01), label


def lab(case: Case) -> None:
    """OpenCV's 8-bit conversion, which VISSL's colorization has: L in -50..50, a, b in -128..127."""
    pixels = cv2.cvtColor(np.ascontiguousarray(case.inputs()["image_rgb"]), cv2.COLOR_RGB2LAB).astype(np.float32)
    found = (pixels * np.float32([100 / 255, 1, 1]) - np.float32([50, 128, 128])).transpose(2, 0, 1)
    difference = np.abs(found - case.expected()["lab"])
    assert difference[0].max() <= 0.4 and difference[1:].max() <= 1


def permutations(case: Case) -> None:
    """Compare the greedy choice, which is any of those equally far from the chosen ones.

    The reference lets the rounding of their means decide, and what it takes then changes all that follow; ours takes
    the first. So each choice must be one of the farthest, given those before it, and the two must part at a tie.
    """
    args, given, wanted = case.args, case.inputs(), case.expected()["perms"]
    n, pieces = option(args, "N", default=1000), option(args, "M", default=9)
    choose = {"max_avg": "mean", "max_min": "min"}[option(args, "method", default="max_avg")]
    every = np.array(list(itertools.permutations(range(pieces))))
    first = int(given["first_index"]) if "first_index" in given else int((every == wanted[0]).all(axis=1).argmax())
    found = distant_permutations(n, pieces, first=first, choose=choose)
    assert found.shape == wanted.shape and np.array_equal(found[0], wanted[0])
    ours, theirs = (_farthest(rows, every, choose) for rows in (found, wanted))
    assert all(row == farthest[0] for row, farthest in ours)
    assert all(row in farthest for row, farthest in theirs)
    parted = next((k for k in range(len(ours)) if ours[k][0] != theirs[k][0]), None)
    assert parted is None or len(ours[parted][1]) > 1


def _farthest(rows: np.ndarray, every: np.ndarray, choose: str) -> list[tuple[int, set[int] | np.ndarray]]:
    """Return, for each row but the first, its number and the numbers of those farthest from the rows before it."""
    free, score, result = np.ones(len(every), bool), None, []
    for before, row in itertools.pairwise(rows):
        distance = (every != before).sum(axis=1)
        free &= distance > 0
        score = distance if score is None else score + distance if choose == "mean" else np.minimum(score, distance)
        farthest = np.flatnonzero(free & (score == score[free].max()))
        result.append((int((every == row).all(axis=1).argmax()), farthest))
    return result


def too_many_permutations(case: Case) -> None:
    """The reference crashes with argmax of nothing, also for all M! of them, which exist."""
    assert "Error" in str(case.expected_json())
    written = re.search(r"N(\d+)_M(\d+)", case.name)
    args = case.args
    n, pieces = (int(option(args, key, default=written and written[i])) for i, key in ((1, "N"), (2, "M")))
    if n <= math.factorial(pieces):
        assert len(np.unique(distant_permutations(n, pieces, first=0), axis=0)) == n
    else:
        with pytest.raises(UsageError, match="orders; asked for"):
            distant_permutations(n, pieces, first=0)


PATTERNS = {
    "09_transforms/patches_*": cut,
    "09_transforms/shuffle_*": shuffle,
    "09_transforms/rotate_*": rotate,
    "09_transforms/lab_*": lab,
    "09_transforms/jigsaw_[!e]*": permutations,
    "09_transforms/jigsaw_error_*": too_many_permutations,
}
