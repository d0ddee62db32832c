"""`sslbench pretrain`."""

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from sslbench.cli import options
from sslbench.cli.echo import echo, note
from sslbench.cli.help import SettingsCommand
from sslbench.config import build
from sslbench.distributed import this_process
from sslbench.errors import UsageError
from sslbench.names import did_you_mean, find_object, list_names, refuse_missing_module

if TYPE_CHECKING:
    from sslbench.cli.slurm import Slurm
    from sslbench.library.recipes import Composed
    from sslbench.pretraining import Observer, PretrainRequest, PretrainSettings


@dataclasses.dataclass(frozen=True)
class PretrainFlags:
    """Values of the flags of `sslbench pretrain`."""

    data: str | None
    out: str | None
    init: str | None
    init_format: str | None
    stem: str | None
    eval_data: str | None
    eval_test_data: str | None
    image_column: str | None
    label_column: str | None
    limit: int | None
    resume: bool
    resume_from: str | None
    tensorboard: bool
    histograms: bool
    wandb: str | None
    profile: int | None
    observer: tuple[str, ...]
    launcher: str | None
    dry_run: bool
    backbone: str | None
    epochs: float | None
    batch_size: int | None
    device: str | None
    precision: str | None
    workers: int | None
    seed: int | None

    def settings(self) -> dict[str, Any]:
        """Return the given flags that are keys of configs/pretrain.yaml."""
        keys = ("backbone", "epochs", "batch_size", "device", "precision", "workers", "seed")
        values = dataclasses.asdict(self)
        return {key: values[key] for key in keys if values[key] is not None}

    def check(self) -> None:
        """Refuse flags that depend on another one that is not given.

        Raises:
            UsageError: the message names the flag.
        """
        if self.init is None and (self.init_format or self.stem):
            raise UsageError(f"{'--format' if self.init_format else '--stem'} needs --init, a weights file")
        if self.eval_test_data and not self.eval_data:
            raise UsageError("--eval-test-data needs --eval-data")
        if self.histograms and not self.tensorboard:
            raise UsageError("--histograms needs TensorBoard", "Add --tensorboard.")
        if self.resume_from and not self.resume:
            raise UsageError("--resume-from and --no-resume exclude each other")

    def with_inputs(self, method: str) -> "PretrainFlags":
        """Return the flags with the data and first weights of the run whose config.yaml is `method`, unless given.

        Raises:
            UsageError: the file names unknown inputs.
        """
        from sslbench.library.recipes import inputs_of_run

        inputs = inputs_of_run(method)
        for group in (("data", "image_column", "label_column"), ("init", "init_format", "stem"), ("limit",)):
            if any(getattr(self, name) is not None for name in group):
                inputs = {name: value for name, value in inputs.items() if name not in group}
        for name, value in inputs.items():
            note(f"{name}: {value} (from {method})")
        return dataclasses.replace(self, **inputs)

    def folder(self, method: str, backbone: str) -> Path:
        """Return the folder of the run: --out, by default runs/METHOD-BACKBONE."""
        if self.out:
            return Path(self.out)
        name = Path(method).stem if "/" in method else method
        architecture = str(backbone).partition(",")[0]  # its options are in config.yaml
        return Path("runs") / re.sub(r"[^\w.-]+", "-", f"{name}-{architecture}")


