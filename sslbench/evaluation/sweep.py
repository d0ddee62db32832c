"""Sweeps: protocols x settings x weights x seeds, each run once; what has a record is not run again."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from sslbench.evaluation.request import RunSettings
from sslbench.evaluation.suite import SuiteCell, run_cells
from sslbench.results import Result
from sslbench.results.holes import Hole
from sslbench.runtime.progress import Progress


@dataclasses.dataclass(frozen=True)
class SweepRun:
    """One evaluation of a sweep.

    Attributes:
        cell: weights, and the protocol with the settings that are swept.
        run: settings of the run, with the seed.
    """

    cell: SuiteCell
    run: RunSettings


def run_sweep(
    runs: Sequence[SweepRun], *, store: Path, out: Path, command: str, progress: Progress | None = None
) -> tuple[list[Result], list[Hole]]:
    """Evaluate all runs; one that fails leaves a hole, and the others go on.

    Runs that differ in weights and settings of protocols share stored features; weights are encoded together.

    Args:
        runs: in any order.
        store: folder of the feature store.
        out: folder for the records; a run whose record is there is not computed again.
        command: command line of the user, for the records.
        progress: as for `evaluate`.

    Returns:
        The results, those that were there too, and the holes.

    Raises:
        ResultError: `holes.csv` cannot be written.
    """
    results: list[Result] = []
    holes: list[Hole] = []
    for settings in dict.fromkeys(each.run for each in runs):
        cells = [each.cell for each in runs if each.run == settings]
        order = {weights: position for position, weights in enumerate(dict.fromkeys(cell.weights for cell in cells))}
        cells.sort(key=lambda cell: order[cell.weights])  # stable: the cells of one weights file in a row
        found, missing = run_cells(cells, settings, store=store, out=out, command=command, progress=progress)
        results += [result for own in found.values() for result in own]
        holes += missing
    return results, holes
