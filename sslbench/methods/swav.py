"""SwAV (Caron et al. 2020, arXiv 2006.09882): views of an image predict each other's assignment to prototypes.

Departures: the queue is filled from the first update and used from `queue_start` on, once it is full (the published
code fills it from then on, VISSL starts with random vectors). Frozen prototypes get no gradient, so that neither
momentum nor weight decay changes them.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.methods._parts.checks import need_view_pairs
from sslbench.methods._parts.crops import encode
from sslbench.methods._parts.heads import Prototypes, mlp
from sslbench.methods._parts.precision import in_float32, unit_length
from sslbench.methods._parts.queue import shift_in
from sslbench.methods._parts.sinkhorn import sinkhorn
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of SwAV."""

    temperature: float = setting(0.1, "temperature of the predictions")
    epsilon: float = setting(0.05, "temperature of the assignments")
    iterations: int = setting(3, "iterations of Sinkhorn-Knopp")
    prototypes: tuple[int, ...] = setting((3000,), "number of prototypes; several numbers make several sets")
    projector: tuple[int, ...] = setting((2048, 128), "widths of the projection head's layers (hidden ones have a BN)")
    assign_views: tuple[int, ...] = setting((0, 1), "views whose assignments the others predict")
    frozen_updates: int = setting(0, "updates at the start with frozen prototypes")
    queue: int = setting(0, "earlier embeddings of each assigned view, over all processes, that are assigned along")
    queue_start: int = setting(0, "updates before the queue is used")
    hard_updates: int = setting(0, "updates at the start with hard assignments")
    power_law: float = setting(0.0, "exponent of the prototypes' shares; 0 makes them equal")
    double_precision: bool = setting(False, "Sinkhorn-Knopp in float64")


@in_float32
def swapped_prediction(scores: Tensor, codes: Tensor, assigned: Sequence[int], temperature: float) -> Tensor:
    """Return eq. 1 and 2 for one set of prototypes: cross entropy of assignments and other views' scores.

    Args:
        scores: (V, B, K), scores of all views.
        codes: (A, B, K), assignments of the assigned views, without gradient.
        assigned: indices of the A assigned views.
        temperature: temperature, above 0.

    Returns:
        Mean over samples, over pairs of an assigned and another view.
    """
    log_p = (scores / temperature).log_softmax(dim=2)
    pairs = [(i, v) for i, a in enumerate(assigned) for v in range(len(scores)) if v != a]
    return torch.stack([-(codes[i] * log_p[v]).sum(dim=1).mean() for i, v in pairs]).mean()


@torch.no_grad()
@in_float32
def assign(scores: Tensor, queued: Tensor | None, config: Config, *, hard: bool = False) -> Tensor:
    """Return the assignments of this process's samples.

    Args:
        scores: (B, K), scores of the batch.
        queued: (n, K), scores of earlier samples, which are balanced along and not returned.
        config: epsilon, iterations, power_law and double_precision are used.
        hard: assign each sample entirely to its best prototype.

    Returns:
        float32 (B, K); rows sum to 1.
    """
    together = scores if queued is None else torch.cat([scores, queued.to(scores.dtype)])
    together = together.double() if config.double_precision else together
    codes = sinkhorn(together, epsilon=config.epsilon, iterations=config.iterations, power_law=config.power_law)
    codes = codes[: len(scores)].float()
    return functional.one_hot(codes.argmax(dim=1), codes.shape[1]).to(codes.dtype) if hard else codes


