"""Pretraining from the flags to the network: checked before torch is imported, then trained, printed or submitted."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from sslbench.cli import early, options, slurm
from sslbench.cli.commands.pretrain.flags import PretrainFlags
from sslbench.cli.echo import note
from sslbench.cli.flags import names_of
from sslbench.config import build
from sslbench.distributed import this_process
from sslbench.errors import UsageError
from sslbench.evaluation.request import VERSION, changed_fields
from sslbench.library.recipes import compose_pretraining, inputs_of_run
from sslbench.names import refuse_missing_module
from sslbench.pretraining.settings import PretrainRequest, PretrainSettings, refuse_missing_checkpoint
from sslbench.runtime.folders import refuse_unwritable
from sslbench.text import plain_value


def run_written(content: Mapping[str, Any], where: str, *, dry_run: bool) -> None:
    """Train by a written request: version, method, settings (key -> value), and flags by their Python names."""
    values = dict(content)
    version, method, settings = values.pop("version", None), str(values.pop("method")), values.pop("settings", {})
    if version != VERSION:
        raise UsageError(f"{where}: version should be {VERSION}, not {version}", f"Write: version: {VERSION}")
    if not isinstance(settings, dict):
        raise UsageError(f"{where}: settings should be a mapping of keys to values")
    typed = {name: values.pop(name) for name in names_of(PretrainSettings) if name in values}
    pretrain(method, settings, build(PretrainFlags, {**values, "typed": typed, "dry_run": dry_run}, where), None)


def pretrain(method: str, values: Mapping[str, Any], given: PretrainFlags, launcher: slurm.Slurm | None) -> int | None:
    """Train, print the plan, or submit the training as a job; return the exit code of a job that was waited for."""
    given.check()
    # As the user gave it: the job composes the recipe itself, and a later change of it is a visible one.
    flags = changed_fields(given)
    written = {"version": VERSION, "method": method, "settings": dict(values), **flags.pop("typed", {}), **flags}
    given = _with_inputs(given, method)
    early.refuse_mistyped([given.init], (given.data, given.eval_data, given.eval_test_data))
    early.refuse_wrong_network(given.init_format, given.stem)
    composed = compose_pretraining(method, values, given.typed)
    settings = build(PretrainSettings, composed.values, f"pretrain {method}")
    early.refuse_mistyped(backbone=settings.backbone, device=settings.device)
    request = _request(method, settings, composed.origins, given)
    refuse_unwritable(request.out)
    if given.resume_from is not None:
        refuse_missing_checkpoint(given.resume_from)
    for observer in given.observer:
        refuse_missing_module(observer)
    early.refuse_other_files([given.init])
    # Behind names and files, since it imports torch. The batch has to divide into the processes of the job, not of
    # this command.
    request.check(world=launcher.processes if launcher else this_process().world)
    if launcher is None or given.dry_run:
        # It needs torch, whose import takes seconds: mistakes in the command are told before.
        from sslbench.cli.commands.pretrain import train

        if given.dry_run:
            train.print_plan(request, composed.origins, launcher)
        else:
            train.run(request, given)
    if launcher is not None:
        jobs = [[plain_value({key: value for key, value in written.items() if key != "dry_run"})]]
        if given.dry_run:
            slurm.show(jobs)
            return None
        return slurm.exit_code(slurm.submit(jobs, (), launcher, request.out))
    return None


def _request(
    method: str, settings: PretrainSettings, origins: Mapping[str, str], given: PretrainFlags
) -> PretrainRequest:
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


def _with_inputs(given: PretrainFlags, method: str) -> PretrainFlags:
    """Return the flags with the data and first weights of the run whose config.yaml is `method`, unless given."""
    inputs = inputs_of_run(method)
    for group in (("data", "image_column", "label_column"), ("init", "init_format", "stem"), ("limit",)):
        if any(getattr(given, name) is not None for name in group):
            inputs = {name: value for name, value in inputs.items() if name not in group}
    for name, value in inputs.items():
        note(f"{name}: {value} (from {method})")
    return dataclasses.replace(given, **inputs)
