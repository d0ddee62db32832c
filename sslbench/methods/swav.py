"""SwAV (Caron et al. 2020, arXiv 2006.09882): views of an image predict each other's assignment to prototypes.

Departures: the queue is filled from the first update and used from `queue_start` on, once it is full (the published
code fills it from then on, VISSL starts with random vectors). Frozen prototypes get no gradient, so that neither
momentum nor weight decay changes them.

With `momentum`, the assignments come from a momentum copy of backbone, head and prototypes (SwAV-momentum of VISSL).
VISSL copies the running statistics of BatchNorm into it; here it keeps statistics of its own inputs.
"""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.methods._parts import momentum as momentum_copies
from sslbench.methods._parts.losses import in_float32, sinkhorn, unit_length
from sslbench.methods._parts.memory import shift_in
from sslbench.methods._parts.networks import Prototypes, encode, mlp
from sslbench.runtime.device import widest_float
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step

log = logging.getLogger("sslbench")


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of SwAV."""

    temperature: float = setting(0.1, "temperature of the predictions", within="(0, inf)")
    epsilon: float = setting(0.05, "temperature of the assignments", within="(0, inf)")
    iterations: int = setting(3, "iterations of Sinkhorn-Knopp", within="[1, inf)")
    prototypes: tuple[int, ...] = setting(
        (3000,), "number of prototypes; several numbers make several sets", within="[1, inf)"
    )
    projector: tuple[int, ...] = setting(
        (2048, 128), "widths of the projection head's layers (hidden ones have a BN)", within="[1, inf)"
    )
    assign_views: tuple[int, ...] = setting((0, 1), "views whose assignments the others predict", within="[0, inf)")
    frozen_updates: int = setting(0, "updates at the start with frozen prototypes", within="[0, inf)")
    queue: int = setting(
        0, "earlier embeddings of each assigned view, over all processes, that are assigned along", within="[0, inf)"
    )
    queue_start: int = setting(0, "updates before the queue is used", within="[0, inf)")
    hard_updates: int = setting(0, "updates at the start with hard assignments", within="[0, inf)")
    power_law: float = setting(0.0, "exponent of the prototypes' shares; 0 makes them equal", within="[0, inf)")
    double_precision: bool = setting(False, "Sinkhorn-Knopp in float64")
    momentum: float = setting(
        0.0, "decay of a momentum copy of all networks, which assigns (VISSL: 0.99); 0: none", within="[0, 1)"
    )


@in_float32
def swapped_prediction(scores: Tensor, codes: Tensor, assigned: Sequence[int], temperature: float) -> Tensor:
    """Return eq. 1 and 2 for one set of prototypes: cross entropy of assignments and other views' scores.

    `scores`: (V, B, K), scores of all views; `codes`: (A, B, K), assignments of the assigned views, without gradient.
    """
    log_p = (scores / temperature).log_softmax(dim=2)
    pairs = [(i, v) for i, a in enumerate(assigned) for v in range(len(scores)) if v != a]
    return torch.stack([-(codes[i] * log_p[v]).sum(dim=1).mean() for i, v in pairs]).mean()


@torch.no_grad()
@in_float32
def assign(scores: Tensor, queued: Tensor | None, config: Config, *, hard: bool = False) -> Tensor:
    """Return the assignments of this process's samples.

    `scores`: (B, K), scores of the batch; `queued`: (n, K), scores of earlier samples, which are balanced along and not
    returned; returns float32 (B, K); rows sum to 1.
    """
    together = scores if queued is None else torch.cat([scores, queued.to(scores.dtype)])
    together = together.to(widest_float(together.device)) if config.double_precision else together
    codes = sinkhorn(together, epsilon=config.epsilon, iterations=config.iterations, power_law=config.power_law)
    codes = codes[: len(scores)].float()
    return functional.one_hot(codes.argmax(dim=1), codes.shape[1]).to(codes.dtype) if hard else codes


class _Teacher(nn.Module):
    """Momentum copies of the networks."""

    def __init__(self, backbone: nn.Module, head: nn.Module, prototypes: Prototypes) -> None:
        super().__init__()
        self.backbone = momentum_copies.copy_of(backbone)
        self.head = momentum_copies.copy_of(head)
        self.prototypes = momentum_copies.copy_of(prototypes)


class Method(method.Method[Config]):
    """Online clustering: assignments by Sinkhorn-Knopp over all processes, predicted from other views."""

    config_type = Config
    needs = Needs("swav", pairs=True)

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require several views, views to assign among them, and a queue that the processes share evenly.

        Say what a training of few updates never reaches.
        """
        wrong = [v for v in config.assign_views if not 0 <= v < len(setup.sizes)]
        if wrong or not config.assign_views:
            raise UsageError(
                f"swav: assign_views is {list(config.assign_views)}, but the views are 0 to {len(setup.sizes) - 1}"
            )
        # Each process keeps a part of the queue, and an update may not overwrite its own scores.
        per_process = setup.images_per_update // setup.world
        if config.queue and (config.queue % setup.world or config.queue // setup.world < per_process):
            raise UsageError(
                f"swav: queue={config.queue} does not fit {setup.world} processes of {per_process} images per update",
                f"Set method.queue to a multiple of {setup.world}, {setup.images_per_update} or more, or to 0.",
            )
        if config.frozen_updates >= setup.steps:
            log.warning(
                f"swav: the prototypes are never trained: they are frozen for method.frozen_updates="
                f"{config.frozen_updates:,} updates, and there are {setup.steps:,}"
            )
        first = max(config.queue_start, -(-config.queue // setup.images_per_update))
        if config.queue and first >= setup.steps:
            log.warning(f"swav: the queue is never used: it would be from update {first:,} on, of {setup.steps:,}")

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.head = mlp([setup.feature_dim, *config.projector], norm=True)
        self.prototypes = Prototypes(config.projector[-1], config.prototypes)
        self.prototypes.normalize_()
        self.teacher = _Teacher(backbone, self.head, self.prototypes) if config.momentum else None
        # Differs between processes, so it is no buffer; created with the first embeddings, on their device.
        self._queue: Tensor | None = None
        self._queue_shape = (len(config.assign_views), config.queue // setup.world, config.projector[-1])
        self._fill_updates = -(-config.queue // setup.images_per_update)
        self._new: list[Tensor] = []

    def compile_networks(self, **options: Any) -> None:
        """Compile all networks, those of the momentum copy one by one."""
        super().compile_networks(**options)
        for network in () if self.teacher is None else self.teacher.children():
            network.compile(**options)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the loss of swapped prediction, averaged over the sets of prototypes."""
        features = torch.cat(encode(self.backbone, batch.views))
        embeddings = unit_length(self.head(features))
        views = [_by_view(scores, len(batch.views)) for scores in self._scores(self.prototypes, embeddings)]
        per_view = embeddings.detach().chunk(len(batch.views))
        assigned, assigned_scores = self._assigned(batch, per_view, views)
        queued = self._queued_scores(assigned, step)
        hard, terms = step.index < self.config.hard_updates, []
        for head, scores in enumerate(views):
            own = assigned_scores[head]
            past = list(queued[head]) if queued else [None] * len(own)
            codes = [assign(now, earlier, self.config, hard=hard) for now, earlier in zip(own, past, strict=True)]
            assign_views, temperature = self.config.assign_views, self.config.temperature
            terms.append(swapped_prediction(scores, torch.stack(codes), assign_views, temperature))
        if self.config.queue:
            self._new.append(assigned)
        return Loss(torch.stack(terms).mean(), per_view[0])

    @torch.no_grad()
    def _assigned(
        self, batch: Batch, per_view: Sequence[Tensor], views: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Return embeddings (A, B, d) of the assigned views, and their scores (A, B, K) for each set of prototypes.

        `per_view`: (B, d) for each view, from the trained networks; `views`: (V, B, K) for each set of prototypes, from
        the trained networks.
        """
        chosen = list(self.config.assign_views)
        if self.teacher is None:
            return torch.stack([per_view[view] for view in chosen]), [
                torch.stack([scores[view] for view in chosen]).detach() for scores in views
            ]
        features = torch.cat(encode(self.teacher.backbone, [batch.views[view] for view in chosen]))
        embeddings = unit_length(self.teacher.head(features))
        scores = self._scores(self.teacher.prototypes, embeddings)
        return _by_view(embeddings, len(chosen)), [_by_view(each, len(chosen)) for each in scores]

    @in_float32
    def _scores(self, prototypes: Prototypes, embeddings: Tensor) -> tuple[Tensor, ...]:
        """Return the scores for each set in float32: divided by epsilon, 8 bits of bfloat16 would be too few."""
        return prototypes(embeddings)  # type: ignore[no-any-return]

    @torch.no_grad()
    def _queued_scores(self, embeddings: Tensor, step: Step) -> tuple[Tensor, ...]:
        """Return the queue's scores (assigned views, n, K) for each set; empty while the queue is not used."""
        if self._queue is None or step.index < max(self.config.queue_start, self._fill_updates):
            return ()
        prototypes = self.prototypes if self.teacher is None else self.teacher.prototypes
        return self._scores(prototypes, self._queue.to(embeddings.device))

    def before_update(self, step: Step) -> None:
        """Drop the gradient of frozen prototypes."""
        if step.index < self.config.frozen_updates:
            self.prototypes.zero_grad()

    @torch.no_grad()
    def after_update(self, step: Step) -> None:
        """Normalise the prototypes, update the momentum copies, and add the new embeddings to the queue."""
        self.prototypes.normalize_()
        if self.teacher is not None:
            for copy, network in zip(self.teacher.children(), (self.backbone, self.head, self.prototypes), strict=True):
                momentum_copies.update(copy, network, self.config.momentum)
            self.teacher.prototypes.normalize_()
        for new in self._new:
            queue = new.new_zeros(self._queue_shape) if self._queue is None else self._queue.to(new.device)
            self._queue = shift_in(queue, new)
        self._new.clear()

    def local_state(self) -> dict[str, Tensor]:
        """Return the queue, which differs between processes."""
        return {} if self._queue is None else {"queue": self._queue}

    def load_local_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the queue."""
        queue = state.get("queue")
        if queue is not None and tuple(queue.shape) != self._queue_shape:
            shapes = f"{tuple(queue.shape)}, not {self._queue_shape}"
            raise UsageError(
                f"swav: the checkpoint's queue (views, embeddings per process, dimension) is {shapes}",
                "Resume with the same queue, projector and number of processes.",
            )
        self._queue = None if queue is None else queue.clone()

    def exports(self) -> dict[str, nn.Module]:
        """Return the trained backbone and, if there is one, its momentum copy."""
        return {"student": self.backbone} | ({} if self.teacher is None else {"teacher": self.teacher.backbone})

    def heads(self, exported: str) -> dict[str, nn.Module]:
        """Return the projection head of the trained networks or of the momentum copies."""
        return {"head": self.head if self.teacher is None or exported == "student" else self.teacher.head}


def _by_view(rows: Tensor, views: int) -> Tensor:
    """Return rows (V * B, d), one view after the other, as (V, B, d)."""
    return rows.view(views, -1, rows.shape[1])
