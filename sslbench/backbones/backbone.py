"""Backbone: a frozen module with its preprocessing and the names of its layers."""

import copy
import dataclasses
import functools
from collections.abc import Mapping
from typing import Literal

from torch import nn

from sslbench import user_code
from sslbench.backbones import module_identity
from sslbench.errors import BackboneError
from sslbench.preprocessing import Preprocessing
from sslbench.weights.fill import LoadReport, tensors_sha256

Builder = Literal["resnet", "alexnet", "timm", "module", "memory", "pixels"]


@dataclasses.dataclass(frozen=True)
class Backbone:
    """Network that maps images to features. `module` never changes after loading.

    Attributes:
        name: name on the command line ('resnet50', 'timm:vit_small_patch14_dinov2', 'my_nets:resnet20').
        builder: origin of the module; 'module': a callable of the user's, 'memory': a module passed from Python.
        module: in eval mode, without gradients, on the CPU; takes (B, 3, H, W), normalised, or as many
            channels as the preprocessing has.
        preprocessing: evaluation transform, unless the user gives another.
        aliases: name of a layer -> module path ('' is the output of the whole module).
        default_layer: layer used without --layers.
        versions: of the libraries that define the architecture.
        vissl_pools: alias -> the pool VISSL's linear benchmark uses there, for backbones it has a table for.
        heads: module paths of the classifiers that were left out; tensors below them in a file belong to heads.
        stems: module paths of the convolutions applied to the image; () is the first convolution.
        report: loaded, missing and ignored tensors; None for random weights.
        format: format of the weights file; None for random weights.
    """

    name: str
    builder: Builder
    module: nn.Module
    preprocessing: Preprocessing
    aliases: Mapping[str, str]
    default_layer: str
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    vissl_pools: Mapping[str, str] = dataclasses.field(default_factory=dict)
    heads: tuple[str, ...] = ()
    stems: tuple[str, ...] = ()
    report: LoadReport | None = None
    format: str | None = None

    @functools.cached_property
    def weights_sha256(self) -> str:
        """Hash of all tensors, independent of file format and order; computed on first use (0.1 s for a ResNet-50)."""
        return tensors_sha256(self.module.state_dict())

    @functools.cached_property
    def identity(self) -> dict[str, str]:
        """Identity of the forward pass besides name and tensors; empty for sslbench's own networks.

        Versions of libraries; for a user's module digests of code, structure and outputs, which take two forward passes
        on one image.
        """
        classes = {type(part) for part in self.module.modules()}
        if self.builder not in ("module", "memory") and all(map(user_code.is_library, classes)):
            return dict(self.versions)
        return module_identity.identify(self.module, self.preprocessing, self.name)

    @property
    def known(self) -> bool:
        """True if features and results may be stored and found again."""
        return module_identity.UNKNOWN not in self.identity


def copied(module: nn.Module) -> nn.Module:
    """Return a deep copy.

    Raises:
        BackboneError: the module cannot be copied.
    """
    try:
        return copy.deepcopy(module)
    except (RuntimeError, TypeError) as error:
        raise BackboneError(
            f"the backbone ({type(module).__name__}) cannot be copied: {error}",
            "Attributes must survive copy.deepcopy: no open files, generators or tensors computed from parameters.",
        ) from error
