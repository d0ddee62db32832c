"""Interface of pretraining methods: batch, step, loss, and the base class of all methods."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from sslbench import names
from sslbench.backbones.layers import Layer
from sslbench.config import build
from sslbench.data.loading.pretraining import rows_by_origin
from sslbench.errors import UsageError
from sslbench.preprocessing import Preprocessing

ConfigT = TypeVar("ConfigT")


@dataclasses.dataclass(frozen=True)
class Batch:
    """Batch of augmented views, normalised and on the training device.

    Attributes:
        views: one tensor per view, float32 (B, C, h_v, w_v), channels-last; large views come before small ones.
        labels: int64 (B,), class indices, or float32 (B, classes), their shares in mixed images; None for data without
            labels.
        indices: int64 (B,), positions of the images in the source, on the CPU.
        origins: names of the source of each image, if several sources are mixed; else empty.
        boxes: float32 (B, V, 4), edges of each view in its picture in pixels: top, left, bottom, right, with right
            below left in a mirrored view; None where they are unknown.
    """

    views: tuple[Tensor, ...]
    labels: Tensor | None
    indices: Tensor
    origins: tuple[str, ...] = ()
    boxes: Tensor | None = None

    @property
    def images(self) -> Tensor:
        """All views one after the other, (V * B, C, h, w): they have one size."""
        return torch.cat(self.views) if len(self.views) > 1 else self.views[0]

    def by_origin(self) -> dict[str, "Batch"]:
        """Return a batch per source, e.g. {"coco": ..., "photos": ...}, for the sources that occur in this batch."""
        found = {}
        for name, rows in rows_by_origin(self.origins).items():
            views = tuple(view[rows] for view in self.views)
            labels = None if self.labels is None else self.labels[rows]
            boxes = None if self.boxes is None else self.boxes[rows]
            found[name] = Batch(views, labels, self.indices[rows], (name,) * len(rows), boxes)
        return found


@dataclasses.dataclass(frozen=True)
class Step:
    """Position of an update in a run.

    Attributes:
        index: optimizer updates done before this one; negative in `Method.first_pass`.
        total: updates of the whole run.
        per_epoch: updates per epoch.
    """

    index: int
    total: int
    per_epoch: int

    @property
    def epoch(self) -> int:
        """Completed epochs."""
        return self.index // self.per_epoch

    @property
    def epochs(self) -> int:
        """Epochs of the whole run, rounded up."""
        return -(-self.total // self.per_epoch)

    @property
    def where(self) -> float:
        """Progress of the run, in [0, 1)."""
        return self.index / self.total


@dataclasses.dataclass(frozen=True)
class Setup:
    """Facts about a run that a method is built for.

    Attributes:
        feature_dim: D, dimension of the backbone's features.
        sizes: side of each view in pixels, in the order of `Batch.views`.
        batch_size: images per process in one forward pass.
        images_per_update: images per optimizer update, over all processes and accumulated passes.
        world: number of processes.
        samples: images in the training data.
        classes: number of classes; 0 for data without labels.
        steps: optimizer updates of the whole run.
        steps_per_epoch: optimizer updates per epoch.
        backbone: name of the backbone, for messages.
        channels: number of channels of the views.
        loaded: true if the backbone holds weights from a file (--init), false if they are random.
        targets: int8 (samples, C) for data of several labels per image, 1 present, 0 absent, -1 unknown; else None.
        class_names: names of the classes, in order; empty for data without one class per image.
        normalisation: mean and standard deviation that the views are normalised by.
        seed: of the run, 0 or more.
        columns: name -> texts of the samples, of the columns that the method asks for (`Method.columns`).
        layers: name -> layer of the backbone and the length of its vectors, as the method asks for (`Method.layers`).
    """

    feature_dim: int
    sizes: tuple[int, ...]
    batch_size: int
    images_per_update: int
    world: int
    samples: int
    classes: int
    steps: int
    steps_per_epoch: int
    backbone: str
    channels: int = 3
    loaded: bool = False
    targets: Tensor | None = None
    class_names: tuple[str, ...] = ()
    normalisation: Preprocessing = dataclasses.field(default_factory=Preprocessing)
    seed: int = 0
    columns: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    layers: Mapping[str, tuple[Layer, int]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Loss:
    """Result of a forward pass.

    Attributes:
        value: scalar to minimise; its mean over processes is the loss of the whole batch.
        embeddings: (n, d) without gradient; they would be equal for all images if training collapsed. None: there are
            none to be watched.
        parts: further scalars for the log, without gradient.
    """

    value: Tensor
    embeddings: Tensor | None = None
    parts: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Needs:
    """Requirements of a method on the views of an image and on the images of a batch.

    Attributes:
        augment: published augmentation of the method, which messages propose.
        method: name of the method in messages; '': that of the augmentation.
        views: number of views; None: any.
        pairs: views are compared, so there are at least two.
        several_images: a forward pass normalises over its images, so it has at least two.
        negatives: images are contrasted with each other, so the passes of all processes together have at least two.
    """

    augment: str
    method: str = ""
    views: int | None = None
    pairs: bool = False
    several_images: bool = False
    negatives: bool = False

    def check(self, setup: Setup) -> None:
        """Refuse a run that does not meet them."""
        method = self.method or self.augment
        number, remedy = len(setup.sizes), f"Set augment={self.augment} (published), or change the list augment.views."
        if self.views is not None and number != self.views:
            wanted = "one view" if self.views == 1 else f"{self.views} views"
            raise UsageError(f"{method} takes {wanted} of every image, the augmentation makes {number}", remedy)
        if self.pairs and number < 2:
            raise UsageError(f"{method} compares views of one image, but the augmentation makes {number}", remedy)
        if self.several_images:
            need_several_images(setup, method=method)
        if self.negatives and setup.batch_size * setup.world < 2:
            raise UsageError(
                f"{method} compares the images of a batch with each other, but a forward pass has one image",
                "Raise batch_size (or lower accumulate) so that every pass has at least 2 images.",
            )


def need_several_images(setup: Setup, *, method: str) -> None:
    """Require at least two images per forward pass, for methods that normalise over a batch."""
    if setup.batch_size < 2:
        raise UsageError(
            f"{method} normalises over the images of a batch, but a forward pass has one image",
            "Raise batch_size (or lower accumulate) so that every process has at least 2 images in a pass.",
        )


class Learner(nn.Module):
    """Base class of all that the loop trains: methods of pretraining, heads on frozen features, detectors.

    Attributes:
        stored_as: name of its state in a checkpoint.
        draws: true if losses take random numbers from torch's default generator, whose state then is part of a
            checkpoint; false if they depend on the seed and the update alone.
        block_methods: see `Method`.
    """

    stored_as: ClassVar[str] = "method"
    draws: ClassVar[bool] = True
    block_methods: ClassVar[tuple[str, ...]] = ()

    @property
    def stored(self) -> nn.Module:
        """Module whose state is stored."""
        return self

    def loss(self, batch: Any, step: Step) -> Loss:
        """Return the loss of this process's part of the batch; called once per accumulated pass."""
        raise NotImplementedError

    def forward(self, batch: Any, step: Step) -> Loss:
        """Return `loss`: DistributedDataParallel calls forward."""
        return self.loss(batch, step)

    def joined(self, losses: Sequence[Loss], passes: int) -> Loss:
        """Return the loss of an update, for log and check, from those of its passes."""
        value = torch.zeros((), device=losses[0].value.device)
        for each in losses:
            value += each.value / passes
        if len(losses) == 1:
            return dataclasses.replace(losses[0], value=value)
        means = {
            name: torch.stack([torch.as_tensor(each.parts[name]) for each in losses]).mean() for name in losses[0].parts
        }
        embeddings = [each.embeddings.detach() for each in losses if each.embeddings is not None]
        return Loss(value, torch.cat(embeddings) if embeddings else None, means)

    def before_update(self, step: Step) -> None:
        """Drop or change gradients; called after the backward pass, before clipping and the optimizer."""

    def after_update(self, step: Step) -> None:
        """Update momentum copies, queues and prototypes; called after the optimizer.

        Args:
            step: the update that has just ended.
        """

    def averaged(self) -> nn.Module:
        """Return the network whose moving average is kept, if one is."""
        return self.stored

    def local_state(self) -> dict[str, Tensor]:
        """Return the tensors that differ between processes; a checkpoint holds those of every process."""
        return {}

    def load_local_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the tensors from `local_state`."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state of its own, the checkpoint has {sorted(state)}")


