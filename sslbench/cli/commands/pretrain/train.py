"""Training of `sslbench pretrain`, its progress on stderr, and its plan for --dry-run."""

import dataclasses
import shlex
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import click

from sslbench.cli.commands.pretrain.flags import PretrainFlags
from sslbench.cli.echo import echo, is_quiet, note
from sslbench.cli.slurm import Slurm
from sslbench.cli.tables import section, show_value
from sslbench.cli.terminal import QUIET, duration
from sslbench.config import build
from sslbench.distributed import this_process
from sslbench.errors import UsageError
from sslbench.evaluation.costs import work_of
from sslbench.evaluation.pretraining import knn_evaluator
from sslbench.library.recipes import leaves
from sslbench.names import find_object
from sslbench.pretraining import PretrainRequest, prepare
from sslbench.pretraining import pretrain as train
from sslbench.runtime.progress import make_bars
from sslbench.train.method import find_method
from sslbench.train.observers import Observer
from sslbench.train.observers.always import always
from sslbench.train.observers.profile import Profile
from sslbench.train.observers.tensorboard import TensorBoard
from sslbench.train.observers.text_log import position, scores, summary
from sslbench.train.observers.wandb import Wandb

if TYPE_CHECKING:
    from sslbench.train.meter import LogRecord
    from sslbench.train.observers import RunInfo


def run(request: PretrainRequest, given: PretrainFlags) -> None:
    """Train, and print the place of the weights with the command that evaluates them."""
    typed = str(click.get_current_context().find_root().obj)
    # Before the data are opened: a mistake in them should not cost minutes.
    own = [_own_observer(spec) for spec in given.observer]
    evaluator = knn_evaluator(request)
    # The other processes train alike; bars, logs and files are the first one's.
    if this_process().rank != 0:
        train(request, command=typed, evaluator=evaluator)
        return
    augment = request.settings.augment
    observers: list[Observer] = [*always(request.out, mean=augment.mean, std=augment.std)]
    drawn: dict[str, Any] = {
        "histograms": given.histograms or bool(given.histograms_every),
        "every": given.histograms_every,
    }
    if given.tensorboard:
        observers.append(TensorBoard(request.out / "tensorboard", **drawn))
    if given.wandb:
        observers.append(Wandb(given.wandb, settings=dataclasses.asdict(request.settings), **drawn))
    if given.profile:
        observers.append(Profile(given.profile, request.out / "profile.json.gz"))
    observers += own
    progress = training_progress()
    try:
        outcome = train(request, command=typed, observers=[*observers, progress], evaluator=evaluator)
    finally:
        progress.close()
    echo(outcome.weights)
    data, test = request.eval_data or request.data, request.eval_test_data
    words = ["sslbench", "eval", "knn", "linear", "--weights", str(outcome.weights), "--data", data]
    columns = {"--image-col": request.image_column, "--label-col": request.label_column}
    for flag, value in {"--test-data": test, **columns, "--decoder": ",".join(request.settings.decoder)}.items():
        words += [flag, value] if value else []
    echo(shlex.join(words))


def _own_observer(spec: str) -> Observer:
    """Return an observer of the user's own class."""
    kind = find_object(spec)
    if not (isinstance(kind, type) and Observer in kind.__mro__):
        raise UsageError(
            f"--observer {spec} is no subclass of sslbench.train.observers.Observer",
            "Write class Mine(Observer): with those of the methods that it needs: started, line, evaluated, ...",
        )
    try:
        return cast(Observer, kind())
    except TypeError as error:
        raise UsageError(f"--observer {spec} cannot be built without arguments: {error}") from error


def print_plan(request: PretrainRequest, origins: Mapping[str, str], launcher: Slurm | None) -> None:
    """Print the plan; opens the data, builds the networks and reads a few images for their channels."""
    prepared = prepare(request)
    settings = dataclasses.asdict(prepared.request.settings)
    origins = {**origins, **prepared.changes}
    name, own = settings["method"]["name"], {k: v for k, v in settings["method"].items() if k != "name"}
    config = build(find_method(name).config_type, own, f"method {name}")
    settings["method"] = {"name": name, **dataclasses.asdict(config)}
    groups = {key: value for key, value in settings.items() if key in ("method", "augment", "optimizer", "schedule")}
    for name, values in groups.items():
        section(name, _rows({name: values}, origins, f"{name}."))
    section("run", _rows({k: v for k, v in settings.items() if k not in groups}, origins, ""))
    if launcher is not None:
        section("launcher", _rows({"launcher": dataclasses.asdict(launcher)}, {}, "launcher."))
    setup, plan = prepared.setup, prepared.plan
    trained = sum(p.numel() for p in prepared.method.parameters() if p.requires_grad)
    rest = sum(p.numel() for p in prepared.method.backbone.parameters())
    prepared.backbone.module.eval()  # one image has no statistics
    work = work_of(prepared.backbone, [(size, size) for size in setup.sizes])
    rows = [
        ("data", f"{request.data}: {setup.samples} images", ""),
        ("updates", f"{plan.steps} ({plan.per_epoch} per epoch, {setup.images_per_update} images each)", ""),
        ("processes", f"{setup.world} on {prepared.device}, {setup.batch_size} images per forward pass of each", ""),
        ("views", ", ".join(f"{size} x {size}" for size in setup.sizes), ""),
        *(
            (f"rate of {name}" if name else "rate", f"{rates.lr(0.0):.4g} at first, {most:.4g} at most", "")
            for name, rates in {"": plan.rates, **plan.parts}.items()
            # A schedule is any function of the progress, so its largest value has to be looked for.
            for most in [max(rates.lr(i / 200) for i in range(200))]
        ),
        ("parameters", f"{trained:,} trained; the backbone has {rest:,}", ""),
        *(
            [("work", f"{work.gflops:.4g} GFLOPs, {work.activations:,} activations: backbone, views of an image", "")]
            if work is not None
            else []
        ),
        ("folder", str(request.out), ""),
    ]
    section("derived", rows)