class Method(method.Method[Config]):
    """Online clustering: assignments by Sinkhorn-Knopp over all processes, predicted from other views."""

    config_type = Config

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require several views, views to assign among them, and a queue that the processes share evenly."""
        need_view_pairs(setup, method="swav")
        _require_assignable(config, setup)

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.head = mlp([setup.feature_dim, *config.projector], norm=True)
        self.prototypes = Prototypes(config.projector[-1], config.prototypes)
        self.prototypes.normalize_()
        # Differs between processes, so it is no buffer; created with the first embeddings, on their device.
        self._queue: Tensor | None = None
        self._queue_shape = (len(config.assign_views), config.queue // setup.world, config.projector[-1])
        self._fill_updates = -(-config.queue // setup.images_per_update)
        self._new: list[Tensor] = []

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the loss of swapped prediction, averaged over the sets of prototypes."""
        features = torch.cat(encode(self.backbone, batch.views))
        embeddings = unit_length(self.head(features))
        queued = self._queued_scores(embeddings, step)
        terms = []
        for head, scores in enumerate(self._scores(embeddings)):
            views = scores.view(len(batch.views), -1, scores.shape[1])
            codes = self._codes(views.detach(), queued[head] if queued else None, step)
            terms.append(swapped_prediction(views, codes, self.config.assign_views, self.config.temperature))
        per_view = embeddings.detach().chunk(len(batch.views))
        if self.config.queue:
            self._new.append(torch.stack([per_view[view] for view in self.config.assign_views]))
        return Loss(torch.stack(terms).mean(), per_view[0])

    def _codes(self, views: Tensor, queued: Tensor | None, step: Step) -> Tensor:
        """Return the assignments (A, B, K) of the assigned views, given the scores (V, B, K) of all."""
        hard = step.index < self.config.hard_updates
        numbered = enumerate(self.config.assign_views)
        codes = [assign(views[v], None if queued is None else queued[i], self.config, hard=hard) for i, v in numbered]
        return torch.stack(codes)

    @in_float32
    def _scores(self, embeddings: Tensor) -> tuple[Tensor, ...]:
        """Return the scores for each set in float32: divided by epsilon, 8 bits of bfloat16 would be too few."""
        return self.prototypes(embeddings)  # type: ignore[no-any-return]

    @torch.no_grad()
    def _queued_scores(self, embeddings: Tensor, step: Step) -> tuple[Tensor, ...]:
        """Return the queue's scores (assigned views, n, K) for each set; empty while the queue is not used."""
        if self._queue is None or step.index < max(self.config.queue_start, self._fill_updates):
            return ()
        return self._scores(self._queue.to(embeddings.device))

    def before_update(self, step: Step) -> None:
        """Drop the gradient of frozen prototypes."""
        if step.index < self.config.frozen_updates:
            for parameter in self.prototypes.parameters():
                parameter.grad = None

    @torch.no_grad()
    def after_update(self, step: Step) -> None:
        """Normalise the prototypes, and add the new embeddings to the queue."""
        self.prototypes.normalize_()
        for new in self._new:
            queue = new.new_zeros(self._queue_shape) if self._queue is None else self._queue.to(new.device)
            self._queue = shift_in(queue, new)
        self._new.clear()

    def local_state(self) -> dict[str, Tensor]:
        """Return the queue, which differs between processes."""
        return {} if self._queue is None else {"queue": self._queue}

    def load_local_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the queue.

        Raises:
            UsageError: the checkpoint's queue has another shape.
        """
        queue = state.get("queue")
        if queue is not None and tuple(queue.shape) != self._queue_shape:
            shapes = f"{tuple(queue.shape)}, not {self._queue_shape}"
            raise UsageError(
                f"swav: the checkpoint's queue (views, embeddings per process, dimension) is {shapes}",
                "Resume with the same queue, projector and number of processes.",
            )
        self._queue = None if queue is None else queue.clone()

    def heads(self, exported: str) -> dict[str, nn.Module]:
        """Return the projection head."""
        return {"head": self.head}


def _require_assignable(config: Config, setup: Setup) -> None:
    """Refuse views to assign that do not exist, and queues that the processes cannot fill evenly."""
    wrong = [v for v in config.assign_views if not 0 <= v < len(setup.sizes)]
    if wrong or not config.assign_views:
        raise UsageError(
            f"swav: assign_views is {list(config.assign_views)}, but the views are 0 to {len(setup.sizes) - 1}"
        )
    per_process = setup.images_per_update // setup.world
    if config.queue and (config.queue % setup.world or config.queue // setup.world < per_process):
        raise UsageError(
            f"swav: queue={config.queue} does not fit {setup.world} processes of {per_process} images per update",
            f"Set method.queue to a multiple of {setup.world}, {setup.images_per_update} or more, or to 0.",
        )
