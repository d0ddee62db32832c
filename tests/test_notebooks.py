"""Notebooks of the documentation run from the first to the last cell, on data that come with the libraries."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "stored without outputs, which would grow old"
    done = NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in done.cells for output in cell.get("outputs", ())]
    assert {output.output_type for output in shown} <= {"execute_result", "display_data", "stream"}
    last = [cell for cell in done.cells if cell.cell_type == "code"][-1]
    assert last.outputs, "the last cell shows its result"


def test_there_are_three():
    assert len(NOTEBOOKS) == 3
