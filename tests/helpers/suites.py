"""All results of a suite in one list."""

from sslbench.evaluation.suite import run_cells


def run_suite(cells, run, **places):
    """Return the results of all cells and the holes, as `run_cells` finds them."""
    found, holes = run_cells(cells, run, **places)
    return [result for results in found.values() for result in results], holes
