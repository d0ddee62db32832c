"""Notebooks of the documentation run from the first to the last cell, on data that come with the libraries."""

from pathlib import Path

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


def test_the_notebooks_run(tmp_path, monkeypatch):
    """One after the other in one kernel, each in a folder of its own and without the names of the one before."""
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    assert len(NOTEBOOKS) == 3
    together, lasts = nbformat.v4.new_notebook(), []
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        assert not any(cell.get("outputs") for cell in notebook.cells), "stored without outputs, which would grow old"
        (tmp_path / path.stem).mkdir()
        together.cells += [nbformat.v4.new_code_cell(f"%reset -f\n%cd -q {tmp_path / path.stem}"), *notebook.cells]
        lasts.append(max(i for i, cell in enumerate(together.cells) if cell.cell_type == "code"))
    done = NotebookClient(together, timeout=None, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in done.cells for output in cell.get("outputs", ())]
    assert {output.output_type for output in shown} <= {"execute_result", "display_data", "stream"}
    assert all(done.cells[i].outputs for i in lasts), "the last cell of each shows its result"
