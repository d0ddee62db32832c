"""`sslbench pretrain`."""

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sslbench.cli import options
from sslbench.cli.echo import echo
from sslbench.errors import UsageError
from sslbench.names import did_you_mean, list_names

if TYPE_CHECKING:
    from sslbench.library.recipes import Composed
    from sslbench.pretraining import Observer, PretrainRequest, PretrainSettings

SETTINGS = ("backbone", "epochs", "batch_size", "device", "precision", "workers", "seed")
"""Flags that mean a key of configs/pretrain.yaml."""


class PretrainCommand(click.Command):
    """A command whose help also shows the recipe that is named on the command line, and its method's settings."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keeps the words for the help."""
        ctx.meta["words"] = list(args)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The recipes that are named, or the names of all."""
        from sslbench.cli.commands.pretrain.help import write_method

        known = list_names("method")
        named = [word for word in ctx.meta.get("words", []) if word in known]
        for name in named:
            write_method(name, formatter)
        if not named:
            with formatter.section("Methods"):
                formatter.write_text(", ".join(known))
            formatter.write_paragraph()
            formatter.write_text("Settings of a method and its recipe: sslbench pretrain simclr --help")


@click.command("pretrain", cls=PretrainCommand)
@click.argument("words", nargs=-1, metavar="METHOD [KEY=VALUE]...")
@click.option(
    "--data", help="Images, as for eval; labels are not needed. Folder, table, manifest, torchvision:NAME, ..."
)
@click.option(
    "--backbone",
    help="resnet50, a timm name, or my_module:callable; resnet50,in_chans=13 for images of 13 channels. Default: the "
    "recipe's.",
)
@click.option("--out", help="Folder of the run. Default: runs/METHOD-BACKBONE.")
@click.option("--init", help="Weights to start from, in any format. Default: random ones.")
@click.option("--format", "init_format", help="Whose key names --init has; recognised when left out.")
@click.option("--stem", help="Map the stem of --init when it is for another number of channels: average, repeat, ...")
@click.option("--eval-data", help="Labelled data for kNN every eval_every epochs.")
@click.option("--eval-test-data", help="The part to score, when it lies elsewhere.")
@click.option("--image-col", "image_column", help="Column of a table that holds the image paths.")
@click.option("--label-col", "label_column", help="Column of a table that holds the labels.")
@click.option("--limit", type=click.IntRange(1), help="At most this many images: a first look.")
@click.option("--resume/--no-resume", default=True, help="Continue what lies in --out (the default), or refuse to.")
@click.option("--resume-from", help="A checkpoint to continue from in place of the newest one in --out.")
@click.option("--epochs", type=float, help="Passes over the data.")
@click.option("--batch-size", type=int, help="Images per update, all processes together.")
@click.option("--device", help="auto, cpu, cuda, cuda:1, mps.")
@click.option("--precision", help="fp32, bf16, fp16: of the forward pass.")
@click.option("--workers", type=int, help="Processes that decode and augment; 0: none.")
@click.option("--seed", type=int, help="Of the initial weights, the order of the images, the views.")
@click.option("--tensorboard", is_flag=True, help="Write scalars for TensorBoard below --out.")
@click.option("--histograms", is_flag=True, help="With --tensorboard: parameters and gradients, every epoch.")
@click.option("--wandb", metavar="PROJECT", help="Log to this project of Weights & Biases (WANDB_MODE=offline works).")
@click.option("--profile", type=click.IntRange(1), metavar="N", help="Profile N updates: a table and a trace.")
@click.option(
    "--launcher", help="local, slurm: here, or as a job of SLURM (launcher.partition=..., launcher.nodes=...)."
)
@click.option("--dry-run", is_flag=True, help="Print what would be done, with the origin of every setting.")
def command(words: tuple[str, ...], **given: Any) -> None:
    """Train a backbone without labels, by a published recipe; it ends in weights.torch for `sslbench eval`.

    Killed anywhere, the same command continues. Without --data the digits bundled with scikit-learn are used.

    \b
    sslbench pretrain simclr --data photos/ --backbone resnet50
    sslbench pretrain moco_v2 --data photos/ --eval-data labelled/ epochs=200 method.temperature=0.1
    sslbench pretrain simclr --data small.csv augment=small optimizer.lr=0.1 schedule.warmup_epochs=5
    torchrun --nproc-per-node 8 -m sslbench pretrain dino --data photos/ --backbone timm:vit_small_patch16_224
    """  # noqa: D301
    from sslbench.cli import terminal
    from sslbench.cli.words import split_words

    terminal.show_messages()
    method, values = _method(*split_words(words))
    asked = options.given(given, SETTINGS)
    if given["launcher"] is not None:
        values = {**values, "launcher": given["launcher"]}
    composed, launcher = _compose(method, values, asked)
    if launcher.get("name") == "slurm" and not given["dry_run"]:
        _submit(launcher, method, composed, given)
        return
    settings = _checked(composed, method)
    request = _request(method, settings, composed.origins, given)
    if given["dry_run"]:
        from sslbench.cli.commands.pretrain.plan import print_plan

        print_plan(request, composed.origins, launcher)
        return
    _run(request, given)


def _method(names: Sequence[str], values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    known = list_names("method")
    if not names:
        raise UsageError("which method?", did_you_mean("", known))
    if len(names) > 1:
        raise UsageError(
            f"one method at a time, not {' and '.join(names)}", "Settings are written as key=value, flags with --."
        )
    return names[0], values


def _compose(method: str, values: Mapping[str, Any], asked: Mapping[str, Any]) -> tuple["Composed", dict[str, Any]]:
    """The settings, and those of the launcher on their own."""
    from sslbench.library.recipes import Composed, compose_pretraining

    composed = compose_pretraining(method, values, asked)
    rest = {key: value for key, value in composed.values.items() if key != "launcher"}
    return Composed(rest, composed.origins), composed.values["launcher"]


def _checked(composed: "Composed", method: str) -> "PretrainSettings":
    from sslbench.config import build
    from sslbench.pretraining import PretrainSettings

    return build(PretrainSettings, composed.values, f"pretrain {method}")


def _request(
    method: str, settings: "PretrainSettings", origins: Mapping[str, str], given: dict[str, Any]
) -> "PretrainRequest":
    from sslbench.pretraining import PretrainRequest

    if given["resume_from"] and not given["resume"]:
        raise UsageError("--resume-from and --no-resume exclude each other")
    keys = ("init", "init_format", "stem", "eval_data", "eval_test_data", "image_column", "label_column", "limit")
    return PretrainRequest(
        settings=settings,
        data=given["data"] or options.default_data(),
        out=_out(method, settings.backbone, given),
        resume=given["resume_from"] or ("auto" if given["resume"] else "never"),
        chosen=tuple(key for key, origin in origins.items() if origin in ("key=value", "flag")),
        **{key: given[key] for key in keys},
    )


def _out(method: str, backbone: Any, given: dict[str, Any]) -> Path:
    if given["out"]:
        return Path(given["out"])
    architecture = str(backbone).partition(",")[0]  # its options are in config.yaml
    return Path("runs") / re.sub(r"[^\w.-]+", "-", f"{Path(method).stem if '/' in method else method}-{architecture}")


def _run(request: "PretrainRequest", given: dict[str, Any]) -> None:
    from sslbench.cli.commands.pretrain.progress import training_progress
    from sslbench.distributed import this_process
    from sslbench.pretraining import pretrain

    typed = str(click.get_current_context().find_root().obj)
    if this_process().rank != 0:
        pretrain(request, command=typed)
        return
    observers = _observers(request, given)
    progress = training_progress()
    try:
        outcome = pretrain(request, command=typed, observers=[*observers, progress])
    finally:
        progress.close()
    echo(outcome.weights)
    echo(_next(request, outcome.weights))


def _observers(request: "PretrainRequest", given: dict[str, Any]) -> list["Observer"]:
    from sslbench.train.observers.always import always

    augment = request.settings.augment
    observers: list[Observer] = [*always(request.out, mean=augment.mean, std=augment.std)]
    if given["histograms"] and not given["tensorboard"]:
        raise UsageError("--histograms are for TensorBoard", "Add --tensorboard.")
    if given["tensorboard"]:
        from sslbench.train.observers.tensorboard import TensorBoard

        observers.append(TensorBoard(request.out / "tensorboard", histograms=given["histograms"]))
    if given["wandb"]:
        from sslbench.train.observers.wandb import Wandb

        observers.append(Wandb(given["wandb"], settings=dataclasses.asdict(request.settings)))
    if given["profile"]:
        from sslbench.train.observers.profile import Profile

        observers.append(Profile(given["profile"], request.out / "profile.json.gz"))
    return observers


def _next(request: "PretrainRequest", weights: Path) -> str:
    """The command that evaluates the weights."""
    data = request.eval_data or request.data
    test = ["--test-data", request.eval_test_data] if request.eval_test_data else []
    return shlex.join(["sslbench", "eval", "knn", "linear", "--weights", str(weights), "--data", data, *test])


def _submit(launcher: dict[str, Any], method: str, composed: "Composed", given: dict[str, Any]) -> None:
    """The same command, on the spot, as a job."""
    from sslbench.cli.commands.pretrain import slurm
    from sslbench.config import build

    settings = build(slurm.Slurm, launcher, "launcher")
    _checked(composed, method)  # a mistake should show here, and not in tomorrow's log
    out = _out(method, composed.values["backbone"], given)
    typed = shlex.split(str(click.get_current_context().find_root().obj))[1:]
    job = slurm.submit([*without_launcher(typed), "--launcher", "local"], settings, out)
    echo(f"job {job} will train in {out}; what it says is in {out / 'slurm'}/{job}_0_log.err", err=True)
    echo(job)


def without_launcher(words: Sequence[str]) -> list[str]:
    """The words of a command without what chooses or sets the launcher."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip or word == "--launcher":
            skip = not skip
        elif not re.match(r"(--launcher=|launcher[.=])", word):
            kept.append(word)
    return kept
