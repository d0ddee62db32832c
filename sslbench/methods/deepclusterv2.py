"""DeepCluster v2 (Caron et al. 2020, arXiv 2006.09882, appendix D): clusters of the last epoch's embeddings as classes.

After every epoch, and after a pass over the data before the first, spherical k-means clusters a memory of the views'
embeddings several times; the centroids are the classifiers of the next epoch. Departures: an image that the last epoch
left out is clustered and classified with its earlier embedding (in VISSL it has no cluster); the memory is equal on all
processes, which share the work of k-means.
"""

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.distributed.collectives import broadcast_, gather
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import cross_entropy, in_float32, unit_length
from sslbench.methods._parts.memory import spherical_kmeans
from sslbench.methods._parts.networks import encode, mlp
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of DeepCluster v2."""

    clusters: tuple[int, ...] = setting((3000, 3000, 3000), "clusters of each clustering", within="[2, inf)")
    iterations: int = setting(10, "iterations of k-means", within="[1, inf)")
    temperature: float = setting(0.1, "temperature of the similarities with the centroids", within="(0, inf)")
    memory_views: tuple[int, ...] = setting((0, 1), "views whose embeddings are clustered, by turns", within="[0, inf)")
    projector: tuple[int, ...] = setting(
        (2048, 128), "widths of the projection head's layers, the last is the memory's", within="[1, inf)"
    )


class Method(method.Method[Config]):
    """Classification of every view into the clusters of its image."""

    config_type = Config
    needs = Needs("deepclusterv2", pairs=True)
    saved_head = "head"
    first_pass = True
    memory: Tensor
    assignments: Tensor

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require several views, those of the memory among them, and no more clusters than images."""
        wrong = [view for view in config.memory_views if not 0 <= view < len(setup.sizes)]
        if wrong or not config.memory_views:
            raise UsageError(
                f"deepclusterv2: memory_views is {list(config.memory_views)}, but the views are 0 to "
                f"{len(setup.sizes) - 1}"
            )
        if not config.clusters or not 2 <= min(config.clusters) <= max(config.clusters) <= setup.samples:
            raise UsageError(
                f"deepclusterv2: clusters={list(config.clusters)} of {setup.samples:,} images",
                f"Set method.clusters to one or more numbers from 2 to {setup.samples}, such as "
                f"[{max(2, setup.samples // 400)}].",
            )

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        dim = config.projector[-1]
        self.head = mlp([setup.feature_dim, *config.projector])
        start = torch.randn(len(config.memory_views), setup.samples, dim)
        self.register_buffer("memory", functional.normalize(start, dim=2))
        # Random until the first pass has filled the memory.
        images = torch.arange(setup.samples)
        self.register_buffer("assignments", torch.stack([images % count for count in config.clusters]))
        for i, count in enumerate(config.clusters):
            self.register_buffer(f"centroids{i}", self.memory[i % len(self.memory)][:count].clone())
        self._new: list[tuple[Tensor, Tensor]] = []

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the cross entropy of all views with the cluster of their image, averaged over the clusterings."""
        embeddings = unit_length(self.head(torch.cat(encode(self.backbone, batch.views))))
        per_view = embeddings.detach().chunk(len(batch.views))
        images = batch.indices.to(embeddings.device, non_blocking=True)
        self._new.append((images, torch.stack([per_view[view] for view in self.config.memory_views], dim=1)))
        terms = []
        for i in range(len(self.config.clusters)):
            labels = self.assignments[i][images].repeat(len(batch.views))
            terms.append(centroid_loss(embeddings, self.get_buffer(f"centroids{i}"), labels, self.config.temperature))
        return Loss(torch.stack(terms).mean(), per_view[0].float())

    @torch.no_grad()
    def after_update(self, step: Step) -> None:
        """Store the embeddings of this update, and cluster the memory at the end of an epoch."""
        images, embeddings = (gather(torch.cat(each)) for each in zip(*self._new, strict=True))
        self._new.clear()
        self.memory[:, images] = embeddings.transpose(0, 1).to(self.memory.dtype)
        if (step.index + 1) % step.per_epoch:
            return
        # The memories of the views are clustered by turns, each time from random embeddings as centroids.
        for i, count in enumerate(self.config.clusters):
            rows = self.memory[i % len(self.memory)]
            first = broadcast_(torch.randperm(len(rows))[:count].to(rows.device))
            centroids, assignments = spherical_kmeans(rows, rows[first], self.config.iterations)
            self.get_buffer(f"centroids{i}").copy_(centroids)
            self.assignments[i] = assignments


@in_float32
def centroid_loss(embeddings: Tensor, centroids: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return the cross entropy of the assigned centroid, by similarities divided by a temperature.

    `embeddings`: (B, d), rows of length 1; `centroids`: (K, d), rows of length 1; `labels`: int64 (B,), number of the
    centroid; -1 is ignored.
    """
    return cross_entropy(embeddings @ centroids.T / temperature, labels)
