"""Linear classifier trained beside pretraining, on features without gradient: the online linear accuracy.

As in solo-learn and lightly, the classifier learns from the augmented training images during pretraining and changes
nothing of the network. Departures from both: the features come from a forward pass of their own, in evaluation mode,
of the network that is exported, so that every method has them and they are those that evaluations see; one view of
each image is used; features are standardised by running statistics, as in the linear probe of MAE (He et al. 2021,
section A.1), and the optimizer is Adam, so that one learning rate serves all networks.

Departures from the protocol `linear`, whose scores are the ones to report: the classifier learns from augmented views
while the network changes, sees each batch once, and has fixed settings.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.distributed.collectives import sum_, world_size
from sslbench.runtime.device import widest_float
from sslbench.train.schedules import cosine

PEAK_LR = 0.1
"""Learning rate at the start of the run, times the root of the number of features."""
_NEW = 0.1  # weight of a batch in the running statistics, as in BatchNorm


class OnlineClassifier(nn.Module):
    """Linear classifier of standardised features; its weights start at zero, so no random number is drawn."""

    mean: Tensor
    variance: Tensor
    batches: Tensor

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(classes, width))
        self.bias = nn.Parameter(torch.zeros(classes))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, features: Tensor) -> Tensor:
        """Return the scores (B, classes) of features (B, width)."""
        standardised = (features.float() - self.mean) * (self.variance + 1e-6).rsqrt()
        return functional.linear(standardised, self.weight, self.bias)

    @torch.no_grad()
    def track(self, features: Tensor) -> None:
        """Update the running statistics by the features (B, width) of all processes; the first ones replace them."""
        x = features.to(widest_float(features.device))
        moments = sum_(torch.stack([x.mean(dim=0), x.square().mean(dim=0)])) / world_size()
        variance = (moments[1] - moments[0].square()).clamp_min(0)
        new = torch.where(self.batches == 0, 1.0, _NEW).to(self.mean.dtype)
        self.mean.lerp_(moments[0].float(), new)
        self.variance.lerp_(variance.float(), new)
        self.batches += 1


class OnlineHead:
    """Classifier of the training data's classes on a network that is being pretrained, with its own optimizer.

    Adam without weight decay; the learning rate falls from `PEAK_LR` / sqrt(width) to 0 by half a cosine over the run.

    Attributes:
        network: network that gives the features; never changed.
        view: index of the view that is classified.
        classes: names of the classes.
        classifier: the classifier.
    """

    def __init__(self, network: nn.Module, width: int, classes: Sequence[str], device: torch.device, view: int) -> None:
        """Build the classifier on its device.

        `network`: network that gives features (B, width).
        """
        self.network, self.classes, self.view = network, tuple(classes), view
        self.classifier = OnlineClassifier(width, len(self.classes)).to(device)
        self._rate = cosine(PEAK_LR / width**0.5, 0.0)
        self._optimizer = torch.optim.Adam(self.classifier.parameters())

    def add_gradient(self, views: Sequence[Tensor], labels: Tensor, share: float) -> None:
        """Add the gradient of a forward pass; call it in the precision (autocast) of training.

        `views`: normalised views of the batch, each (B, C, h, w); `labels`: int64 (B,), class numbers.
        """
        with torch.no_grad(), _evaluation_mode(self.network):
            features = self.network(views[self.view])
        self.classifier.track(features)
        with torch.autocast(labels.device.type, enabled=False):
            loss = functional.cross_entropy(self.classifier(features), labels)
            (loss * share).backward()  # type: ignore[no-untyped-call]

    def update(self, progress: float) -> None:
        """Apply the gradients of all processes, and clear them.

        `progress`: progress of the run, in [0, 1).
        """
        gradients = [p.grad for p in self.classifier.parameters() if p.grad is not None]
        if world_size() > 1:
            together = sum_(torch.cat([gradient.flatten() for gradient in gradients])) / world_size()
            parts = torch.split(together, [gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate(progress)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint; it is the same on all processes."""
        classifier = {name: tensor.detach().cpu() for name, tensor in self.classifier.state_dict().items()}
        return {"classifier": classifier, "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self.classifier.load_state_dict(state["classifier"])
        self._optimizer.load_state_dict(state["optimizer"])


@contextlib.contextmanager
def _evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Set every module to evaluation mode during a block, then to its own mode again."""
    training = [module for module in network.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