class PretrainCommand(SettingsCommand):
    """Command whose help also shows the named recipe and the settings of its method."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words for the help."""
        ctx.meta["words"] = list(args)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the named recipes, or the names of all."""
        from sslbench.cli.commands.pretrain.help import write_method

        methods = list_names("method")
        named = [word for word in ctx.meta.get("words", []) if word in methods]
        for name in named:
            write_method(name, formatter)
        if not named:
            with formatter.section("Methods"):
                formatter.write_text(", ".join(methods))
            formatter.write_paragraph()
            formatter.write_text("Settings of a method and its recipe: sslbench pretrain simclr --help")


@click.command("pretrain", cls=PretrainCommand)
@click.argument("words", nargs=-1, metavar="METHOD [KEY=VALUE]...")
@click.option("--data", "-d", help="Images: folder, table, manifest, torchvision:NAME, ... Labels are ignored.")
@click.option(
    "--backbone",
    "-b",
    help="Architecture: resnet50, a timm name, my_module:callable; resnet50,in_chans=13 for 13 channels. Default: the "
    "recipe's.",
)
@click.option("--out", "-o", help="Folder of the run. Default: runs/METHOD-BACKBONE.")
@click.option("--init", help="Weights file to start from, in any format. Default: random initialisation.")
@click.option("--format", "init_format", help="Format of --init (sslbench list formats). Default: recognised.")
@click.option(
    "--stem", help="Rule that adapts the first convolution of --init to the number of channels: average, repeat, ..."
)
@click.option(
    "--eval-data",
    help="Labelled data for kNN and feature spectra every eval_every epochs (eval_linear=true: a linear head, too).",
)
@click.option("--eval-test-data", help="Test split of --eval-data. Default: found there, or split off.")
@options.image_column
@options.label_column
@click.option("--limit", type=click.IntRange(1), help="Largest number of images, for a quick look.")
@click.option(
    "--resume/--no-resume", default=True, help="Continue the run in --out (default), or refuse a folder in use."
)
@click.option("--resume-from", help="Checkpoint to continue from. Default: the newest in --out.")
@click.option("--epochs", type=float, help="Passes over the data. Default: the recipe's.")
@click.option("--batch-size", type=int, help="Images per update over all processes. Default: the recipe's.")
@click.option("--device", help="Device: auto, cpu, cuda, cuda:1, mps. Default: auto.")
@click.option("--precision", help="Precision of the forward pass: auto, fp32, bf16, fp16. Default: the recipe's.")
@click.option(
    "--workers", type=int, help="Processes that decode and augment; 0: the main process does. Default: by the cores."
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    help="Seed of the initialisation, the order of the images and the views.",
)
@click.option("--tensorboard", is_flag=True, help="Write scalars for TensorBoard below --out.")
@click.option(
    "--histograms", is_flag=True, help="Write histograms of parameters and gradients each epoch (--tensorboard)."
)
@click.option("--wandb", metavar="PROJECT", help="Weights & Biases project to log to (WANDB_MODE=offline works).")
@click.option(
    "--observer",
    multiple=True,
    metavar="MODULE:CLASS",
    help="Observer of your own, built without arguments; repeatable.",
)
@click.option("--profile", type=click.IntRange(1), metavar="N", help="Updates to profile; writes a table and a trace.")
@click.option(
    "--launcher", help="Launcher: local, or slurm (launcher.partition=..., launcher.nodes=...). Default: local."
)
@options.message_options
@click.option("--dry-run", is_flag=True, help="Print the settings with their origins and stop.")
def command(words: tuple[str, ...], **flags: Any) -> int | None:
    """Train a backbone without labels, by a published recipe, and write weights.torch.

    The same command continues an interrupted run. Without --data the digits bundled with scikit-learn are used.

    \b
    sslbench pretrain simclr --data photos/ --backbone resnet50 batch_size=256
    sslbench pretrain moco_v2 --data photos/ --eval-data labelled/ epochs=200 method.temperature=0.1
    sslbench pretrain simclr --data small.csv augment=small optimizer.lr=0.1 schedule.warmup_epochs=5
    torchrun --nproc-per-node 8 -m sslbench pretrain dino -d photos/ -b timm:vit_small_patch16_224
    """  # noqa: D301
    from sslbench.cli import early, terminal
    from sslbench.cli.words import split_words

    terminal.show_messages()
    given = PretrainFlags(**flags)
    given.check()
    method, values = _method(*split_words(words))
    given = given.with_inputs(method)
    if given.launcher is not None:
        values = {**values, "launcher": given.launcher}
    early.refuse_mistyped([given.init], (given.data, given.eval_data, given.eval_test_data))
    early.refuse_wrong_network(given.init_format, given.stem)
    composed, launcher = _compose(method, values, given.settings())
    slurm = _checked_launcher(launcher)
    settings = _checked(composed, method)
    early.refuse_mistyped(backbone=settings.backbone, device=settings.device)
    request = _request(method, settings, composed.origins, given)
    request.check(world=slurm.processes if slurm else this_process().world)
    _refuse_wrong_files(request, given)
    if slurm is not None and not given.dry_run:
        return _submit(slurm, request.out)
    if given.dry_run:
        from sslbench.cli import launch
        from sslbench.cli.commands.pretrain.plan import print_plan

        print_plan(request, composed.origins, launcher)
        if slurm is not None:
            launch.show([_words_of_job()])
        return None
    _run(request, given)
    return None


def _method(names: Sequence[str], values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    methods = list_names("method")
    if not names:
        raise UsageError("METHOD is missing", did_you_mean("", methods))
    if len(names) > 1:
        raise UsageError(
            f"give one method, not {' and '.join(names)}", "Settings are written as key=value, flags with --."
        )
    return names[0], values


def _compose(method: str, values: Mapping[str, Any], flags: Mapping[str, Any]) -> tuple["Composed", dict[str, Any]]:
    """Return the composed settings without the launcher's, and the launcher's."""
    from sslbench.library.recipes import Composed, compose_pretraining

    composed = compose_pretraining(method, values, flags)
    rest = {key: value for key, value in composed.values.items() if key != "launcher"}
    return Composed(rest, composed.origins), composed.values["launcher"]


def _checked(composed: "Composed", method: str) -> "PretrainSettings":
    from sslbench.pretraining import PretrainSettings

    return build(PretrainSettings, composed.values, f"pretrain {method}")


def _request(
    method: str, settings: "PretrainSettings", origins: Mapping[str, str], given: PretrainFlags
) -> "PretrainRequest":
    from sslbench.pretraining import PretrainRequest

    return PretrainRequest(
        settings=settings,
        data=given.data or options.default_data(),
        out=given.folder(method, settings.backbone),
        resume=given.resume_from or ("auto" if given.resume else "never"),
        chosen=tuple(key for key, origin in origins.items() if origin in ("key=value", "flag")),
        init=given.init,
        init_format=given.init_format,
        stem=given.stem,
        eval_data=given.eval_data,
        eval_test_data=given.eval_test_data,
        image_column=given.image_column,
        label_column=given.label_column,
        limit=given.limit,
    )


def _run(request: "PretrainRequest", given: PretrainFlags) -> None:
    from sslbench.cli.commands.pretrain.progress import training_progress
    from sslbench.evaluation.pretraining import knn_evaluator
    from sslbench.pretraining import pretrain

    typed = str(click.get_current_context().find_root().obj)
    own = [_own_observer(spec) for spec in given.observer]
    evaluator = knn_evaluator(request)
    if this_process().rank != 0:
        pretrain(request, command=typed, evaluator=evaluator)
        return
    observers = [*_observers(request, given), *own]
    progress = training_progress()
    try:
        outcome = pretrain(request, command=typed, observers=[*observers, progress], evaluator=evaluator)
    finally:
        progress.close()
    echo(outcome.weights)
    echo(_next(request, outcome.weights))


def _observers(request: "PretrainRequest", given: PretrainFlags) -> list["Observer"]:
    from sslbench.train.observers.always import always

    augment = request.settings.augment
    observers: list[Observer] = [*always(request.out, mean=augment.mean, std=augment.std)]
    if given.tensorboard:
        from sslbench.train.observers.tensorboard import TensorBoard

        observers.append(TensorBoard(request.out / "tensorboard", histograms=given.histograms))
    if given.wandb:
        from sslbench.train.observers.wandb import Wandb

        observers.append(Wandb(given.wandb, settings=dataclasses.asdict(request.settings)))
    if given.profile:
        from sslbench.train.observers.profile import Profile

        observers.append(Profile(given.profile, request.out / "profile.json.gz"))
    return observers


def _own_observer(spec: str) -> "Observer":
    """Return an observer of the user's own class."""
    from sslbench.train.observers import Observer

    kind = find_object(spec)
    if not (isinstance(kind, type) and Observer in kind.__mro__):
        raise UsageError(
            f"--observer {spec} is no subclass of sslbench.train.observers.Observer",
            "Write class Mine(Observer): with the methods started, line, evaluated, finished that it needs.",
        )
    try:
        return cast("Observer", kind())
    except TypeError as error:
        raise UsageError(f"--observer {spec} cannot be built without arguments: {error}") from error


