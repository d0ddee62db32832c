"""Supervised classification, for comparison with self-supervised methods.

Images with several labels are trained as in VISSL, with a binary classifier for each label. Losses of torch, heads of
several layers, on several layers of the backbone and for several columns of a table (multi-task) are settings.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from sslbench.backbones.layers import Layer, forward_layers
from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.methods._parts.heads import LOSSES, Head, TorchLoss, column_target, find_loss
from sslbench.methods._parts.losses import cross_entropy, multi_label_loss, top1
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import Target
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step
from sslbench.train.views import make_mix

_OUTPUT = Layer("output", "")


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of supervised training."""

    label_smoothing: float = setting(0.0, "fraction of the target spread over all classes", within="[0, 1)")
    mixup: float = setting(0.0, "alpha of mixup; 0: none", within="[0, inf)")
    cutmix: float = setting(
        0.0, "alpha of CutMix; 0: none. With mixup too, each batch has one of them", within="[0, inf)"
    )
    loss: str = setting(
        "", f"loss of torch: {', '.join(LOSSES)}; '': cross entropy, or binary cross entropy of several labels"
    )
    loss_options: dict[str, Any] | None = setting(
        None, "arguments of the loss by name, {label_smoothing: 0.1}", needs="loss"
    )
    heads: tuple[Head, ...] = setting(
        (), "heads on layers, for the labels or columns of a table; none: a linear layer on the output"
    )


