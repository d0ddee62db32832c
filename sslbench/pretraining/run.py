"""Pretraining run: resume or start, train, evaluate at intervals, export; and the files of its folder."""

import contextlib
import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from sslbench.arithmetic import arithmetic
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.classifier import ClassifierInfo, classifier_metadata
from sslbench.data.loading.pretraining import RawBatch
from sslbench.data.source import Source
from sslbench.distributed.collectives import (
    barrier,
    from_first,
    gather_objects,
    on_all,
    process_group,
    rank,
    world_size,
)
from sslbench.distributed.parallel import broadcast_buffers, is_sharded, module_state
from sslbench.distributed.sharded import AVAILABLE, BackgroundWriter
from sslbench.errors import DataError, SslbenchError, UsageError
from sslbench.library.recipes import RUN_INPUTS
from sslbench.paths import new_file
from sslbench.pretraining.networks import make_state
from sslbench.pretraining.preparation import PreparedPretraining, columns_of, prepare
from sslbench.pretraining.settings import FREE, ROUNDING, PretrainRequest, differences, plain, refuse_missing_checkpoint
from sslbench.runtime.device import choose_device
from sslbench.runtime.folders import check_writable
from sslbench.runtime.seeds import preserved_random_states
from sslbench.runtime.signals import StoppedError, stop_signals
from sslbench.targets.multilabel import MultiLabel
from sslbench.text import without_secrets
from sslbench.train import checkpoints
from sslbench.train.checkpoints import continue_from, newest_whole
from sslbench.train.lock import exclusive
from sslbench.train.loop import run_first_pass, train
from sslbench.train.meter import LogRecord
from sslbench.train.method import Batch, Loss, Step, find_method
from sslbench.train.observers import Observer, RunInfo
from sslbench.train.observers.text_log import TextLog
from sslbench.train.online_head import OnlineHead
from sslbench.train.state import from_checkpoint, to_checkpoint, to_shards
from sslbench.train.views import RunOnViews
from sslbench.weights.heads import METADATA as HEADS
from sslbench.weights.heads import head_tensors, layer_kinds
from sslbench.weights.reading.folders import newest_checkpoint
from sslbench.weights.save import save


class Evaluator(Protocol):
    """Evaluation of the backbone at intervals during a run; see `sslbench.evaluation.pretraining.knn_evaluator`."""

    def check(self, head_classes: Sequence[str] | None) -> None:
        """Open and check the evaluation data before hours of training.

        `head_classes`: classes that the online head knows; None without a head.
        """

    def scores(
        self, backbone: Backbone, tensors: Mapping[str, Tensor], out: Path, *, head: OnlineHead | None, command: str
    ) -> dict[str, float]:
        """Evaluate weights on all processes, and return the scores by name; {} on processes other than the first."""


log = logging.getLogger("sslbench")


@dataclasses.dataclass(frozen=True)
class PretrainingOutcome:
    """Result of a run.

    Attributes:
        weights: file of the exported backbone.
        steps: updates of the whole run.
        resumed_from: updates done by an earlier run; None for a new run.
        last: last log record; None if no update was left to do.
        evaluations: scores of every evaluation in this run, with 'step' and 'epoch'.
    """

    weights: Path
    steps: int
    resumed_from: int | None
    last: LogRecord | None
    evaluations: tuple[dict[str, float | int], ...]