def _next(request: "PretrainRequest", weights: Path) -> str:
    """Return the command that evaluates the weights."""
    data = request.eval_data or request.data
    test = ["--test-data", request.eval_test_data] if request.eval_test_data else []
    return shlex.join(["sslbench", "eval", "knn", "linear", "--weights", str(weights), "--data", data, *test])


def _checked_launcher(launcher: Mapping[str, Any]) -> "Slurm | None":
    """Return the settings of the SLURM job that was asked for; None to run here."""
    if launcher.get("name") == "slurm":
        from sslbench.cli.slurm import Slurm

        settings = build(Slurm, launcher, "launcher")
        settings.check()
        return settings
    if rest := sorted(set(launcher) - {"name"}):
        raise UsageError(f"launcher.{rest[0]} has no effect without launcher=slurm", "Add --launcher slurm.")
    return None


def _refuse_wrong_files(request: "PretrainRequest", given: PretrainFlags) -> None:
    """Refuse an unwritable folder, a missing checkpoint or module of observers, and an --init without weights."""
    from sslbench.cli import early
    from sslbench.runtime.folders import refuse_unwritable

    refuse_unwritable(request.out)
    if given.resume_from is not None and not Path(given.resume_from).exists():
        from sslbench.train.checkpoints import no_checkpoint

        raise no_checkpoint(given.resume_from)
    for observer in given.observer:
        refuse_missing_module(observer)
    early.refuse_other_files([given.init])


def _submit(settings: "Slurm", out: Path) -> int | None:
    """Submit the same command as a job that trains in place."""
    from sslbench.cli import launch

    return launch.exit_code(launch.submit([_words_of_job()], settings, out))


def _words_of_job() -> list[str]:
    """Return the arguments of this command without the launcher and --dry-run."""
    from sslbench.cli import launch

    typed = shlex.split(str(click.get_current_context().find_root().obj))[1:]
    return [*(word for word in launch.without_launcher(typed) if word != "--dry-run"), "--launcher", "local"]