class Method(method.Method[Config]):
    """Linear classifier of the data's classes on the backbone; of several labels per image by binary cross entropy.

    With `heads` the loss is the sum of theirs, each by its weight.
    """

    config_type = Config
    needs = Needs("supervised", views=1)
    saved_head = "head"
    has_classifier = True

    @classmethod
    def check_config(cls, config: Config) -> None:
        """Refuse losses that do not exist, and settings that have no effect beside others."""
        smoothed = ["label_smoothing"] if config.label_smoothing else []
        mixed = [name for name in ("mixup", "cutmix") if getattr(config, name)]
        own = {"heads": smoothed + mixed + (["loss"] if config.loss else []), "loss": smoothed}
        for key in ("heads", "loss"):
            if getattr(config, key) and own[key]:
                raise UsageError(
                    f"supervised: {own[key][0]} has no effect with {key}",
                    "Give each head its loss." if key == "heads" else "Write loss_options={label_smoothing: ...}.",
                )
        each: tuple[Config | Head, ...] = (config, *config.heads)
        for head in each:
            if head.loss:
                find_loss(head.loss, head.loss_options)
        # Labels of mixed images are shares of classes.
        only = nn.CrossEntropyLoss.__name__
        if mixed and config.loss not in ("", only):
            raise UsageError(
                f"supervised: {mixed[0]} needs {only}, not {config.loss}", f"Leave {mixed[0]} out, or take {only}."
            )
        names = [head.name for head in config.heads]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UsageError(f"supervised: two heads have the target and layer {twice}", "Leave one of them out.")

    @classmethod
    def columns(cls, config: Config) -> tuple[str, ...]:
        """Return the columns that are targets of heads."""
        return tuple(dict.fromkeys(head.target for head in config.heads if head.target))

    @classmethod
    def layers(cls, config: Config) -> tuple[str, ...]:
        """Return the layers of the backbone that have heads."""
        return tuple(dict.fromkeys(head.layer for head in config.heads if head.layer))

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a single view, and labels as the loss of each head takes them."""
        cls.check_config(config)
        own = MultiLabel if setup.targets is not None else Classes
        if all(head.target for head in config.heads) and config.heads:
            return
        if setup.classes < 2 and setup.targets is None:
            raise UsageError(
                "supervised training needs images of several labels, or of one of at least two classes each",
                "Give labelled data (one folder per class, or a table with a label column), or use another method.",
            )
        for name in ("label_smoothing", "mixup", "cutmix"):
            if setup.targets is not None and getattr(config, name):
                raise UsageError(
                    f"supervised: {name} has no effect on images of several labels", "Leave it out, or set it to 0."
                )
        each: tuple[Config | Head, ...] = (config, *(head for head in config.heads if not head.target))
        for head in each:
            taken = LOSSES[head.loss] if head.loss else own
            if taken is not own:
                fitting = ", ".join(name for name, kind in LOSSES.items() if kind is own)
                raise UsageError(
                    f"supervised: {head.loss} takes {taken.title}, and the data have {own.title}",
                    f"Losses of theirs: {fitting}." + (" Numbers are a column: target=." if taken is Numbers else ""),
                )

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        classes = setup.classes if setup.targets is None else setup.targets.shape[1]
        self.targets = setup.targets
        self._layers = setup.layers
        self._columns: dict[str, Tensor] = {}
        self._mix = make_mix(config.mixup, config.cutmix, classes)
        if not config.heads:
            self.head = nn.Linear(setup.feature_dim, classes)
            self.criterion = TorchLoss(config.loss, config.loss_options, classes) if config.loss else None
            return
        self.networks, self.criteria = nn.ModuleList(), nn.ModuleList()
        for head in config.heads:
            width, outputs, kind = setup.feature_dim, classes, _kind(head, setup)
            if head.layer:
                _, width = setup.layers[head.layer]
            if head.target:
                self._columns[head.name], outputs = column_target(head.target, setup.columns[head.target], kind)
            self.networks.append(head.network(width, outputs))
            self.criteria.append(TorchLoss(head.loss, head.loss_options, outputs) if head.loss else nn.Identity())

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the cross entropy with label smoothing, or the binary cross entropy of several labels.

        Losses of torch, and the weighted sum of several heads, are used where the settings name them.
        """
        images, labels = batch.views[0], batch.labels
        if self.config.heads:
            return self._of_heads(batch)
        if self._mix is not None and labels is not None:
            images, labels = self._mix(images, labels)
        features = self.backbone(images)
        logits = self.head(features)
        embeddings = features.detach().float()
        # Images with several labels: a batch has one number for each image, so their rows are looked up.
        if self.targets is not None:
            targets = self.targets[batch.indices].to(logits.device)
            return Loss((self.criterion or multi_label_loss)(logits, targets), embeddings)
        if labels is None:
            raise UsageError("supervised training received a batch without labels")
        smoothing = self.config.label_smoothing
        value = cross_entropy(logits, labels, smoothing) if self.criterion is None else self.criterion(logits, labels)
        return Loss(value, embeddings, {} if labels.is_floating_point() else {"top1": top1(logits, labels)})

    def _of_heads(self, batch: Batch) -> Loss:
        """Return the weighted sum of the losses of the heads, with each of them in the log."""
        images = batch.views[0]
        if self._layers:
            tapped = (_OUTPUT, *{layer.text: layer for layer, _ in self._layers.values()}.values())
            found = forward_layers(self.backbone, images, tapped)
            features = {"": found[_OUTPUT.text], **{name: found[each.text] for name, (each, _) in self._layers.items()}}
        else:
            features = {"": self.backbone(images)}
        value, parts = torch.zeros((), device=images.device), dict[str, Tensor]()
        for head, network, criterion in zip(self.config.heads, self.networks, self.criteria, strict=True):
            outputs = network(features[head.layer])
            if head.target:
                targets = self._columns[head.name][batch.indices].to(outputs.device)
            elif self.targets is not None:
                targets = self.targets[batch.indices].to(outputs.device)
            elif batch.labels is not None:
                targets = batch.labels
            else:
                raise UsageError("supervised training received a batch without labels")
            usual = multi_label_loss if targets.ndim == 2 else cross_entropy
            own = criterion(outputs, targets) if head.loss else usual(outputs, targets)
            value = value + head.weight * own
            parts[f"loss_{head.name}"] = own.detach()
            if targets.ndim == 1 and not targets.is_floating_point():
                known = targets >= 0  # a column may have empty cells
                parts[f"top1_{head.name}"] = top1(outputs, targets) * len(known) / known.sum().clamp(min=1)
        return Loss(value, features[""].detach().float(), parts)

    def compile_networks(self, **options: Any) -> None:
        """Compile the networks; refuse heads on layers, whose values are taken by hooks."""
        if self._layers:
            raise UsageError(
                "compile=true has no hooks for heads on layers of the backbone",
                "Leave it out, or `layer` of the heads.",
            )
        super().compile_networks(**options)

    def heads(self, exported: str) -> dict[str, nn.Module]:
        """Return the classifier of the data's labels on the output, if there is one."""
        if not self.config.heads:
            return super().heads(exported)
        several = zip(self.config.heads, self.networks, strict=True)
        own = next((network for head, network in several if not head.layer and not head.target), None)
        return {} if own is None else {"head": own}


def _kind(head: Head, setup: Setup) -> type[Target]:
    """Return the kind of targets of a head; of a column classes, or numbers if its loss takes them."""
    if not head.target:
        return MultiLabel if setup.targets is not None else Classes
    kind = LOSSES[head.loss] if head.loss else Classes
    if kind is MultiLabel:
        raise UsageError(
            f"supervised: {head.loss} takes {kind.title}, and a column has a class or number each",
            f"Losses of columns: {', '.join(name for name, own in LOSSES.items() if own is not MultiLabel)}.",
        )
    return kind