def pretrain(
    request: PretrainRequest, *, command: str, observers: Sequence[Observer] = (), evaluator: Evaluator | None = None
) -> PretrainingOutcome:
    """Pretrain a backbone, and write weights.torch, checkpoints and records to the folder `request.out`.

    Every process of a run calls this. After an interruption, the same call continues from the last checkpoint. Global
    random states are restored at the end.

    Args:
        request: the run.
        command: command line for the records.
        observers: observers, called on the first process.
        evaluator: evaluation every `eval_every` epochs; None for no evaluation.

    Raises:
        SslbenchError: settings, data or weights are invalid, or files cannot be written.
        NotFiniteError: the loss is NaN or infinite.
        StoppedError: SIGTERM, SIGUSR1 or SIGINT was received; everything is saved.
    """
    if request.eval_data is not None and evaluator is None:
        raise ValueError("request.eval_data needs an evaluator, such as knn_evaluator(request)")
    try:
        text = TextLog(request.out / "log.txt", command)
        with text, preserved_random_states(), process_group(choose_device(request.settings.device)):
            prepared = prepare(request)
            if evaluator is not None:
                evaluator.check(prepared.setup.class_names if request.settings.eval_linear else None)
            settings = prepared.request.settings
            fast = arithmetic(prepared.device, tf32=settings.tf32, benchmark=settings.cudnn_benchmark)
            with fast:
                run = _PretrainingRun(prepared, command, [text, *observers], evaluator)
                refuse_different(run.identity)
                check_resume(request)
                on_all(lambda: check_writable(request.out))
                # Two runs in one folder would remove each other's checkpoints.
                with exclusive(run.checkpoints):
                    return run.train()
    except RuntimeError as error:
        if "DataLoader worker (pid" not in str(error):
            raise
        # torch reports the loss of a worker at any moment, not only while a batch is waited for.
        raise DataError(
            f"a process that decodes and augments images was killed ({error})",
            "Memory may be too small: try fewer --workers. The same command continues.",
        ) from error


