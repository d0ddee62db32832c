"""`sslbench check-data`."""

from typing import Any

import click

COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


@click.command("check-data")
@click.argument("data")
@click.option("--test-data", help="The test part, when it lies elsewhere.")
@click.option("--image-col", "image_column", help="Column of a table that holds the image paths.")
@click.option("--label-col", "label_column", help="Column of a table that holds the labels.")
@click.option("--test-fraction", type=float, default=0.2, show_default=True, help="If there is no test part.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the split, if there is no test part.")
@click.option("--decode", is_flag=True, help="Decode every image too, and list those that cannot be read.")
@click.option("--workers", type=int, help="Processes that decode.")
@click.pass_context
def command(ctx: click.Context, /, data: str, decode: bool, workers: int | None, **given: Any) -> None:
    """Check DATA as `eval` would before it starts: splits, classes, duplicates, leaks; with --decode every image.

    Exit code 1 when there is an error.
    """
    from sslbench.cli import terminal
    from sslbench.data.preflight import check
    from sslbench.data.splits import train_test

    terminal.show_messages()
    both = train_test(data, **given)
    for part in (both.train, both.test):
        click.echo(f"{part.name}: {len(part)} images, {len(part.labels.classes)} classes ({part.labels.kind} label)")
    click.echo(f"split: {both.how}")
    findings = check(both.train, both.test)
    for finding in findings:
        click.echo(click.style(f"{finding.level}: ", fg=COLOURS[finding.level]) + finding.message)
    bad = _decode_all([both.train, both.test], workers) if decode else 0
    errors = sum(finding.level == "error" for finding in findings) + bad
    if errors == 0:
        click.echo("no errors found")
    ctx.exit(1 if errors else 0)


def _decode_all(parts: list[Any], workers: int | None) -> int:
    import numpy as np

    from sslbench.data import loader

    bad = 0
    for part in parts:
        count = loader.default_workers() if workers is None else workers
        for _, path, reason in loader.scan(part, np.arange(len(part)), count):
            click.echo(click.style("error: ", fg="red") + f"{path}: {reason}")
            bad += 1
    return bad
