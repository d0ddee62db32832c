"""Preparation of a run: data, networks, and all checks that need no decoded image."""

import dataclasses
import functools
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from sslbench import user_code
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer, resolve_layers
from sslbench.backbones.sizes import accept_sizes, feature_dim, layer_dim
from sslbench.config import build
from sslbench.data.clips import sampling_of
from sslbench.data.decode.handlers import Reading, resolve
from sslbench.data.loading.pretraining import TrainingData
from sslbench.data.open import open_data, refuse_targets_of_pixels
from sslbench.data.source import Source
from sslbench.data.splits import limit, part_of_order
from sslbench.data.views import Augment
from sslbench.data.views.ops import own_functions
from sslbench.data.wording import counted
from sslbench.distributed import this_process
from sslbench.distributed.parallel import structure_from_first
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean, find_object
from sslbench.preprocessing import LIGHTNESS, Preprocessing
from sslbench.pretraining.networks import (
    checkpoint_activations,
    make_backbone,
    make_batch_transform,
    make_method,
    normalised,
    views_for,
    with_sync_bn,
)
from sslbench.pretraining.settings import PretrainRequest, PretrainSettings, ScheduleSettings, updates
from sslbench.runtime.device import check_precision, choose_device, choose_precision
from sslbench.runtime.resources import Precision, resolve_workers
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.train import schedules
from sslbench.train.loop import RateSchedules, TrainingPlan
from sslbench.train.method import Method, Setup, find_method
from sslbench.train.optimizers.optimizer import code_of, scaled_lr
from sslbench.train.parameter_groups import parameter_groups

T = TypeVar("T")
log = logging.getLogger("sslbench")
SHARED_MEMORY = Path("/dev/shm")


@dataclasses.dataclass(frozen=True)
class PreparedPretraining:
    """Run that is ready to start; nothing has been written yet.

    Attributes:
        request: the run, with views for the channels of the backbone.
        device: device of this process.
        source: training images.
        data: stream of batches.
        backbone: backbone to train, with the preprocessing that its views imply.
        method: method around the backbone, on the CPU; with strategy=fsdp on processes other than the first without
            values, on the meta device.
        setup: facts about the run that the method was built for.
        plan: plan of the training loop.
        init_sha256: hash of the initial weights; None for random ones.
        changes: descriptions of the changes to the recipe, by the dotted key of the setting.
    """

    request: PretrainRequest
    device: torch.device
    source: Source
    data: TrainingData
    backbone: Backbone
    method: Method[Any]
    setup: Setup
    plan: TrainingPlan
    init_sha256: str | None = None
    changes: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def code(self) -> str:
        """Return a digest of the user's own code in this run; empty if there is none."""
        name, settings = self.backbone.name, self.request.settings
        builder = [find_object(name)] if self.backbone.kind.users else []
        own = [*builder, *code_of(settings.optimizer.name), *self.method.modules(), *resolve(settings.decoder)]
        specs = [settings.schedule.lr, settings.schedule.weight_decay, settings.schedule.momentum]
        specs += [spec for part in (settings.groups or {}).values() for spec in (part.schedule or {}).values()]
        own += [function for spec in specs for function in schedules.own_functions(spec)]
        own += [find_object(settings.batch_transform)] if settings.batch_transform else []
        return user_code.sha256([*own, *own_functions(settings.augment.views)])


