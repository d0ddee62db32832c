"""Picture of the matrix of predicted classes."""

import io

import numpy as np
import pytest
from PIL import Image

from sslbench.evaluation import beside


@pytest.mark.parametrize("n", [20, 40])
def test_each_name_stands_above_its_own_column(n):
    cell, margin = 640 // n, 150
    for named in (0, n // 2, n - 1):
        names = tuple("class" if i == named else "" for i in range(n))
        image = Image.open(io.BytesIO(beside.picture(np.zeros((n, n), np.int64), names)))
        above = np.asarray(image.convert("L"))[20 : margin - 4, margin:]
        columns = np.flatnonzero((above < 128).any(axis=0)) // cell
        assert len(columns) and (columns == named).all()
