"""Methods put together from lightly's heads, losses and momentum updates, as its documentation does, for our loop.

Data, views, backbone, optimizer and loop are those of every run here; `method.of` names the method. Each view has its
own forward pass, as in lightly's examples. Settings are called as in the method of that name; their widths are those
of lightly's heads, which have a hidden width and an output width.
"""

import copy
import dataclasses

import torch
from lightly import loss as losses
from lightly.models.modules import NNMemoryBankModule, heads
from lightly.models.utils import update_momentum
from lightly.utils.scheduler import cosine_schedule
from torch import Tensor, nn

from sslbench.config import setting
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of all methods; a method uses those that it has."""

    of: str = setting("simclr", "name of the method")
    projector: tuple[int, ...] = setting((256, 128), "widths of the projection head: hidden, output")
    predictor: tuple[int, ...] = setting((256,), "width of the prediction head's hidden layer")
    temperature: float = setting(0.1, "temperature of the similarities")
    queue: int = setting(0, "embeddings in the memory bank")
    prototypes: tuple[int, ...] = setting((100,), "number of prototypes")
    momentum: float = setting(0.99, "decay of the momentum networks")


class Symmetric(nn.Module):
    """Head and a loss of two embeddings: SimCLR, DCL, Barlow Twins, VICReg."""

    def __init__(self, head: nn.Module, criterion: nn.Module) -> None:
        super().__init__()
        self.head, self.criterion = head, criterion

    def forward(self, backbone: nn.Module, views: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        z = [self.head(backbone(view)) for view in views]
        return self.criterion(*z), z[0]


class Predicting(nn.Module):
    """Head, predictor and negative cosine to the other view: SimSiam, and BYOL with momentum networks."""

    def __init__(self, head: nn.Module, predictor: nn.Module, teacher: nn.Module | None) -> None:
        super().__init__()
        self.head, self.predictor, self.teacher = head, predictor, teacher
        self.criterion = losses.NegativeCosineSimilarity()

    def forward(self, backbone: nn.Module, views: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        z = [self.head(backbone(view)) for view in views]
        p = [self.predictor(each) for each in z]
        with torch.no_grad():
            targets = [
                each.detach() if self.teacher is None else self.teacher(v) for each, v in zip(z, views, strict=True)
            ]
        return 0.5 * (self.criterion(p[0], targets[1]) + self.criterion(p[1], targets[0])), z[0]


class OneWay(nn.Module):
    """Head, momentum networks and a loss of the first view with the second one's target: MoCo, TiCo."""

    def __init__(self, head: nn.Module, criterion: nn.Module, teacher: nn.Module) -> None:
        super().__init__()
        self.head, self.criterion, self.teacher = head, criterion, teacher

    def forward(self, backbone: nn.Module, views: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        z = self.head(backbone(views[0]))
        with torch.no_grad():
            target = self.teacher(views[1])
        return self.criterion(z, target), z


class Neighbours(nn.Module):
    """NNCLR."""

    def __init__(self, head: nn.Module, predictor: nn.Module, config: Config) -> None:
        super().__init__()
        self.head, self.predictor = head, predictor
        self.bank = NNMemoryBankModule(size=(config.queue, config.projector[-1]))
        self.criterion = losses.NTXentLoss(temperature=config.temperature)

    def forward(self, backbone: nn.Module, views: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        z = [self.head(backbone(view)) for view in views]
        p = [self.predictor(each) for each in z]
        near = [self.bank(z[0].detach(), update=False), self.bank(z[1].detach(), update=True)]
        return 0.5 * (self.criterion(near[0], p[1]) + self.criterion(near[1], p[0])), z[0]


class Swapped(nn.Module):
    """SwAV; the first two views are the large ones."""

    def __init__(self, head: nn.Module, config: Config) -> None:
        super().__init__()
        self.head = head
        self.prototypes = heads.SwaVPrototypes(config.projector[-1], config.prototypes[0])
        self.criterion = losses.SwaVLoss(temperature=config.temperature)

    def forward(self, backbone: nn.Module, views: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        self.prototypes.normalize()
        z = [nn.functional.normalize(self.head(backbone(view)), dim=1) for view in views]
        scores = [self.prototypes(each) for each in z]
        return self.criterion(scores[:2], scores[2:]).squeeze(), z[0]


def learner(backbone: nn.Module, dim: int, config: Config) -> nn.Module:
    """Return the heads, loss and momentum networks of a method."""
    hidden, out = config.projector[0], config.projector[-1]

    def teacher(head: nn.Module) -> nn.Module:
        return copy.deepcopy(nn.Sequential(backbone, head)).requires_grad_(False)

    if config.of == "simclr":
        return Symmetric(heads.SimCLRProjectionHead(dim, hidden, out), losses.NTXentLoss(config.temperature))
    if config.of == "dcl":
        return Symmetric(heads.SimCLRProjectionHead(dim, hidden, out), losses.DCLLoss(config.temperature))
    if config.of == "barlow_twins":
        return Symmetric(heads.BarlowTwinsProjectionHead(dim, hidden, out), losses.BarlowTwinsLoss())
    if config.of == "vicreg":
        return Symmetric(heads.VICRegProjectionHead(dim, hidden, out, num_layers=3), losses.VICRegLoss())
    if config.of == "simsiam":
        head = heads.SimSiamProjectionHead(dim, hidden, out)
        return Predicting(head, heads.SimSiamPredictionHead(out, config.predictor[0], out), None)
    if config.of == "byol":
        head = heads.BYOLProjectionHead(dim, hidden, out)
        return Predicting(head, heads.BYOLPredictionHead(out, config.predictor[0], out), teacher(head))
    if config.of == "moco":
        head = heads.MoCoProjectionHead(dim, hidden, out)
        criterion = losses.NTXentLoss(config.temperature, memory_bank_size=(config.queue, out))
        return OneWay(head, criterion, teacher(head))
    if config.of == "tico":
        head = heads.TiCoProjectionHead(dim, hidden, out)
        return OneWay(head, losses.TiCoLoss(), teacher(head))
    if config.of == "nnclr":
        head = heads.NNCLRProjectionHead(dim, hidden, out)
        return Neighbours(head, heads.NNCLRPredictionHead(out, config.predictor[0], out), config)
    return Swapped(heads.SwaVProjectionHead(dim, hidden, out), config)


class Method(method.Method[Config]):
    """Method of lightly, called `config.of`."""

    config_type = Config

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.learner = learner(backbone, setup.feature_dim, config)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return lightly's loss."""
        value, embeddings = self.learner(self.backbone, batch.views)
        return Loss(value, embeddings.detach())

    def after_update(self, step: Step) -> None:
        """Update the momentum networks, MoCo's at a constant rate."""
        if getattr(self.learner, "teacher", None) is None:
            return
        end = self.config.momentum if self.config.of == "moco" else 1.0
        momentum = cosine_schedule(step.index, step.total, self.config.momentum, end)
        update_momentum(self.backbone, self.learner.teacher[0], momentum)
        update_momentum(self.learner.head, self.learner.teacher[1], momentum)