def prepare(request: PretrainRequest) -> PreparedPretraining:
    """Open the data, build backbone and method, and check them against each other.

    Only a few images are decoded, to find the number of channels and, unless it is three, their normalisation.

    Raises:
        SslbenchError: settings, data or weights are invalid or do not fit together.
    """
    process = this_process()
    request.check(world=process.world)
    device = choose_device(request.settings.device)
    precision = choose_precision(request.settings.precision, device)
    settings = dataclasses.replace(request.settings, precision=precision)
    request = dataclasses.replace(request, settings=settings)
    without_effect = [key for key in ("tf32", "cudnn_benchmark") if key in request.chosen]
    if without_effect and device.type != "cuda":
        verb = "has" if len(without_effect) == 1 else "have"
        raise UsageError(
            f"{' and '.join(without_effect)} {verb} no effect on the device {device.type}",
            "Leave it out, or use a GPU.",
        )
    per_process = settings.batch_size // process.world
    workers = resolve_workers(settings.workers, device)
    source, reading = _open(request), Reading(settings.decoder, settings.max_pixels, settings.start_method)
    build = functools.partial(_build, request, precision, device)
    built = _shared(settings, build)
    backbone = built.backbone
    space = _space(request)
    channels = 3 if space == "lightness" else backbone.preprocessing.channels
    augment, changes = views_for(request, backbone, source, reading, channels)
    data = TrainingData(
        source,
        augment,
        batch_size=per_process,
        rank=process.rank,
        world=process.world,
        seed=settings.seed,
        workers=workers,
        prefetch=settings.prefetch,
        reading=reading,
        sampler=settings.sampler,
        shard_window=settings.shard_window,
        channels=channels,
        colours=settings.colours == "workers",
    )
    _state_memory(data, workers)
    plan = _plan(settings, precision, data.steps_per_epoch)
    if plan.average_note:
        log.warning(plan.average_note)
    origins: dict[str, str] = {}
    if space == "RGB":
        augment, origins = normalised(augment, backbone.preprocessing, source, reading, seed=settings.seed)
    setup = _setup(request, built, source, augment, plan, channels, process.world)
    if settings.eval_linear:
        _check_online_head(request, setup, space)

    def with_method() -> tuple[Backbone, Method[Any]]:
        # A backbone without values, which a process may have, is built first.
        without_values = any(parameter.is_meta for parameter in built.backbone.module.parameters())
        backbone = (build() if without_values else built).backbone
        return backbone, make_method(backbone.module, settings.method, setup, seed=settings.seed)

    backbone, method = _shared(settings, with_method)
    parameter_groups(method, settings.optimizer, parts=settings.groups)  # refuses names before anything is written
    if settings.activation_checkpointing:
        checkpoint_activations(backbone)
    method = with_sync_bn(method, device, settings, world=process.world)
    choices = ["auto", *method.exports()]
    if settings.export not in choices:
        raise UsageError(
            f"export={settings.export}: this method has no such network", f"Choose {' or '.join(choices)}."
        )
    transform = make_batch_transform(settings.batch_transform, setup) if settings.batch_transform else None
    settings = dataclasses.replace(settings, augment=augment)
    return PreparedPretraining(
        dataclasses.replace(request, settings=settings),
        device,
        source,
        data,
        dataclasses.replace(backbone, preprocessing=evaluation_transform(settings, space)),
        method,
        setup,
        dataclasses.replace(
            plan,
            normalisation=Preprocessing(mean=augment.mean, std=augment.std, origin="augment"),
            colours=tuple(view.order for view in augment.expanded()) if settings.colours == "device" else (),
            transform=transform,
        ),
        built.init_sha256,
        {**changes, **origins},
    )


def _setup(
    request: PretrainRequest,
    built: "_BuiltBackbone",
    source: Source,
    augment: Augment,
    plan: TrainingPlan,
    channels: int,
    world: int,
) -> Setup:
    """Return what a method is told of a run."""
    settings, target = request.settings, source.target
    classes = target.classes if isinstance(target, Classes) else ()
    return Setup(
        feature_dim=built.feature_dim,
        sizes=settings.augment.sizes,
        batch_size=settings.batch_size // world // settings.accumulate,
        images_per_update=settings.batch_size,
        world=world,
        samples=len(source),
        classes=len(classes),
        steps=plan.steps,
        steps_per_epoch=plan.per_epoch,
        backbone=built.backbone.name,
        channels=channels,
        loaded=request.init is not None,
        class_names=classes,
        normalisation=Preprocessing(mean=augment.mean, std=augment.std),
        targets=torch.from_numpy(np.asarray(target.values)) if isinstance(target, MultiLabel) else None,
        seed=settings.seed,
        columns={name: source.attributes[name] for name in columns_of(settings)},
        layers=built.layers,
    )


@dataclasses.dataclass(frozen=True)
class _BuiltBackbone:
    """Backbone that takes the views of a run, length of its vectors, and hash of initial weights from a file.

    `layers`: those that the method asks for, by their names in its settings, each with the length of its vectors.
    """

    backbone: Backbone
    feature_dim: int
    init_sha256: str | None
    layers: Mapping[str, tuple[Layer, int]]


