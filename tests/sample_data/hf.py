"""Small Hugging Face data set, for the tests that run over every format; see `sample_data`."""

import pytest
from helpers import containers

LABELS = "single"


def with_pyarrow(write):
    def write_one(root, samples):
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        return write(root, samples)

    return write_one


def make(root):
    return WRITE["hf saved"](root, containers.pictures())


WRITE = {"hf": with_pyarrow(containers.write_parquet), "hf saved": with_pyarrow(containers.write_saved)}
