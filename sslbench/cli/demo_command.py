"""`sslbench demo`."""

import click


@click.command("demo")
@click.option("--out", default="sslbench-demo", show_default=True, help="Folder for results, features and the CSV.")
def command(out: str) -> None:
    """Evaluate an untrained ResNet-18 and the pixels of bundled digits with knn, linear and svm, offline.

    It shows the whole way: features are extracted once and stored, three protocols score them, a leaderboard follows.
    """
    from pathlib import Path

    from sslbench import evaluation
    from sslbench.cli import result_table, terminal
    from sslbench.cli.leaderboard_command import write_board

    terminal.show_messages()
    folder = Path(out)
    evaluation.check_writable(folder)
    click.echo(
        "1 797 handwritten digits (bundled with scikit-learn), an untrained ResNet-18: what is the floor?", err=True
    )
    run = evaluation.RunSettings(device="auto")
    tasks = tuple(evaluation.make_task(name, {}) for name in ("knn", "linear", "svm"))
    # The digits are 8 x 8 pixels: at 64 x 64 the network sees all there is to see, at a twelfth of the cost of 224.
    request = evaluation.Request(
        weights="random",
        backbone="resnet18",
        data="sklearn:digits",
        tasks=tasks,
        preprocessing={"resize": [64, 64], "crop": None},
    )
    with terminal.progress() as progress:
        prepared = evaluation.prepare(request, run)
        results = evaluation.evaluate(
            prepared, store=folder / "features", out=folder / "results", command="sslbench demo", progress=progress
        )
    result_table.print_results(results, folder / "results")
    click.echo()
    write_board(folder / "results", csv_path=str(folder / "leaderboard.csv"))
