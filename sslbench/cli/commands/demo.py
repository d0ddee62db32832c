"""`sslbench demo`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sslbench.cli.echo import echo

if TYPE_CHECKING:
    from sslbench.pretraining import PretrainingOutcome
    from sslbench.results import Result

BACKBONE = "resnet18w0.25"
EPOCHS = 30
# SimCLR's recipe is for batches of 4,096; the digits are 1,797 images in all. A batch of 64 with AdamW learns in a
# minute. Mirrored or tightly cropped digits would change class.
SETTINGS: dict[str, Any] = {
    "backbone": BACKBONE,
    "epochs": EPOCHS,
    "batch_size": 64,
    "augment": "digits",
    "optimizer": "adamw",
    "optimizer.lr": 0.003,
    "optimizer.lr_scaling": "none",
    "schedule.warmup_epochs": 1,
    "method.temperature": 0.1,
    "method.projector": [128, 64],
    "sync_bn": False,
    "workers": 2,
    "save_every": f"{EPOCHS} epochs",
}


@click.command("demo")
@click.option("--out", default="sslbench-demo", show_default=True, help="Folder for all output.")
def command(out: str) -> None:
    """Pretrain a small ResNet on bundled digits with SimCLR and evaluate it; offline.

    Training uses no labels. knn, linear and svm score the features; the untrained network and raw pixels are the
    floors. A leaderboard follows.
    """
    from sslbench import evaluation
    from sslbench.cli import terminal
    from sslbench.cli.commands.eval import table
    from sslbench.cli.commands.leaderboard import write_board

    terminal.show_messages()
    folder = Path(out)
    evaluation.check_writable(folder)
    echo(
        f"1 797 handwritten digits (bundled with scikit-learn), {BACKBONE}, SimCLR for {EPOCHS} epochs: about a minute",
        err=True,
    )
    outcome = _pretrain(folder / "pretrained")
    run = evaluation.RunSettings(device="auto")
    tasks = tuple(evaluation.make_task(name, {}) for name in ("knn", "linear", "svm"))
    request = evaluation.Request(weights=str(outcome.weights), data="sklearn:digits", tasks=tasks)
    with terminal.progress() as progress:
        prepared = evaluation.prepare(request, run)
        results = evaluation.evaluate(
            prepared, store=folder / "features", out=folder / "results", command="sslbench demo", progress=progress
        )
    table.print_results(results, folder / "results")
    echo()
    write_board([folder / "results"], {"csv": folder / "leaderboard.csv"})
    for name in ("views.png", "curve.png"):
        echo(f"{name.removesuffix('.png')}: {(folder / 'pretrained' / name).resolve()}")
    echo()
    for line in verdict(results):
        echo(line)


def _pretrain(out: Path) -> "PretrainingOutcome":
    """Pretrain, or find the weights of an earlier demo."""
    import torch

    from sslbench.cli.commands.pretrain.progress import training_progress
    from sslbench.config import build
    from sslbench.library.recipes import compose_pretraining
    from sslbench.pretraining import PretrainRequest, PretrainSettings, pretrain
    from sslbench.train.observers.always import always

    values = compose_pretraining("simclr", SETTINGS, {}).values
    values.pop("launcher")
    settings = build(PretrainSettings, values, "demo")
    threads = torch.get_num_threads()
    # A second thread does not speed up such small convolutions, and slows them down on a busy machine.
    torch.set_num_threads(1)
    progress = training_progress()
    observers = [*always(out, mean=settings.augment.mean, std=settings.augment.std), progress]
    try:
        return pretrain(PretrainRequest(settings, "sklearn:digits", out), command="sslbench demo", observers=observers)
    finally:
        progress.close()
        torch.set_num_threads(threads)


def verdict(results: "list[Result]") -> list[str]:
    """Return a line per protocol: its score against the untrained network, by the paired test."""
    lines = []
    for result in results:
        metric, floors = result.metrics[result.headline], result.floors
        untrained, pixels = floors["untrained"][result.headline], floors["pixels"][result.headline]
        beaten = not any("not better than the untrained" in note for note in result.notes)
        word = "beats" if beaten else "does not clearly beat"
        lines.append(
            f"{result.protocol.name}: SimCLR {word} its own random initialisation, "
            f"{metric.value:.2f} against {untrained:.2f} (pixels: {pixels:.2f})"
        )
    lines.append("The test images were part of pretraining, without their labels.")
    return lines
