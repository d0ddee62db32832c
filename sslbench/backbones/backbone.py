"""Backbone: a frozen module with its preprocessing and the names of its layers."""

import copy
import dataclasses
import functools
from collections.abc import Mapping

from torch import Tensor, nn

from sslbench import user_code
from sslbench.backbones import module_identity
from sslbench.errors import BackboneError
from sslbench.preprocessing import Preprocessing
from sslbench.weights.fill import LoadReport, tensors_sha256
from sslbench.weights.formats.schema import InputImages
from sslbench.weights.heads import heads_sha256


@dataclasses.dataclass(frozen=True)
class Kind:
    """Facts about the networks of a family that do not show in a module.

    Attributes:
        options: options that a name takes, of those that sslbench sets itself: in_chans, img_size, last_stride.
        tags: a name may have a tag of timm ('vit_base_patch16_224.augreg'), to which a preprocessing belongs.
        pixels: the images themselves: there are no weights.
        users: a module of the user's code, with its own preprocessing; known by its code, not by a library's version.
        in_memory: it was passed from Python and cannot be built again by its name.
    """

    options: frozenset[str] = frozenset()
    tags: bool = False
    pixels: bool = False
    users: bool = False
    in_memory: bool = False


@dataclasses.dataclass(frozen=True, repr=False)
class Backbone:
    """Network that maps images to features. `module` never changes after loading.

    Attributes:
        name: name on the command line ('resnet50', 'timm:vit_small_patch14_dinov2', 'my_nets:resnet20').
        kind: facts about the networks of its family.
        module: in eval mode, without gradients, on the CPU; takes (B, 3, H, W), normalised, or as many
            channels as the preprocessing has.
        preprocessing: evaluation transform, unless the user gives another.
        aliases: name of a layer -> module path ('' is the output of the whole module).
        default_layer: layer used without --layers.
        versions: of the libraries that define the architecture.
        vissl_pools: alias -> the pool VISSL's linear benchmark uses there, for backbones it has a table for.
        classifiers: module paths of the classifiers that were left out; tensors below them in a file belong to heads.
        heads: heads of the weights file by name, in the order of the forward pass; empty unless they were asked for.
        gem_power: learnt power of GeM in the weights file; None if it has none.
        stems: module paths of the convolutions applied to the image; () is the first convolution.
        usual_input: images that such networks are usually trained on, where that is not `preprocessing`.
        report: loaded, missing and ignored tensors; None for random weights.
        format: format of the weights file; None for random weights.
        untrained: True if the parameters are as initialised.
        calibration: preprocessed images (B, C, H, W) that decide the ranges of int8; None: not to be computed in it.
    """

    name: str
    kind: Kind
    module: nn.Module
    preprocessing: Preprocessing
    aliases: Mapping[str, str]
    default_layer: str
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    vissl_pools: Mapping[str, str] = dataclasses.field(default_factory=dict)
    classifiers: tuple[str, ...] = ()
    heads: Mapping[str, nn.Sequential] = dataclasses.field(default_factory=dict)
    gem_power: float | None = None
    stems: tuple[str, ...] = ()
    usual_input: InputImages | None = None
    report: LoadReport | None = None
    format: str | None = None
    untrained: bool = False
    calibration: Tensor | None = None

    def __repr__(self) -> str:
        """Return name, parameters, layers, and the share of tensors that came from the file."""
        count = sum(parameter.numel() for parameter in self.module.parameters())
        loaded = f", loaded {self.report.loaded} of {self.report.total} tensors" if self.report is not None else ""
        layers = ", ".join(self.aliases)
        return f"Backbone {self.title}: {count:,} parameters{loaded}; layers {layers}, default {self.default_layer}"

    @property
    def title(self) -> str:
        """Name in messages, which tell the network from its untrained floor."""
        return f"{self.name} untrained" if self.untrained else self.name

    @functools.cached_property
    def weights_sha256(self) -> str:
        """Hash of all tensors, independent of file format and order; computed on first use (0.1 s for a ResNet-50)."""
        return tensors_sha256(self.module.state_dict())

    @functools.cached_property
    def identity(self) -> dict[str, str]:
        """Identity of the forward pass besides name and tensors, with that of the heads, if there are any."""
        return {**self.own_identity, **({"heads": heads_sha256(self.heads)} if self.heads else {})}

    @functools.cached_property
    def own_identity(self) -> dict[str, str]:
        """Identity of the forward pass up to the heads; empty for sslbench's own networks.

        Versions of libraries; for a user's module digests of code, structure and outputs, which take two forward passes
        on one image.
        """
        classes = {type(part) for part in self.module.modules()}
        if not self.kind.users and all(map(user_code.is_library, classes)):
            return dict(self.versions)
        return module_identity.identify(self.module, self.preprocessing, self.name)

    @functools.cached_property
    def calibration_sha256(self) -> str:
        """Hash of the images that decide the ranges of int8; '' without them."""
        return "" if self.calibration is None else tensors_sha256({"": self.calibration})

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