def _shared(settings: PretrainSettings, build: Callable[[], T]) -> T:
    """Return what a function builds; with strategy=fsdp only the first process calls it, see `structure_from_first`."""
    return structure_from_first(build) if settings.strategy == "fsdp" else build()


def _build(request: PretrainRequest, precision: Precision, device: torch.device) -> _BuiltBackbone:
    """Return the backbone, after forward passes on images of the sizes of the views."""
    backbone, sizes = make_backbone(request), request.settings.augment.sizes
    init_sha256 = backbone.weights_sha256 if request.init is not None else None  # a method may change tensors
    channels = backbone.preprocessing.channels
    accept_sizes(backbone.module, sizes, name=backbone.name, channels=channels)
    check_precision(precision, device, backbone.module, min(sizes), channels=channels)
    method = find_method(request.settings.method["name"])
    layers = {}
    for name in method.layers(method.config_of(request.settings.method)):
        (layer,) = resolve_layers(backbone, (name,))
        layers[name] = layer, layer_dim(backbone.module, layer, max(sizes), channels)
    return _BuiltBackbone(backbone, feature_dim(backbone.module, max(sizes), channels), init_sha256, layers)


def columns_of(settings: PretrainSettings) -> tuple[str, ...]:
    """Return the columns of the data that the method of a run asks for."""
    method = find_method(settings.method["name"])
    return method.columns(method.config_of(settings.method))


def _state_memory(data: TrainingData, workers: int) -> None:
    """Log the shared memory that workers need for their batches."""
    if not workers or not SHARED_MEMORY.is_dir():
        return
    needed, free = data.bytes_ahead, shutil.disk_usage(SHARED_MEMORY).free
    # The processes of a machine share its memory.
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if this_process().rank == 0:
        log.info(f"at most {needed / 2**20:,.1f} MiB of batches ahead in shared memory ({counted(workers, 'worker')})")
    if needed * local > free:
        raise UsageError(
            f"workers need {needed * local / 2**20:,.0f} MiB of shared memory for batches, and {SHARED_MEMORY} has "
            f"{free / 2**20:,.0f} MiB",
            "Lower workers, prefetch or batch_size; in a container, raise docker run --shm-size.",
        )


def evaluation_transform(settings: PretrainSettings, space: Literal["RGB", "lightness"] = "RGB") -> Preprocessing:
    """Return the preprocessing for evaluations: size and normalisation of the largest whole views.

    With 'lightness' the normalisation is that of colorization networks.

    From 96 pixels on, the shorter side is resized to 256/224 of the crop, as for ImageNet; smaller images are resized
    without a crop.
    """
    size = settings.augment.whole_size
    return Preprocessing(
        resize=round(size * 256 / 224) if size >= 96 else (size, size),
        crop=(size, size),
        mean=LIGHTNESS.mean if space == "lightness" else settings.augment.mean,
        std=LIGHTNESS.std if space == "lightness" else settings.augment.std,
        space=space,
        origin=f"pretrained on views of {size} x {size} pixels",
    )


def _space(request: PretrainRequest) -> Literal["RGB", "lightness"]:
    """Return the input space of the method's backbone; refuse a normalisation that has no effect there."""
    name = request.settings.method.get("name")
    space = find_method(name).space if isinstance(name, str) else "RGB"
    for key in ("augment.mean", "augment.std"):
        if space == "lightness" and key in request.chosen:
            raise UsageError(
                f"{key} has no effect on {name}, whose backbone takes L of CIE Lab minus 50", "Leave it out."
            )
    return space


