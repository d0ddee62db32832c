"""Small Hugging Face data set, for the tests that run over every format; see `sample_data`."""

import pytest
from helpers import containers

LABELS = "single"


def write_parquet(root, samples):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    return containers.write_parquet(root, samples)


def make(root):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    return containers.write_saved(root, containers.pictures())


WRITE = {"hf": write_parquet}
