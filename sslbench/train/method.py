"""What a pretraining method is: a module with a loss, and a few moments at which it may act."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from sslbench.data.loading.pretraining import rows_by_origin


@dataclasses.dataclass(frozen=True)
class Batch:
    """Augmented views of some images, normalised and on the training device.

    Attributes:
        views: view v of every image: float32 (B, C, h_v, w_v), channels-last; large views come before small ones.
        labels: int64 (B,), positions in the classes; None without labels.
        indices: int64 (B,), positions in the source, on the CPU.
        origins: B names, of several sources at once which one each image is from; else empty.
    """

    views: tuple[Tensor, ...]
    labels: Tensor | None
    indices: Tensor
    origins: tuple[str, ...] = ()

    def by_origin(self) -> dict[str, "Batch"]:
        """The images of each source, by its name: {"coco": ..., "photos": ...}; without those that have none here."""
        found = {}
        for name, rows in rows_by_origin(self.origins).items():
            views = tuple(view[rows] for view in self.views)
            labels = None if self.labels is None else self.labels[rows]
            found[name] = Batch(views, labels, self.indices[rows], (name,) * len(rows))
        return found


@dataclasses.dataclass(frozen=True)
class Step:
    """Where training stands.

    Attributes:
        index: optimizer updates done before this one.
        total: of the whole run.
        per_epoch: updates in one epoch.
    """

    index: int
    total: int
    per_epoch: int

    @property
    def epoch(self) -> int:
        """Epochs that are complete."""
        return self.index // self.per_epoch

    @property
    def epochs(self) -> int:
        """Of the whole run, rounded up."""
        return -(-self.total // self.per_epoch)

    @property
    def where(self) -> float:
        """Progress in [0, 1)."""
        return self.index / self.total


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a method may want to know when it is built.

    Attributes:
        feature_dim: D, length of what the backbone gives for one image.
        sizes: side of each view in pixels, in the order of `Batch.views`.
        batch_size: images per process in one forward pass.
        images_per_update: images of all processes and accumulated passes together: what one optimizer update sees.
        world: processes.
        samples: images in the training data.
        classes: number of classes of the labels, 0 without.
        steps: optimizer updates of the whole run.
        steps_per_epoch: in one epoch.
        backbone: its name, for messages.
        channels: of the views.
        loaded: whether the backbone holds the weights of a file (--init), not random ones.
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


@dataclasses.dataclass(frozen=True)
class Loss:
    """What a forward pass gives.

    Attributes:
        value: scalar to be minimised; averaged over processes it is the loss of the whole batch.
        embeddings: (n, d) without gradient: what would be the same for all images if training collapsed.
        parts: further scalars for the log, without gradient.
    """

    value: Tensor
    embeddings: Tensor
    parts: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)


class Method(nn.Module):
    """A method: what is trained, and how.

    A module `sslbench/methods/NAME.py` (or a user's own, by its dotted name) has `Config`, a frozen dataclass of
    `config.setting`s, and `Method`, a subclass of this that is built as `Method(backbone, config, setup)`. What the
    run ends with is `self.backbone`; everything else (heads, momentum copies, queues) is thrown away.

    Parameters that take no part in a step must have `requires_grad=False`: DistributedDataParallel insists on it.
    Random numbers come from torch's default generator, which checkpoints keep. Tensors that all processes share are
    buffers; tensors that differ between processes go through `local_state`. Losses are computed in float32.
    """

    backbone: nn.Module

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def loss(self, batch: Batch, step: Step) -> Loss:
        """The loss of this process's part of the batch. May be called several times per update (accumulation)."""
        raise NotImplementedError

    def forward(self, batch: Batch, step: Step) -> Loss:
        """The same: DistributedDataParallel calls forward."""
        return self.loss(batch, step)

    def compile_networks(self, **options: Any) -> None:
        """Compile every network that `loss` calls: by default all modules that are attributes of the method.

        A method whose loss goes around the forward pass of one of them says here what it calls instead.

        Args:
            options: of `torch.compile`.
        """
        for network in self.children():
            network.compile(**options)

    def before_update(self, step: Step) -> None:
        """After the backward pass, before clipping and the optimizer: drop gradients of what is still frozen."""

    def after_update(self, step: Step) -> None:
        """After the optimizer: momentum copies, queues, normalised prototypes. `step` is the one that just ended."""

    def exports(self) -> dict[str, nn.Module]:
        """Name -> backbone that may be written; the first is the one that is, unless another is asked for."""
        return {"student": self.backbone}

    def local_state(self) -> dict[str, Tensor]:
        """Tensors that differ between processes; a checkpoint keeps them for each."""
        return {}

    def load_local_state(self, state: Mapping[str, Tensor]) -> None:
        """Puts back what `local_state` gave."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state of its own, the checkpoint has {sorted(state)}")
