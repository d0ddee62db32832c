"""What the rest of sslbench knows about a backbone: a frozen module, its preprocessing and the names of its layers."""

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
    """A network that turns images into features. Nothing in sslbench changes `module` after it is loaded.

    Attributes:
        name: what it is called on the command line ('resnet50', 'timm:vit_small_patch14_dinov2', 'my_nets:resnet20').
        builder: where the name leads to; 'module': a callable of the user's, 'memory': nowhere, the module was given.
        module: in eval mode, without gradients, on the CPU; takes (B, 3, H, W), normalised, or as many
            channels as the preprocessing has.
        preprocessing: how its images are made, unless the user says otherwise.
        aliases: name of a layer -> module path ('' is what the module itself returns).
        default_layer: the layer that is taken when none is named.
        versions: of the libraries that define the architecture.
        vissl_pools: alias -> the pool VISSL's linear benchmark uses there, for backbones it has a table for.
        report: what loading did; None for random weights.
        format: whose key names the weights file has; None for random weights.
    """

    name: str
    builder: Builder
    module: nn.Module
    preprocessing: Preprocessing
    aliases: Mapping[str, str]
    default_layer: str
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    vissl_pools: Mapping[str, str] = dataclasses.field(default_factory=dict)
    report: LoadReport | None = None
    format: str | None = None

    @functools.cached_property
    def weights_sha256(self) -> str:
        """Hash of all tensors, independent of file format and order (a ResNet-50 takes 0.1 s, so only when asked)."""
        return tensors_sha256(self.module.state_dict())

    @functools.cached_property
    def identity(self) -> dict[str, str]:
        """Decider of the forward pass besides name and tensors; empty for sslbench's own networks.

        Versions of libraries; for a user's module digests of code, structure and outputs, which take two forward passes
        on one image.
        """
        classes = {type(part) for part in self.module.modules()}
        if self.builder not in ("module", "memory") and all(map(user_code.is_library, classes)):
            return dict(self.versions)
        return module_identity.identify(self.module, self.preprocessing, self.name)

    @property
    def known(self) -> bool:
        """Whether features and results of it may be stored and found again."""
        return module_identity.UNKNOWN not in self.identity


def copied(module: nn.Module) -> nn.Module:
    """A deep copy.

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