def _open(request: PretrainRequest) -> Source:
    refuse_targets_of_pixels(request.data)
    parts = open_data(
        request.data,
        image_column=request.image_column,
        label_column=request.label_column,
        attribute_columns=columns_of(request.settings),
        together=True,
        decoder=request.settings.decoder,
    )
    name = "train" if "train" in parts else "all" if "all" in parts else None
    if name is None and len(parts) > 1:
        raise UsageError(f"{request.data} has the splits {', '.join(parts)}, but none called train")
    source = parts[name] if name else next(iter(parts.values()))
    for note in source.notes:
        log.info(note)
    if not len(source):
        raise DataError(f"{source.name} has no images")
    if lacking := [column for column in columns_of(request.settings) if column not in source.attributes]:
        raise UsageError(f"{source.name} has no column '{lacking[0]}'", did_you_mean(lacking[0], source.attributes))
    if sampling_of(source.images):
        raise UsageError(f"{source.name} has videos, and pretrain takes images", "Write their frames as images first.")
    settings, n = request.settings, request.limit
    seed = settings.seed if settings.limit_seed is None else settings.limit_seed
    if n is not None and (settings.limit_skip is not None or settings.limit_balanced):
        source = part_of_order(source, n, seed, skip=settings.limit_skip or 0, balanced=settings.limit_balanced)
    elif n is not None and n < len(source):
        source = limit(source, n, seed)
    others = ", ".join(part for part in parts if parts[part] is not source and part != name)
    log.info(f"{len(source)} images of {source.name}" + (f" (not used: {others})" if others else ""))
    return source


def _plan(settings: PretrainSettings, precision: Precision, per_epoch: int) -> TrainingPlan:
    steps = max(1, round(settings.epochs * per_epoch))
    # Of the updates that are done: schedules end with the last of them.
    epochs = steps / per_epoch
    parts = {}  # the rates of entries of `groups`: the run's, where they have none of their own
    for name, part in (settings.groups or {}).items():
        where = f"groups.{name}.schedule"
        values = {**dataclasses.asdict(settings.schedule), **(part.schedule or {})}
        lr = settings.optimizer.lr if part.lr is None else part.lr
        base = scaled_lr(dataclasses.replace(settings.optimizer, lr=lr), settings.batch_size)
        rates = _rates(build(ScheduleSettings, values, where), base, epochs, where)
        decay = rates.weight_decay if part.weight_decay is None else schedules.constant(part.weight_decay)
        parts[name] = dataclasses.replace(rates, weight_decay=decay)
    return TrainingPlan(
        steps=steps,
        per_epoch=per_epoch,
        rates=_rates(settings.schedule, scaled_lr(settings.optimizer, settings.batch_size), epochs, "schedule"),
        parts=parts,
        normalisation=Preprocessing(mean=settings.augment.mean, std=settings.augment.std, origin="augment"),
        accumulate=settings.accumulate,
        clip_norm=settings.clip_norm,
        clip_each=settings.clip_each,
        precision=precision,
        average_decay=settings.ema or 0.0,
        frozen=settings.freeze or {},
        log_every=settings.log_every,
        save_every=updates(settings.save_every, per_epoch),
        evaluate_every=max(1, round(settings.eval_every * per_epoch)) if settings.eval_every > 0 else 0,
    )


def _check_online_head(request: PretrainRequest, setup: Setup, space: str) -> None:
    """Refuse an online linear head that cannot be trained or scored."""
    if setup.classes < 2:
        raise UsageError(
            f"eval_linear=true trains a classifier on the training images, and {request.data} does not have one of at "
            "least two classes for each",
            "Give labelled data, or leave it out: kNN needs labels of --eval-data only.",
        )
    if space != "RGB":
        raise UsageError(
            f"eval_linear=true gives the views of training to the backbone, and this method's reads {space}",
            "Leave it out: kNN converts the images.",
        )


def _rates(schedule: ScheduleSettings, base: float, epochs: float, where: str) -> RateSchedules:
    """Return the rates of a schedule, for a learning rate that its factors refer to."""
    factor = schedules.build_with_warmup(
        schedule.lr,
        freeze_epochs=schedule.freeze_epochs,
        warmup_epochs=schedule.warmup_epochs,
        warmup_start=schedule.warmup_start,
        where=f"{where}.lr",
        epochs=epochs,
        own=True,
    )
    weight_decay, momentum = (
        None if spec is None else schedules.build(spec, where=f"{where}.{name}", epochs=epochs, own=True)
        for name, spec in (("weight_decay", schedule.weight_decay), ("momentum", schedule.momentum))
    )
    return RateSchedules(schedules.scaled(factor, base), base, weight_decay, momentum)
