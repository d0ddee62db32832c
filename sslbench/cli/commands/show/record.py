"""Pictures of the test images of a record."""

from collections.abc import Sequence
from pathlib import Path

import click

from sslbench.cli import options, terminal
from sslbench.cli.early import resolve_run
from sslbench.errors import UsageError
from sslbench.results.records import read

USED = {
    *("words", "out", "data", "test_data", "image_column", "label_column", "limit"),
    *("device", "workers", "batch_size", "start_method", "store", "decoder", "backbone"),
}
REASONS = dict.fromkeys(("weights", "layers", "resize", "crop", "seed", "precision"), "The record has its own.")
_DEFAULT_EACH = 6


def draw(
    ctx: click.Context,
    words: Sequence[str],
    out: Path,
    weights: options.WeightsFlags,
    data: options.DataFlags,
    run: options.RunFlags,
) -> list[Path]:
    """Draw the best, median and worst test images of a record; return the files."""
    if len(words) > 2:
        raise UsageError(
            f"show takes one record, not {len(words) - 1} words before it", "sslbench show knn RECORD.json"
        )
    terminal.show_messages()
    settings, _ = resolve_run({}, run.settings())
    read(Path(words[-1]))

    from sslbench.show.record import AsTyped
    from sslbench.show.results import RecordPictures, show_record

    typed = AsTyped(
        data.data,
        data.test_data,
        data.image_column,
        data.label_column,
        backbone=weights.backbone,
        protocol=words[0] if len(words) == 2 else None,
        decoder=tuple(run.decoder) if run.decoder else None,
    )
    chosen = RecordPictures(typed, data.limit or _DEFAULT_EACH, run.store_folder())
    with terminal.progress() as progress:
        return show_record(Path(words[-1]), chosen, settings, out, command=str(ctx.obj), progress=progress)