class _PretrainingRun(RunOnViews):
    """Run in progress."""

    def __init__(
        self, prepared: PreparedPretraining, command: str, observers: Sequence[Observer], evaluator: Evaluator | None
    ) -> None:
        self.evaluator = evaluator
        self.prepared, self.command = prepared, command
        super().__init__(prepared.plan, prepared.source.ids, prepared.request.out)
        self.request, self.settings = prepared.request, prepared.request.settings
        self.observers = observers if rank() == 0 else ()
        self.identity = identity(self.request, prepared.source, prepared.init_sha256, prepared.code())
        self.checkpoints = self.request.out / "checkpoints"
        self.writer: BackgroundWriter | None = None
        self.last: LogRecord | None = None
        self.step: Step  # of the last forward pass that observers saw
        self.watched = False
        self.evaluations: list[dict[str, float | int]] = []

    def train(self) -> PretrainingOutcome:
        """Continue or start, train and export."""
        prepared, out = self.prepared, self.request.out
        found = checkpoint_to_resume(self.request, self.identity)
        if rank() == 0:
            # Under the lock: what is unfinished here belongs to no run that goes on.
            checkpoints.remove_leftovers(out)
            write_config(self.request, self.command, prepared.changes)
        self.state = make_state(prepared.method, self.settings, prepared.device, prepared.plan.precision)
        if self.settings.eval_linear:  # a linear head beside the network that is exported
            setup, view = prepared.setup, self.settings.augment.first_whole_view
            width, classes = setup.feature_dim, setup.class_names
            self.state.online_head = OnlineHead(self._exported()[1], width, classes, prepared.device, view)
        if is_sharded(self.state.method) and AVAILABLE:
            self.writer = BackgroundWriter()
        elif is_sharded(self.state.method):
            log.warning(f"torch {torch.__version__} writes no sharded checkpoints: the first process collects each one")
        if found is not None:
            path, content = found
            from_checkpoint(self.state, content, path)
            continue_from(self.checkpoints, path, self.state.step)
        start = self.state.step
        info = RunInfo(
            out, self.state.method, prepared.plan.steps, prepared.plan.per_epoch, start, self.settings.batch_size
        )
        for observer in self.observers:
            observer.started(info)
        if found is None:
            self._evaluate_at(0)
            if prepared.method.first_pass:
                log.info("one pass over the data before the first update")
                with contextlib.closing(prepared.data.batches(0, prepared.plan.per_epoch)) as stream:
                    run_first_pass(self.state, prepared.plan, stream, self)
        # Always closed: workers that outlive the loop would delay the end of the process.
        batches = contextlib.closing(prepared.data.batches(start, prepared.plan.steps))
        with stop_signals() as signal_number, batches as stream, self._watched():
            try:
                train(self.state, prepared.plan, stream, self, signal_number)
            except StoppedError:
                self._wait_for_shards()
                barrier()  # as in `stop_together`, before which nothing is written in the background
                raise
            self._wait_for_shards()
            weights = self._export()
            for observer in self.observers:
                observer.finished()
        resumed = start if found is not None else None
        return PretrainingOutcome(weights, prepared.plan.steps, resumed, self.last, tuple(self.evaluations))

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Let observers look at forward passes and losses, by hooks of the method, and at what follows."""
        if not self.observers:
            yield
            return
        last, per_epoch = -1, self.plan.per_epoch

        def forward(_: nn.Module, inputs: tuple[Batch, Step]) -> None:
            nonlocal last
            batch, self.step = inputs
            for observer in self.observers:
                if self.step.index != last and (last < 0 or self.step.index % per_epoch == 0):
                    observer.epoch_started(self.step)
                observer.forward(batch, self.step)
            last, self.watched = self.step.index, True

        def loss(_: nn.Module, inputs: tuple[Batch, Step], result: Loss) -> None:
            detached = dataclasses.replace(result, value=result.value.detach())
            for observer in self.observers:
                observer.loss(detached, inputs[1])

        hooks = self.state.method.register_forward_pre_hook(forward), self.state.method.register_forward_hook(loss)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def passes(self, raw: RawBatch) -> Iterator[Batch]:
        """Yield the parts of a batch; observers look after the backward pass of each."""
        for batch in super().passes(raw):
            yield batch
            for observer in self.observers if self.watched else ():
                observer.backward(self.step)

    def updated(self, step: Step) -> None:
        """Let observers look at an update."""
        for observer in self.observers:
            observer.updated(step)
            if self.state.step % self.plan.per_epoch == 0 or self.state.step == self.plan.steps:
                observer.epoch_ended(step)

    def log(self, line: LogRecord) -> None:
        """Give a log record to the observers."""
        self.last = line
        for observer in self.observers:
            observer.line(line)

    def save(self) -> None:
        """Write a checkpoint that is a weights file too."""
        if self.writer is None:
            content = to_checkpoint(self.state)
            if rank() == 0:
                content |= {**self._exportable(content["method"]), "settings": self.identity}
                checkpoints.write(self.checkpoints, self.state.step, content, keep=self.settings.keep)
            return
        # The state is copied, and written in the background: each process its shards.
        self._wait_for_shards()
        tensors, content = to_shards(self.state)
        names = {name: f"method.{name}" for name in self.state.method.state_dict()}
        exportable = self._exportable(names)
        parts = {key: exportable.pop(key) for key in ("state_dict", "heads") if key in exportable}
        content |= {**exportable, "parts": parts, "settings": self.identity, "step": self.state.step}
        keep = self.settings.keep
        self.writer.write(
            checkpoints.unfinished(self.checkpoints, self.state.step),
            tensors,
            lambda part, files: checkpoints.finish_sharded(part, files, content, keep=keep),
        )

    def _wait_for_shards(self) -> None:
        """Wait for the checkpoint that is written in the background."""
        if self.writer is None:
            return
        try:
            self.writer.wait()
        except SslbenchError as error:
            shown = checkpoints.not_written(self.checkpoints, error.message)
            shown.printed_by_rank_0 = error.printed_by_rank_0
            raise shown from error

    def evaluate(self, step: Step) -> None:
        """Evaluate the network after an update."""
        self._evaluate_at(step.index + 1)

    def _evaluate_at(self, step: int) -> None:
        if self.evaluator is None:
            return
        if world_size() > 1:
            broadcast_buffers(self.state.method)  # every process must encode with the same statistics
        tensors = module_state(self._exported()[1])
        out = self.request.out / "evaluations"
        head = self.state.online_head
        scores = self.evaluator.scores(self.prepared.backbone, tensors, out, head=head, command=self.command)
        if rank() != 0:
            return
        record: dict[str, float | int] = {"step": step, "epoch": step / self.prepared.plan.per_epoch}
        record |= scores
        self.evaluations.append(record)
        for observer in self.observers:
            observer.evaluated(record)

    def _exportable(self, method: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries that make a checkpoint a weights file too, made of the values of the method's state."""
        name, network = self._exported()
        heads, kinds = self._heads(name, lambda head: _state_of(head, self.state.method, method))
        return {
            "backbone": self.prepared.backbone.name,
            "state_dict": _state_of(network, self.state.method, method),
            "metadata": self._metadata(f"{name}, before the end of training", kinds),
            **({"heads": heads} if heads else {}),
        }

    def _heads(
        self, exported: str, state: Callable[[nn.Module], Mapping[str, Tensor]]
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return tensors and layers of the heads on an exported backbone; every process calls this."""
        heads = self.prepared.method.heads(exported)
        tensors = [head_tensors(name, head, state(head)) for name, head in heads.items()]
        merged = {name: tensor for each in tensors for name, tensor in each.items()}
        return merged, {name: " ".join(layer_kinds(head)) for name, head in heads.items()}

    def _exported(self) -> tuple[str, nn.Module]:
        """Return name and module of the network that is exported."""
        networks = self.prepared.method.exports()
        name = next(iter(networks)) if self.settings.export == "auto" else self.settings.export
        return name, networks[name]

    def _export(self) -> Path:
        """Write weights.torch and, if there is a moving average, weights_ema.torch; return the first."""
        name, network = self._exported()
        # By all processes: with fsdp each holds a part of every tensor.
        tensors, target = module_state(network, everywhere=False), self.request.out / "weights.torch"
        average = module_state(self.state.average, everywhere=False) if self.state.average is not None else None
        heads, kinds = self._heads(name, module_state)
        if rank() == 0:
            backbone, metadata = self.prepared.backbone.name, self._metadata(name, kinds)
            save(target, tensors, backbone=backbone, metadata=metadata, heads=heads, overwrite=True)
            if average is not None:
                metadata = self._metadata(f"average of {self.settings.ema}", {})
                of_average = target.with_name("weights_ema.torch")
                save(of_average, average, backbone=backbone, metadata=metadata, heads={}, overwrite=True)
        # The outcome of every process names this file.
        barrier()
        return target

    def _metadata(self, network: str, heads: Mapping[str, str]) -> dict[str, Any]:
        metadata: dict[str, Any] = {
            "method": self.settings.method["name"],
            "network": network,
            "updates": self.state.step,
            "epochs": self.state.step / self.prepared.plan.per_epoch,
            "data": without_secrets(self.request.data),
            "images": len(self.prepared.source),
            "init": without_secrets(self.request.init),
            "preprocessing": json.dumps(self.prepared.backbone.preprocessing.record()),
            "settings": plain(self.settings),
            "command": without_secrets(self.command),
        }
        if heads:
            metadata[HEADS] = dict(heads)
        if heads.get("head") == "linear" and self.prepared.method.has_classifier:
            labels = self.prepared.source.target
            kind: Literal["single", "multi"] = "multi" if isinstance(labels, MultiLabel) else "single"
            metadata["classifier"] = classifier_metadata(ClassifierInfo("output", "none", kind, labels.classes))
        if self.prepared.changes:
            metadata["changes"] = dict(self.prepared.changes)
        return metadata


def _state_of(module: nn.Module, method: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a method's state dict that belongs to one of its modules, under the module's own names."""
    path = next(path for path, each in method.named_modules() if each is module)
    return {key.removeprefix(f"{path}."): value for key, value in state.items() if key.startswith(f"{path}.")}


def identity(request: PretrainRequest, source: Source, init_sha256: str | None, code: str) -> dict[str, Any]:
    """Return the identity of a run, which its checkpoints contain: settings, data, initial weights and the user's code.

    `init_sha256`: hash of the initial weights; None for random ones, which follow from the settings.
    """
    # Images are identified by names and labels, since reading their content would take hours before the first update.
    labels = hashlib.sha256("\n".join((source.target.name, *source.target.classes)).encode())
    labels.update(np.ascontiguousarray(source.target.values).tobytes())
    for name in columns_of(request.settings):
        labels.update("\n".join((name, *source.attributes[name])).encode())
    settings = plain(request.settings)
    return {
        **settings,
        "method": {**settings["method"], **_digests_of_files(settings["method"])},
        "data": without_secrets(request.data),
        "limit": request.limit,
        "images": len(source),
        "image_names": hashlib.sha256("\n".join(source.ids).encode()).hexdigest()[:16],
        "classes": len(source.target.classes),
        "labels": labels.hexdigest()[:16],
        "init": init_sha256,
        "code": code,
        **({"weights": dict(source.weights)} if source.weights else {}),
    }


def _digests_of_files(method: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of the files that the settings of a method name, by the name of the setting."""
    fields = dataclasses.fields(find_method(method["name"]).config_type)
    places = [field.name for field in fields if field.metadata.get("by_content") and method.get(field.name)]
    # Words such as 'random', and the folders of large models, are known by their names.
    files = {name: Path(method[name]).expanduser() for name in places}
    return {name: _digest(file) if file.is_file() else f"named {method[name]}" for name, file in files.items()}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def refuse_different(own: Mapping[str, Any]) -> None:
    """Compare the identity of the run on all processes; every process calls this."""
    first, *others = gather_objects(dict(own))
    for number, other in enumerate(others, start=1):
        if changed := differences(first, other, free=()):
            raise UsageError(
                f"process {number} has other settings, data or weights than the first process: {_listed(changed)}",
                "All processes need the same command, data and weights.",
            )


def check_resume(request: PretrainRequest) -> None:
    """Check --resume-from and --no-resume before anything is written; every process calls this."""

    def check() -> None:
        used = newest_checkpoint(request.out / "checkpoints") or (request.out / "weights.torch").exists()
        if request.resume == "never" and used:
            raise UsageError(f"{request.out} already contains a run", "Give another --out, or leave out --no-resume.")
        if request.resume not in ("auto", "never"):
            refuse_missing_checkpoint(request.resume)

    from_first(check)


def checkpoint_to_resume(request: PretrainRequest, now: Mapping[str, Any]) -> tuple[Path, dict[str, Any]] | None:
    """Return the checkpoint to continue from and its content, or None for a new run; every process calls this."""
    folder = request.out / "checkpoints"
    if request.resume == "never":
        return None
    found = newest_whole(folder, given=None if request.resume == "auto" else Path(request.resume))
    if found is not None:
        _same_run(*found, now, named=request.resume != "auto")
    return found


def _same_run(path: Path, content: Mapping[str, Any], now: Mapping[str, Any], *, named: bool) -> None:
    """Refuse a checkpoint of another run; warn if the run continues with other rounding, or other code."""
    # A checkpoint that the user names continues with changed code: that is how a run goes on after a mistake in it.
    before = content["settings"]
    name, other = now["method"].get("name"), before["method"].get("name")
    if name != other:
        raise UsageError(f"{path} is a checkpoint of the method {other}, this run is {name}", "Give another --out.")
    if "image_names" not in before:
        raise UsageError(
            f"{path} was written by an earlier version of sslbench, which did not record what it was trained on",
            "Finish that run with the earlier version, or start a new run in another --out.",
        )
    before = {"code": now["code"], **before}  # earlier versions did not record it
    if before["code"] != now["code"]:
        if not named:
            raise UsageError(
                f"the code of your own backbone, method or decoder has changed since {path} was written",
                f"Give another --out for a new run, or --resume-from {path} to continue with the changed code.",
            )
        log.warning("continuing with changed code of your own backbone, method or decoder")
    if changed := differences(before, now, free=(*FREE, "code")):
        raise UsageError(
            f"{path} belongs to a run with other settings, data or weights: {_listed(changed)}",
            "Give another --out for a new run, or the same settings, data and weights to continue.",
        )
    keys = [key for key in ROUNDING if key in before]  # earlier versions have fewer
    if rounded := differences({key: before[key] for key in keys}, {key: now[key] for key in keys}, free=()):
        log.warning(f"continuing with {'; '.join(rounded)}: rounding differs from here on")


def _listed(changed: Sequence[str]) -> str:
    return "; ".join(changed[:5]) + (f"; and {len(changed) - 5} more" if len(changed) > 5 else "")


def write_config(request: PretrainRequest, command: str, changes: Mapping[str, str]) -> None:
    """Write config.yaml: the data and first weights, then the effective settings; changes to the recipe as comments."""
    head = f"# {command}\n" + "".join(f"# {key}: {text}\n" for key, text in changes.items())
    inputs = {name: value for name in RUN_INPUTS if (value := without_secrets(getattr(request, name))) is not None}
    content = {"run": inputs, **plain(request.settings)}
    text = without_secrets(head) + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    with new_file(request.out / "config.yaml") as temporary:
        temporary.write_text(text, encoding="utf-8")
