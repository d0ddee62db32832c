"""The pretraining, the evaluation and the pictures of the demo."""

import dataclasses
from pathlib import Path
from typing import Any

from sslbench import evaluation
from sslbench.cli import terminal
from sslbench.cli.commands.eval import table
from sslbench.cli.commands.leaderboard import write_board
from sslbench.cli.commands.pretrain.train import training_progress
from sslbench.cli.echo import echo, note
from sslbench.config import build
from sslbench.data.prepare.grey_digits import draw_digits
from sslbench.evaluation import Request, RunSettings, Task, make_task
from sslbench.library.recipes import compose_pretraining
from sslbench.pretraining import PretrainingOutcome, PretrainRequest, PretrainSettings, pretrain
from sslbench.results import Result
from sslbench.show.choices import AsTyped
from sslbench.show.results import RecordPictures, show_record
from sslbench.show.scatter import points_of_images, show_scatter
from sslbench.train.observers.always import always

BACKBONE = "resnet18w0.25"
EPOCHS = 30
LABELS = 10
"""Labelled images per class of the low-shot protocol."""
_EACH = 6
"""Images per group of the sheet of test images."""
# SimCLR's recipe is for batches of 4,096; here are 1,438 images in all. A batch of 64 with AdamW learns in a minute.
# Views are inverted (solarised from 0 on) and change brightness and contrast, as the images do; mirrored digits would
# change class.
SETTINGS: dict[str, Any] = {
    "backbone": BACKBONE,
    "epochs": EPOCHS,
    "batch_size": 64,
    "augment": "digits",
    "augment.views": [
        {
            "count": 2,
            "size": 32,
            "scale": [0.4, 1.0],
            "flip": 0.0,
            "jitter": {"p": 1.0, "brightness": 0.6, "contrast": 0.6},
            "solarize": {"p": 0.5, "threshold": 0},
        }
    ],
    "optimizer": "adamw",
    "optimizer.lr": 0.002,
    "optimizer.lr_scaling": "none",
    "schedule.warmup_epochs": 1,
    "method.temperature": 0.2,
    "method.projector": [128, 64],
    "sync_bn": False,
    "workers": 2,
    "save_every": f"{EPOCHS} epochs",
}
TASK = f"""\
Task: 1,797 handwritten digits (bundled with scikit-learn), each of a random grey on a random grey. SimCLR trains a
small network on 1,438 of them without labels; a few labels are then to suffice. Strokes are darker or brighter than
the paper, so pixels alone say little, and a network can learn to see past it. With all labels, kNN on pixels is good
enough: for most digits there is another one of similar grey. The demo is about few labels, {LABELS} per class.
"""


def run_demo(folder: Path, seed: int) -> None:
    """Draw the digits, pretrain, evaluate, and print what was found; every file goes into the folder."""
    evaluation.check_writable(folder)
    note(TASK)
    digits = draw_digits(folder / f"digits-seed{seed}", seed)
    outcome = pretrain_on(digits, folder / f"pretrained-seed{seed}", seed)
    run = RunSettings(device="auto", seed=seed)
    with terminal.progress() as progress:
        request = Request(weights=str(outcome.weights), data=str(digits), tasks=tasks())
        prepared = evaluation.prepare(request, run)
        results = evaluation.evaluate(
            prepared, store=folder / "features", out=folder / "results", command="sslbench demo", progress=progress
        )
    table.print_results(results)
    echo()
    write_board([folder / "results"], {"csv": folder / "leaderboard.csv", "html": folder / "leaderboard.html"})
    _draw(request, results[0], run, folder)
    echo(f"views: {(outcome.weights.parent / 'views.png').resolve()}")
    echo(f"features in the plane: {(folder / 'show-features' / 'index.html').resolve()}")
    echo(f"best and worst test images: {(folder / 'show-images' / 'index.html').resolve()}")
    echo()
    for line in verdict(results):
        echo(line)
    echo("\nThe same with your own images, a folder for each class:")
    echo("  sslbench pretrain simclr --data photos/ --backbone resnet50 batch_size=256")
    echo("  sslbench eval low-shot linear --weights runs/simclr-resnet50/weights.torch --data photos/")


def tasks() -> tuple[Task, ...]:
    """Return the protocols of the demo with their settings."""
    return make_task("low-shot", {"k": [LABELS]}), make_task("linear", {})


def pretrain_on(digits: Path, out: Path, seed: int, **changed: Any) -> PretrainingOutcome:
    """Pretrain on the training part, or find the weights of an earlier demo."""
    import torch

    values = compose_pretraining("simclr", SETTINGS | {"seed": seed} | changed, {}).values
    settings = build(PretrainSettings, values, "demo")
    threads = torch.get_num_threads()
    # A second thread does not speed up such small convolutions, and slows them down on a busy machine.
    torch.set_num_threads(1)
    progress = training_progress()
    observers = [*always(out, mean=settings.augment.mean, std=settings.augment.std), progress]
    request = PretrainRequest(settings, str(digits / "train"), out)
    try:
        return pretrain(request, command="sslbench demo", observers=observers)
    finally:
        progress.close()
        torch.set_num_threads(threads)


def _draw(request: Request, result: Result, run: RunSettings, folder: Path) -> None:
    """Draw the features in the plane, and the best, median and worst test images, as `sslbench show` does."""
    store = folder / "features"
    some = dataclasses.replace(request, tasks=())
    points = points_of_images(some, run, store=store, progress=None)
    show_scatter(points, "tsne", run.seed, folder / "show-features", command="sslbench demo")
    pictures = RecordPictures(AsTyped(), _EACH, store)
    show_record(Path(str(result.file)), pictures, run, folder / "show-images", command="sslbench demo")


def verdict(results: list[Result]) -> list[str]:
    """Return a line per protocol: its score and interval against the untrained network and pixels."""
    lines = []
    for result in results:
        metric, floors = result.metrics[result.headline], result.floors
        untrained, pixels = floors["untrained"][result.headline], floors["pixels"][result.headline]
        # The lower end of the interval counts: on a few hundred test images the value alone may lie above by chance.
        better = (metric.low or 0.0) > max(untrained or 0.0, pixels or 0.0)
        lines.append(
            f"{result.protocol.name}: SimCLR is {'above both floors' if better else 'not clearly above the floors'}: "
            f"{metric.value:.2f} [{metric.low:.2f}, {metric.high:.2f}], untrained {untrained:.2f}, pixels {pixels:.2f}"
        )
    return lines
