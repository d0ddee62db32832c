"""Gated attention over the images of a bag, trained on stored features (Ilse et al. 2018, ICML, equation 9)."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.arrays import FloatArray, IntArray, Matrix
from sslbench.runtime.seeds import seeded
from sslbench.targets.classes import Classes
from sslbench.targets.target import Target
from sslbench.train import loop
from sslbench.train.method import Learner, Loss, Step
from sslbench.train.optimizers.optimizer import OptimizerSettings, make_optimizer
from sslbench.train.parameter_groups import GroupRates, group
from sslbench.train.schedules import constant
from sslbench.train.state import State

_ROWS = 2**15  # images per forward pass; larger bags have one of their own


class GatedAttention(nn.Module):
    """Projection of the features, attention a = softmax(w'(tanh(V h) * sigmoid(U h))), and layers on their sum.

    Args:
        width: D, of the features.
        classes: C outputs.
        projection: width of h; 0: h are the features themselves.
        attention: rows of V and U.
        hidden: widths of the layers between the sum and the outputs.

    >>> network = GatedAttention(4, 2, projection=0, attention=8, hidden=())
    >>> network(torch.zeros(5, 4), [2, 3]).shape
    torch.Size([2, 2])
    """

    def __init__(self, width: int, classes: int, projection: int, attention: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.project = nn.Linear(width, projection) if projection else nn.Identity()
        inner = projection or width
        self.content, self.gate = nn.Linear(inner, attention), nn.Linear(inner, attention)
        self.score = nn.Linear(attention, 1)
        widths = [inner, *hidden]
        layers = [part for a, b in zip(widths, hidden, strict=False) for part in (nn.Linear(a, b), nn.ReLU())]
        self.classifier = nn.Sequential(*layers, nn.Linear(widths[-1], classes))

    def attention(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return h (N, H) and the scores (N,) before the softmax of features (N, D)."""
        h = self.project(x)
        return h, self.score(torch.tanh(self.content(h)) * torch.sigmoid(self.gate(h)))[:, 0]

    def forward(self, x: Tensor, sizes: list[int]) -> Tensor:
        """Return (B, C) outputs for the features (N, D) of B bags, one bag after the other."""
        h, scores = self.attention(x)
        parts = zip(torch.split(scores, sizes), torch.split(h, sizes), strict=True)
        return torch.as_tensor(self.classifier(torch.stack([own.softmax(0) @ values for own, values in parts])))


@dataclasses.dataclass(frozen=True)
class Bags:
    """Features of the images of B bags, read bag by bag.

    Attributes:
        x: (N, D), possibly memory-mapped.
        rows: ascending rows of the images of each bag.
        mean: (D,) that is subtracted from the features.
        std: (D,) that they are divided by.
        device: of the network.
    """

    x: Matrix
    rows: Sequence[IntArray]
    mean: FloatArray
    std: FloatArray
    device: str

    def passes(self, numbers: Sequence[int]) -> list[list[int]]:
        """Return the numbers of bags in parts of at most `_ROWS` images each, or of one bag."""
        parts: list[list[int]] = [[]]
        total = 0
        for number in numbers:
            total += len(self.rows[number])
            if parts[-1] and total > _ROWS:
                parts.append([])
                total = len(self.rows[number])
            parts[-1].append(number)
        return parts

    def read(self, numbers: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Return the features of some bags, one after the other, and their sizes."""
        rows = np.concatenate([self.rows[number] for number in numbers])
        x = (self.x[rows].astype(np.float32) - self.mean.astype(np.float32)) / self.std.astype(np.float32)
        return torch.from_numpy(x).to(self.device), [len(self.rows[number]) for number in numbers]

    def outputs(self, network: GatedAttention, numbers: Sequence[int]) -> FloatArray:
        """Return the outputs (B, C) of a trained network."""
        network.eval()
        with torch.no_grad():
            found = [network(*self.read(part)).cpu().numpy() for part in self.passes(numbers)]
        return np.concatenate(found).astype(np.float64)


@dataclasses.dataclass(frozen=True)
class Training:
    """Settings of a training by AdamW (Loshchilov and Hutter 2019).

    Attributes:
        batch_size: bags per update.
        patience: epochs without a better score after which it ends.
    """

    lr: float
    weight_decay: float
    epochs: int
    batch_size: int
    patience: int


class _BagTraining(Learner, loop.Run[list[int]]):
    """Training of a network on bags; an update is a pass for each part of them that fits into memory."""

    def __init__(
        self,
        network: GatedAttention,
        bags: Bags,
        loss_of: Callable[[Tensor, Sequence[int]], Tensor],
        training: Training,
    ) -> None:
        super().__init__()
        self.network, self.bags, self.loss_of = network, bags, loss_of
        options = OptimizerSettings(name="adamw", lr=training.lr, lr_scaling="none", weight_decay=training.weight_decay)
        groups = [group(dict(network.named_parameters()), GroupRates())]
        self.state = State(self, self, make_optimizer(groups, options, fused=False))

    def passes(self, raw: list[int]) -> Iterator[list[int]]:
        """Yield the numbers of the bags of each pass."""
        self.size = len(raw)
        yield from self.bags.passes(raw)

    def loss(self, batch: list[int], step: Step) -> Loss:
        """Return the share of the bags of a pass in the mean loss of the update's bags."""
        return Loss(self.loss_of(self.network(*self.bags.read(batch)), batch) / self.size)

    def diverged(self, raw: list[int], step: Step, loss: Loss, own: float, mean: float) -> None:
        """Stop with a remedy."""
        raise loop.NotFiniteError(f"bags: the loss is {mean} in update {step.index + 1}", "Set a lower lr, lr=0.0001.")


def train(
    network: GatedAttention,
    bags: Bags,
    numbers: IntArray,
    loss: Callable[[Tensor, Sequence[int]], Tensor],
    training: Training,
    score: Callable[[], float] | None,
) -> int:
    """Train a network in place; return the number of epochs, of which the best is kept.

    `numbers`: of the bags to train on, shuffled by torch's generator; `loss`: sum over the bags of the given numbers;
    `score`: of the network on held-out bags, more is better; None: the last epoch is kept.
    """
    run = _BagTraining(network, bags, loss, training)
    rates = loop.RateSchedules(constant(training.lr), training.lr)
    starts = range(0, len(numbers), training.batch_size)
    best, best_epoch, kept = -np.inf, 0, None
    for epoch in range(1, training.epochs + 1):
        network.train()
        order = numbers[torch.randperm(len(numbers)).numpy()].tolist()
        batches = (order[start : start + training.batch_size] for start in starts)
        plan = loop.TrainingPlan(epoch * len(starts), len(starts), rates, log_every=0, save_every=0)
        loop.train(run.state, plan, batches, run, lambda: 0)  # to the end of this epoch: a score may end the training
        if score is None:
            best_epoch = epoch
        elif (found := score()) > best:
            best, best_epoch = found, epoch
            kept = {name: value.clone() for name, value in network.state_dict().items()}
        elif epoch - best_epoch >= training.patience:
            break
    if kept is not None:
        network.load_state_dict(kept)
    return best_epoch


def train_on_labels(
    stored: Sequence[Bags],
    labels: Target,
    split: tuple[IntArray, IntArray] | None,
    widths: tuple[int, int, Sequence[int]],
    training: Training,
    seed: int,
) -> tuple[list[FloatArray], int]:
    """Train one network; return its scores of the bags of train and of the others, and the epoch that was kept.

    `stored`: bags of train, then others; `split`: bags to fit on, and those to select the epoch on; None: the last one
    is kept; `widths`: of `GatedAttention`.
    """
    own, device = stored[0], stored[0].device
    fitted, held_out = split if split is not None else (np.arange(len(labels)), np.zeros(0, np.int64))
    values = torch.from_numpy(labels.values).to(device)

    def loss(outputs: Tensor, numbers: Sequence[int]) -> Tensor:
        wanted = values[numbers]
        if isinstance(labels, Classes):
            return functional.cross_entropy(outputs, wanted, reduction="sum")
        each = functional.binary_cross_entropy_with_logits(outputs, (wanted > 0).float(), reduction="none")
        return (each * (wanted >= 0)).sum() / outputs.shape[1]

    def score() -> float:
        held = labels.select(held_out)
        return labels.sign() * held.headline(held.values, own.outputs(network, held_out.tolist()))

    with seeded(seed, torch.device(device)):
        network = GatedAttention(own.x.shape[1], len(labels.classes), *widths).to(device)
        epoch = train(network, own, fitted, loss, training, score if len(held_out) else None)
    return [part.outputs(network, range(len(part.rows))) for part in stored], epoch