def _rows(values: Mapping[str, Any], origins: Mapping[str, str], prefix: str) -> list[tuple[str, str, str]]:
    """Return a row per dotted key; mappings in a list (kinds of views) have one row each."""
    rows = []
    for key, value in leaves(values).items():
        many = isinstance(value, tuple) and value and isinstance(value[0], dict)
        entries = [(f"{key}[{i}]", entry) for i, entry in enumerate(value)] if many else [(key, value)]
        rows += [(name.removeprefix(prefix), _text(entry), _origin(key, origins)) for name, entry in entries]
    return rows


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_text(entry)}" for key, entry in value.items()) + "}"
    return show_value(value)


def _origin(key: str, origins: Mapping[str, str]) -> str:
    """Return the origin of a value or of the mapping that contains it (schedule.lr={...})."""
    while key:
        if key in origins:
            return origins[key]
        key = key.rpartition(".")[0]
    return "default"


QUIET_AT_EPOCH = 2.0  # seconds; shorter epochs get no line of their own


def training_progress() -> "TrainingBar | TrainingLines":
    """Return a bar on a terminal, lines otherwise."""
    return TrainingBar() if sys.stderr.isatty() and not is_quiet() else TrainingLines()


class _Clock:
    """Elapsed and remaining time, from the updates of this run."""

    def __init__(self, run: "RunInfo") -> None:
        self.run, self.began = run, time.monotonic()

    def left(self, step: int) -> str:
        elapsed = time.monotonic() - self.began
        return duration(elapsed / max(step - self.run.start, 1) * (self.run.steps - step))

    def elapsed(self) -> str:
        return duration(time.monotonic() - self.began)


class TrainingLines(Observer):
    """Progress as lines: at most one every ten seconds, and one at the end of each epoch."""

    def started(self, run: "RunInfo") -> None:
        """Start the clock."""
        self.run, self.clock = run, _Clock(run)
        self.last, self.step = time.monotonic(), run.start

    def line(self, line: "LogRecord") -> None:
        """Print a line if one is due."""
        quiet = time.monotonic() - self.last
        epoch_ended = line.step // self.run.per_epoch > self.step // self.run.per_epoch
        self.step = line.step
        if quiet < (QUIET_AT_EPOCH if epoch_ended else QUIET) and line.step < self.run.steps:
            return
        self.last = time.monotonic()
        note(f"{position(line, self.run)}  {summary(line)}  {self.clock.left(line.step)} left")

    def evaluated(self, record: dict[str, float | int]) -> None:
        """Print the scores of an evaluation."""
        note(scores(record))

    def finished(self) -> None:
        """Print the duration."""
        note(f"trained in {self.clock.elapsed()}")

    def close(self) -> None:
        """Do nothing; a bar closes its terminal here."""


class TrainingBar(Observer):
    """Progress as one bar: update, epoch, loss, learning rate, images per second, memory, time left."""

    def __init__(self) -> None:
        self.bar = make_bars(24)
        self.task: Any = None

    def started(self, run: "RunInfo") -> None:
        """Show the bar."""
        self.run, self.clock = run, _Clock(run)
        self.task = self.bar.add_task(self._epoch(run.start), total=run.steps, completed=run.start, text="")
        self.bar.start()

    def line(self, line: "LogRecord") -> None:
        """Advance the bar."""
        text = f"{summary(line)}  {self.clock.left(line.step)} left"
        self.bar.update(self.task, completed=line.step, text=text, description=self._epoch(line.step))

    def evaluated(self, record: dict[str, float | int]) -> None:
        """Print the scores above the bar."""
        self.bar.console.print(scores(record), highlight=False)

    def finished(self) -> None:
        """Print the duration."""
        self.bar.console.print(f"trained in {self.clock.elapsed()}", highlight=False)

    def close(self) -> None:
        """Stop the bar and restore the terminal."""
        self.bar.stop()

    def _epoch(self, step: int) -> str:
        epochs = round(self.run.steps / self.run.per_epoch, 2)
        return f"epoch {min(step // self.run.per_epoch + 1, -(-self.run.steps // self.run.per_epoch))}/{epochs:g}"
