"""Pretraining from the flags to the network: checked before torch is imported, then trained, printed or submitted."""

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from sslbench.cli import early, options, slurm
from sslbench.cli.commands.pretrain.flags import PretrainFlags
from sslbench.cli.commands.pretrain.progress import training_progress
from sslbench.cli.echo import echo, note
from sslbench.config import build
from sslbench.distributed import this_process
from sslbench.errors import UsageError
from sslbench.evaluation.request import VERSION, changed_fields, plain
from sslbench.library.recipes import Composed, compose_pretraining, inputs_of_run
from sslbench.names import find_object, refuse_missing_module
from sslbench.pretraining import pretrain as train
from sslbench.pretraining.settings import PretrainRequest, PretrainSettings
from sslbench.runtime.folders import refuse_unwritable

if TYPE_CHECKING:
    from sslbench.pretraining import Observer


def run_written(content: Mapping[str, Any], where: str, *, dry_run: bool) -> None:
    """Train by a written request: version, method, settings (key -> value), and flags by their Python names.

    Raises:
        UsageError: an unknown key, or a value that is not possible.
    """
    values = dict(content)
    version, method, settings = values.pop("version", None), str(values.pop("method")), values.pop("settings", {})
    if version != VERSION:
        raise UsageError(f"{where}: version should be {VERSION}, not {version}", f"Write: version: {VERSION}")
    if not isinstance(settings, dict):
        raise UsageError(f"{where}: settings should be a mapping of keys to values")
    pretrain(method, settings, build(PretrainFlags, {**values, "dry_run": dry_run}, where), None)


def pretrain(method: str, values: Mapping[str, Any], given: PretrainFlags, launcher: slurm.Slurm | None) -> int | None:
    """Train, print the plan, or submit the training as a job; return the exit code of a job that was waited for."""
    given.check()
    written = {"version": VERSION, "method": method, "settings": dict(values), **changed_fields(given)}
    given = _with_inputs(given, method)
    early.refuse_mistyped([given.init], (given.data, given.eval_data, given.eval_test_data))
    early.refuse_wrong_network(given.init_format, given.stem)
    composed = compose_pretraining(method, values, given.settings())
    settings = _checked(composed, method)
    early.refuse_mistyped(backbone=settings.backbone, device=settings.device)
    request = _request(method, settings, composed.origins, given)
    request.check(world=launcher.processes if launcher else this_process().world)
    _refuse_wrong_files(request, given)
    if given.dry_run:
        from sslbench.cli.commands.pretrain.plan import print_plan

        print_plan(request, composed.origins, launcher)
    if launcher is not None:
        jobs = [[plain({key: value for key, value in written.items() if key != "dry_run"})]]
        if given.dry_run:
            slurm.show(jobs)
            return None
        return slurm.exit_code(slurm.submit(jobs, (), launcher, request.out))
    if not given.dry_run:
        _run(request, given)
    return None


def _checked(composed: "Composed", method: str) -> "PretrainSettings":
    return build(PretrainSettings, composed.values, f"pretrain {method}")


def _request(
    method: str, settings: "PretrainSettings", origins: Mapping[str, str], given: PretrainFlags
) -> "PretrainRequest":
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
    from sslbench.evaluation.pretraining import knn_evaluator

    typed = str(click.get_current_context().find_root().obj)
    own = [_own_observer(spec) for spec in given.observer]
    evaluator = knn_evaluator(request)
    if this_process().rank != 0:
        train(request, command=typed, evaluator=evaluator)
        return
    observers = [*_observers(request, given), *own]
    progress = training_progress()
    try:
        outcome = train(request, command=typed, observers=[*observers, progress], evaluator=evaluator)
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


def _refuse_wrong_files(request: "PretrainRequest", given: PretrainFlags) -> None:
    """Refuse an unwritable folder, a missing checkpoint or module of observers, and an --init without weights."""
    refuse_unwritable(request.out)
    if given.resume_from is not None and not Path(given.resume_from).exists():
        from sslbench.train.checkpoints import no_checkpoint

        raise no_checkpoint(given.resume_from)
    for observer in given.observer:
        refuse_missing_module(observer)
    early.refuse_other_files([given.init])


def _with_inputs(given: PretrainFlags, method: str) -> PretrainFlags:
    """Return the flags with the data and first weights of the run whose config.yaml is `method`, unless given."""
    inputs = inputs_of_run(method)
    for group in (("data", "image_column", "label_column"), ("init", "init_format", "stem"), ("limit",)):
        if any(getattr(given, name) is not None for name in group):
            inputs = {name: value for name, value in inputs.items() if name not in group}
    for name, value in inputs.items():
        note(f"{name}: {value} (from {method})")
    return dataclasses.replace(given, **inputs)
