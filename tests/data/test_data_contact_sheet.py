"""The contact sheet shows every view of the first images, in proportion, and is never left half-written."""

import numpy as np
import pytest
import torch
from PIL import Image

from sslbench.data.views.sheet import contact_sheet
from sslbench.errors import SslbenchError


def filled(size, values):
    return torch.stack([torch.full((3, size, size), value, dtype=torch.uint8) for value in values])


def areas(path):
    """How many pixels have each grey value."""
    pixels = np.array(Image.open(path).convert("RGB"))
    grey = pixels[(pixels == pixels[..., :1]).all(axis=2)][:, 0]
    return dict(zip(*np.unique(grey, return_counts=True), strict=True))


def test_views_are_shown_in_proportion(tmp_path):
    contact_sheet([filled(224, [10, 11, 12]), filled(96, [20, 21, 22])], tmp_path / "sheet.png", rows=2)
    found = areas(tmp_path / "sheet.png")
    assert (found[10], found[11], found[20], found[21]) == (224**2, 224**2, 96**2, 96**2)
    assert 12 not in found and 22 not in found


def test_small_views_are_enlarged_together(tmp_path):
    contact_sheet([filled(32, [10]), filled(16, [20])], tmp_path / "new" / "sheet.png")
    found = areas(tmp_path / "new" / "sheet.png")
    assert (found[10], found[20]) == (96**2, 48**2)
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["sheet.png"]


def test_the_channels_are_red_green_blue(tmp_path):
    red = torch.tensor([255, 0, 0], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 100, 100)
    contact_sheet([red], tmp_path / "sheet.png")
    pixels = np.array(Image.open(tmp_path / "sheet.png"))
    assert (pixels == [255, 0, 0]).all(axis=2).sum() == 100**2


def test_a_failure_leaves_no_file(tmp_path, monkeypatch):
    def fail(self, path, *args, **kwargs):
        path.write_bytes(b"half a picture")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", fail)
    with pytest.raises(SslbenchError, match="No space"):
        contact_sheet([filled(32, [10])], tmp_path / "sheet.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("views", [[], [filled(8, [1]), filled(8, [1, 2])]])
def test_views_that_do_not_fit_together_are_refused(views, tmp_path):
    with pytest.raises(ValueError, match="contact sheet"):
        contact_sheet(views, tmp_path / "sheet.png")
