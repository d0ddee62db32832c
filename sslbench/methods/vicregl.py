"""VICRegL: VICReg on whole views and on pairs of their places (Bardes et al., NeurIPS 2022, arXiv 2210.01571).

A place of one view is paired with the place of another view that is nearest in the picture, and with the one whose
embedding is nearest.

Departures from the authors' code: ResNets only (there also ConvNeXt). The places of a mirrored view are mirrored too,
as in --no-flip-grid 0 (their default leaves them as they were). There is no classifier beside the training.
"""

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.backbones.resnet import ResNet
from sslbench.config import setting
from sslbench.distributed.collectives import gather_with_gradient
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import in_float32, variance_and_covariance
from sslbench.methods._parts.networks import feature_map, mlp
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step

Terms = tuple[Tensor, Tensor, Tensor]
"""Invariance, variance and covariance, unweighted."""


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of VICRegL; variance and covariance are means over the views."""

    alpha: float = setting(
        0.75, "weight of the loss of whole views; that of their places has 1 - alpha", within="[0, 1]"
    )
    projector: tuple[int, ...] = setting((8192, 8192, 8192), "widths of the expander of whole views", within="[1, inf)")
    place_projector: tuple[int, ...] = setting((512, 512, 512), "widths of the expander of places", within="[1, inf)")
    matches: tuple[int, int] = setting(
        (20, 4),
        "pairs nearest in the picture: of the first view's places with the second's, and the other way round",
        within="[1, inf)",
    )
    large_views: int = setting(
        2, "number of views that are compared with all others; they come first", within="[1, inf)"
    )
    invariance: float = setting(25.0, "weight of the distance between the views (lambda)", within="[0, inf)")
    variance: float = setting(25.0, "weight of the hinge on the standard deviations (mu)", within="[0, inf)")
    covariance: float = setting(1.0, "weight of the off-diagonal covariances (nu)", within="[0, inf)")


def place_centres(boxes: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return the centres of the places of a view in its picture, in pixels.

    `boxes`: (B, 4), edges of the view: top, left, bottom, right; returns (B, rows * columns, 2), row and column.

    >>> place_centres(torch.tensor([[0.0, 8.0, 4.0, 0.0]]), (1, 2)).tolist()  # a mirrored view
    [[[2.0, 6.0], [2.0, 2.0]]]
    """
    rows, columns = ((torch.arange(n, device=boxes.device, dtype=boxes.dtype) + 0.5) / n for n in grid)
    top, left, bottom, right = (edge[:, None] for edge in boxes.unbind(1))
    y, x = top + (bottom - top) * rows, left + (right - left) * columns
    y, x = y[:, :, None].expand(-1, *grid), x[:, None, :].expand(-1, *grid)
    return torch.stack([y, x], dim=-1).flatten(1, 2)