class Method(Learner, Generic[ConfigT]):
    """Base class of pretraining methods.

    A module `sslbench/methods/NAME.py`, or a user's own module named by its dotted path, defines a frozen dataclass
    `Config` of `config.setting`s and a subclass `Method` with `config_type = Config`. A subclass builds its networks in
    `__init__`, defines `loss`, and overrides the other methods where it needs to. The result of a run is one of
    `exports()` with its `heads()`; momentum copies and queues are discarded.

    Parameters that take no part in the loss must have `requires_grad=False`, or DistributedDataParallel fails. Random
    numbers of an image come from `methods/_parts/masks.py`, so they are the same for any number of processes; others
    come from torch's default generator, whose state is part of a checkpoint and differs between processes. Tensors that
    are equal on all processes are buffers; tensors that differ between processes go through `local_state`. Losses are
    computed in float32.

    Attributes:
        config_type: frozen dataclass of the method's settings.
        needs: requirements on views and batches; None: none.
        has_classifier: true if 'head' of `heads` is a classifier of the data's classes on the backbone's output; the
            weights file then names the classes, if it is a single linear layer.
        first_pass: true if one epoch of forward passes, each followed by `after_update`, precedes the first update, for
            instance to fill a memory; the steps of these passes have the indices -per_epoch to -1.
        block_methods: names of the methods of blocks that `loss` calls in place of their forward pass. With
            strategy=fsdp a block's parameters are whole only while the block itself or one of these runs.
        saved_head: name of the module that is 'head' of `heads`, such as 'projector' or 'head.mlp'; '': none.
        saved_predictor: name of the module that is 'predictor'; '': none.
        copies: prefix of the names of momentum copies: with 'target_', target_backbone is the copy of backbone and
            exported as 'teacher', with the copies of its heads; '': there are none.
        default_export: network that is exported unless a setting names another one.
        compiled_methods: names of the methods in which `loss` calls parts of the backbone and its copies in place of
            their forward pass: with compile=true these are compiled.
        space: input of the backbone; with 'lightness' views are RGB, the method itself gives the backbone L of CIE Lab
            minus 50, and so do evaluations of the weights.
        backbone: network that is pretrained.
        config: settings.
        seed: of the run.
    """

    config_type: ClassVar[type[Any]]
    needs: ClassVar[Needs | None] = None
    has_classifier: ClassVar[bool] = False
    first_pass: ClassVar[bool] = False
    saved_head: ClassVar[str] = ""
    saved_predictor: ClassVar[str] = ""
    copies: ClassVar[str] = ""
    compiled_methods: ClassVar[tuple[str, ...]] = ()
    default_export: ClassVar[Literal["student", "teacher"]] = "student"
    space: ClassVar[Literal["RGB", "lightness"]] = "RGB"
    backbone: nn.Module

    def __init__(self, backbone: nn.Module, config: ConfigT, setup: Setup) -> None:
        super().__init__()
        if self.needs is not None:
            self.needs.check(setup)
        self.check(backbone, config, setup)
        self.backbone = backbone
        self.config = config
        self.seed = setup.seed

    @classmethod
    def config_of(cls, values: Mapping[str, Any]) -> Any:
        """Return the settings of values as recipes have them, `name` among them."""
        own = {key: value for key, value in values.items() if key != "name"}
        return build(cls.config_type, own, f"method {values['name']}")

    @classmethod
    def check_config(cls, config: ConfigT) -> None:
        """Refuse settings that are wrong whatever the data and the backbone; called before any is opened."""

    @classmethod
    def columns(cls, config: ConfigT) -> tuple[str, ...]:
        """Return the columns of the data that the loss needs beside the labels; their texts are `Setup.columns`."""
        return ()

    @classmethod
    def layers(cls, config: ConfigT) -> tuple[str, ...]:
        """Return the layers of the backbone that the loss needs beside its output, as `--layers` has them."""
        return ()

    @classmethod
    def check(cls, backbone: nn.Module, config: ConfigT, setup: Setup) -> None:
        """Check settings, backbone and data against each other before anything is built; accept all by default.

        Raises:
            UsageError: the method cannot be trained this way.
        """

    def compile_networks(self, **options: Any) -> None:
        """Compile every network that `loss` calls: by default all submodules of the method and `compiled_methods`.

        Args:
            options: arguments of `torch.compile`.
        """
        for name in self.compiled_methods:
            setattr(self, name, torch.compile(getattr(self, name), **options))
        for name, network in self.named_children():
            if not (self.compiled_methods and name.endswith("backbone")):
                network.compile(**options)

    def exports(self) -> dict[str, nn.Module]:
        """Return the backbones that can be exported, by name; the first is the default."""
        backbones = {"student": self.backbone}
        if self.copies:
            backbones["teacher"] = self.get_submodule(f"{self.copies}backbone")
        return {self.default_export: backbones[self.default_export], **backbones}

    def averaged(self) -> nn.Module:
        """Return the network whose moving average is kept, if one is: by default the backbone."""
        return self.backbone

    def heads(self, exported: str) -> dict[str, nn.Module]:
        """Return the heads on an exported backbone, which are saved with it.

        Args:
            exported: name of the backbone in `exports`.

        Returns:
            'head' (projection head or classifier) and 'predictor', which takes its output; each an nn.Sequential of
            linear layers, norms and activations, or a single linear layer.
        """
        prefix = self.copies if exported == "teacher" else ""
        names = {"head": self.saved_head, "predictor": self.saved_predictor}
        networks = dict(self.named_children())  # not every head has a copy
        return {
            head: self.get_submodule(prefix + name)
            for head, name in names.items()
            if name and (prefix + name).partition(".")[0] in networks
        }


def find_method(name: str) -> type[Method[Any]]:
    """Return the class of a method.

    Args:
        name: a built-in method, or the dotted path of a user's module.

    Raises:
        UsageError: there is no such method, or the module does not define one.
    """
    module = names.find_module("method", name)
    found = vars(module).get("Method")
    if not isinstance(found, type) or not issubclass(found, Method):
        raise UsageError(
            f"{module.__file__} defines no pretraining method",
            "Define a class Method, a subclass of sslbench.train.method.Method.",
        )
    if not hasattr(found, "config_type"):
        raise UsageError(
            f"{module.__file__}: the class Method has no config_type",
            "Set it to the dataclass of the settings: config_type = Config.",
        )
    return found