@torch.no_grad()
def nearest_pairs(ours: Tensor, theirs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the places with the nearest neighbours among the places of another view, and these neighbours.

    `ours`: (B, S, k), positions or embeddings; `theirs`: (B, T, k); returns int64 (B, count) each: the places in
    ascending order, and their neighbours.

    >>> ours, theirs = torch.tensor([[[0.0], [5.0], [9.0]]]), torch.tensor([[[8.0], [1.0]]])
    >>> [places.tolist() for places in nearest_pairs(ours, theirs, 2)]
    [[[0, 2]], [[1, 0]]]
    """
    # Products in place of differences would lose the small distances of positions in large pictures.
    distances, neighbours = torch.cdist(ours, theirs, compute_mode="donot_use_mm_for_euclid_dist").min(dim=2)
    chosen = distances.argsort(dim=1, stable=True)[:, :count].sort(dim=1).values
    return chosen, neighbours.gather(1, chosen)


def pair_terms(ours: Tensor, theirs: Tensor, pairs: tuple[Tensor, Tensor]) -> Terms:
    """Return VICReg's terms of pairs of places, means over the pairs; each compares the images of all processes.

    `ours`: (B, S, d), embeddings of the places of one view; `theirs`: (B, T, d), of another one.
    """
    dim = ours.shape[2]
    x, y = (z.gather(1, at[..., None].expand(-1, -1, dim)) for z, at in zip((ours, theirs), pairs, strict=True))
    variances, covariances = zip(
        *(variance_and_covariance(gather_with_gradient(z).transpose(0, 1)) for z in (x, y)), strict=True
    )
    return functional.mse_loss(x, y), sum(variances) / 2, sum(covariances) / 2


@in_float32
def place_terms(embeddings: tuple[Tensor, Tensor], centres: tuple[Tensor, Tensor], matches: tuple[int, int]) -> Terms:
    """Return the terms of the places of two views (section 3.2).

    `embeddings`: (B, S, d) and (B, T, d); `centres`: (B, S, 2) and (B, T, 2), from `place_centres`.
    """
    # They are the sum of those of pairs by embedding, of all places, and by position, of the nearest places; each is
    # the mean of both directions.
    found = []
    for i, j in ((0, 1), (1, 0)):
        ours, theirs = embeddings[i], embeddings[j]
        found.append(pair_terms(ours, theirs, nearest_pairs(ours, theirs, ours.shape[1])))
        found.append(pair_terms(ours, theirs, nearest_pairs(centres[i], centres[j], matches[i])))
    return _mean(found, len(found) // 2)


@in_float32
def view_terms(embeddings: tuple[Tensor, ...], large: int) -> Terms:
    """Return the terms of whole views: the invariance of each pair with a large view, the others of every view.

    `embeddings`: (B, d) of each view.
    """
    # Every process computes variance and covariance of the whole batch, and the invariance of its own rows, as in
    # `vicreg.vicreg_terms`.
    pairs = [functional.mse_loss(embeddings[i], embeddings[j]) for i, j in _pairs(len(embeddings), large)]
    variances, covariances = zip(*(variance_and_covariance(gather_with_gradient(z)) for z in embeddings), strict=True)
    views = len(embeddings)
    return torch.stack(pairs).mean(), sum(variances) / views, sum(covariances) / views


def _pairs(views: int, large: int) -> list[tuple[int, int]]:
    """Return the ordered pairs of a large view and another view."""
    return [(i, j) for i in range(large) for j in range(views) if i != j]


def _mean(terms: list[Terms], count: int) -> Terms:
    invariances, variances, covariances = zip(*terms, strict=True)
    return sum(invariances) / count, sum(variances) / count, sum(covariances) / count


class Method(method.Method[Config]):
    """VICRegL on any number of views, large ones first, with one forward pass per view, as in the published code."""

    config_type = Config
    needs = Needs("vicreg", method="vicregl", several_images=True)
    compiled_methods = ("_maps",)
    saved_head = "projector"
    backbone: ResNet

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a ResNet, pairs of views of several images, and two losses."""
        if not isinstance(backbone, ResNet):
            raise UsageError(
                f"vicregl needs a ResNet, which {setup.backbone} is not", "For instance --backbone resnet50."
            )
        if not 1 <= config.large_views <= len(setup.sizes) or len(setup.sizes) < 2:
            raise UsageError(
                f"vicregl compares {config.large_views} views with all others, the augmentation makes "
                f"{len(setup.sizes)} in all",
                "Set augment=vicreg (published), or method.large_views.",
            )
        if not 0 < config.alpha < 1:
            raise UsageError(
                f"vicregl: method.alpha must be between 0 and 1, not {config.alpha}",
                "Without the loss of places, the method is vicreg.",
            )
        if min(config.matches) < 1:
            raise UsageError(f"vicregl: method.matches must be numbers above 0, not {list(config.matches)}")

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.projector = mlp([setup.feature_dim, *config.projector], norm=True, last_bias=False)
        self.place_projector = mlp([setup.feature_dim, *config.place_projector], norm=True, last_bias=False)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the weighted sum of the losses of whole views and of their places (section 3.3)."""
        if batch.boxes is None:
            raise ValueError("vicregl needs the edges of the views, Batch.boxes")
        config = self.config
        wholes, places, centres = [], [], []
        for view, boxes in zip(batch.views, batch.boxes.unbind(1), strict=True):
            maps = self._maps(self.backbone, view)
            rows = maps.flatten(2).mT
            # One forward pass serves both losses: a whole view is the mean of its places.
            wholes.append(self.projector(rows.mean(1)))
            places.append(self.place_projector(rows.flatten(0, 1)).unflatten(0, rows.shape[:2]))
            centres.append(place_centres(boxes, (maps.shape[2], maps.shape[3])))
        of_views = view_terms(tuple(wholes), config.large_views)
        pairs = _pairs(len(places), config.large_views)
        terms = [place_terms((places[i], places[j]), (centres[i], centres[j]), config.matches) for i, j in pairs]
        of_places = _mean(terms, len(pairs))
        value = config.alpha * self._weighted(of_views) + (1 - config.alpha) * self._weighted(of_places)
        names = ("invariance", "variance", "covariance")
        parts = {name: term.detach() for name, term in zip(names, of_views, strict=True)}
        parts |= {f"place_{name}": term.detach() for name, term in zip(names, of_places, strict=True)}
        return Loss(value, wholes[0].detach(), parts)

    def _weighted(self, terms: Terms) -> Tensor:
        """Return the weighted sum of the terms."""
        invariance, variance, covariance = terms
        config = self.config
        return config.invariance * invariance + config.variance * variance + config.covariance * covariance

    def _maps(self, resnet: ResNet, images: Tensor) -> Tensor:
        return feature_map(resnet, images)
