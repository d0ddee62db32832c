"""Backbones with random weights by name: ResNets, AlexNets, timm models, a user's own module, raw pixels."""

import dataclasses
import traceback
from collections.abc import Callable
from typing import Any

import timm
import torch
from torch import Tensor, nn

from sslbench import names
from sslbench.backbones import alexnet, resnet
from sslbench.backbones.backbone import Backbone, copied
from sslbench.backbones.timm_models import build_timm, check_recorded_options, is_timm_name
from sslbench.config import build as build_dataclass
from sslbench.errors import BackboneError, UsageError
from sslbench.preprocessing import Preprocessing

PIXELS_SIZE = 32

RESNET_LAYERS = {
    "conv1": "relu",
    "res1": "maxpool",
    "res2": "layer1",
    "res3": "layer2",
    "res4": "layer3",
    "res5": "layer4",
    "res5avg": "avgpool",
}
# VISSL's linear benchmark pools each layer to about 9,000 numbers (Goyal et al. 2019, section 6 and appendix).
# Its configurations give these for ResNets of bottleneck blocks: width multiplier -> layer -> pool.
VISSL_POOLS: dict[float, dict[str, str]] = {
    1: {"conv1": "avg(10,10,4)", "res2": "avg(16,8)", "res3": "avg(13,5)", "res4": "avg(8,3)", "res5": "avg(6,1)"},
    2: {
        "conv1": "avg(20,13,4)",
        "res2": "avg(32,8)",
        "res3": "avg(13,7)",
        "res4": "avg(8,6)",
        "res5": "adaptive(2,1)",
    },
    4: {
        "conv1": "adaptive(6,6)",
        "res2": "adaptive(3,3)",
        "res3": "adaptive(2,2)",
        "res4": "adaptive(1,2)",
        "res5": "adaptive(1,1)",
    },
}

VISSL_LAST_STRIDE_1 = {"res5": "avg(12,2)"}
"""Pools of its colorization networks where they differ."""

_CIFAR = Preprocessing(32, (32, 32), origin="CIFAR stem: images of 32 x 32, ImageNet's mean and std")


class Pixels(nn.Module):
    """Resized image as a vector: the pixel floor."""

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, 3 * H * W), channel by channel."""
        return images.flatten(1)


def build(name: str, *, seed: int = 0) -> Backbone:
    """Return a backbone with random weights, frozen and in eval mode; nothing is downloaded.

    Args:
        name: 'resnet50', 'resnext50_32x4d', 'resnet50w2', 'resnet18_cifar', 'alexnet_bvlc', ...; a timm name, as it is
            or after 'timm:'; the user's 'module:callable'; 'pixels', 'pixels:SIZE' or 'pixels:native'. ResNets and
            timm's models take images of another number of channels: 'resnet50,in_chans=13'. ResNets besides:
            'resnet50,zero_init_residual=true'.
        seed: of the random weights; the global random state is restored.

    Raises:
        UsageError: no such name or option; the message gives the nearest names.
        BackboneError: the user's callable fails or returns something else than a module.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        backbone = _build(name)
    backbone.module.eval().requires_grad_(False)
    return backbone


def check_recorded(name: str, where: str, *, numbers: int) -> None:
    """Refuse a backbone that a weights file names unless it is one of sslbench's or timm's that the file could fill.

    A network is laid out without memory for its values before one is built.

    Args:
        name: as the file has it, or as its tensors show.
        where: the file and its key.
        numbers: how many numbers the file's tensors hold.

    Raises:
        BackboneError: the name stands for Python code, has an option that is not taken from files, is unknown, or is
            that of a network much larger than the file.
    """
    head, colon, rest = name.partition(":")
    if colon and head not in ("timm", "pixels"):
        raise BackboneError(
            f"{where} names the Python code '{name}', which is not run because a file says so",
            f"If you trust it, name it yourself: --backbone {name}",
        )
    spec = resnet.parse(name)
    if spec is not None and sum(spec.layers) > _MOST_BLOCKS:
        raise BackboneError(f"{where}: {name} has {sum(spec.layers)} blocks; at most {_MOST_BLOCKS} are built")
    try:
        if head == "timm":
            check_recorded_options(rest, where)
        with torch.device("meta"):
            module = _build(name).module
    except UsageError as error:
        raise BackboneError(f"{where}: {error.message}", error.remedy) from error
    except Exception as error:  # sizes that do not go together fail anywhere in timm
        raise BackboneError(f"{where}: {name} cannot be built: {type(error).__name__}: {error}") from error
    check_size(module, f"{where}: {name}", numbers=numbers)


def check_size(module: nn.Module, what: str, *, numbers: int) -> None:
    """Refuse a network laid out on the meta device that is much larger than the file whose numbers would fill it.

    Raises:
        BackboneError: it is.
    """
    needed = sum(tensor.numel() for tensor in module.state_dict().values())
    if needed > _MUCH_LARGER * numbers + _ALWAYS_BUILT:
        raise BackboneError(
            f"{what} has {needed:,} numbers, and the file holds {numbers:,}",
            "If the network is right and most of it should stay untrained, name it: --backbone NAME --allow-partial.",
        )


_MOST_BLOCKS = 1000
_MUCH_LARGER = 8
_ALWAYS_BUILT = 50_000_000  # numbers: what a network of usual size takes in memory harms nobody


def _build(name: str) -> Backbone:
    head, colon, rest = name.partition(":")
    if head == "pixels":
        return _build_pixels(rest if colon else str(PIXELS_SIZE))
    if head == "timm" and colon:
        return build_timm(rest)
    if colon and not _is_hub_name(name):
        return _build_users(name)
    if (spec := resnet.parse(name)) is not None:
        return _build_resnet(spec)
    if name in alexnet.NAMES:
        return _build_alexnet(name)
    _refuse_options(name)
    if is_timm_name(name):
        return build_timm(name)
    remedy = names.did_you_mean(name, {*resnet.NAMES, *alexnet.NAMES, "pixels", *timm.list_models()})
    if _is_hub_name(name):
        remedy = "Nothing is downloaded: give the architecture as --backbone timm:NAME and the file as --weights."
    raise UsageError(f"there is no backbone '{name}'", remedy)


def _refuse_options(name: str) -> None:
    """Refuse options that a ResNet or AlexNet of sslbench does not have; timm's may have the same name."""
    base, comma, options = name.partition(",")
    if comma and (resnet.parse(base) is not None or base in alexnet.NAMES):
        own = "in_chans=4, last_stride=1, stride_in_1x1=true and zero_init_residual=true"
        has = "none" if base in alexnet.NAMES else f"{own}: {base},in_chans=4"
        timms = f" The options of timm's: timm:{name}." if is_timm_name(base) else ""
        raise UsageError(f"'{options}' is no option of {base}", f"It has {has}.{timms}")


def _is_hub_name(name: str) -> bool:
    return name.startswith(("hf-hub:", "hf_hub:", "local-dir:", "hf:", "http:", "https:"))


def _build_resnet(spec: resnet.ResNetSpec) -> Backbone:
    pools = VISSL_POOLS.get(spec.width / 64, {}) if spec.block == "bottleneck" and spec.stem == "imagenet" else {}
    if pools and spec.last_stride == 1:
        pools = pools | VISSL_LAST_STRIDE_1
    usual = _CIFAR if spec.stem == "cifar" else Preprocessing(origin="torchvision default")
    return Backbone(
        name=spec.name,
        builder="resnet",
        module=resnet.ResNet(spec),
        preprocessing=usual.for_channels(spec.channels),
        aliases=RESNET_LAYERS,
        default_layer="res5avg",
        vissl_pools=pools | ({"res5avg": ""} if pools else {}),
    )


def _build_alexnet(name: str) -> Backbone:
    spec = alexnet.SPECS.get(name)
    return Backbone(
        name=name,
        builder="alexnet",
        module=alexnet.create(name),
        preprocessing=spec.preprocessing if spec else Preprocessing(origin="torchvision default"),
        aliases=alexnet.aliases(name),
        default_layer="flatten",
        vissl_pools=spec.pools if spec else {},
    )


def _build_pixels(size: str) -> Backbone:
    if size != "native" and not (size.isdecimal() and int(size) > 0):
        raise UsageError(
            f"'pixels:{size}' is not a size", "Write pixels, pixels:SIZE (such as pixels:32) or pixels:native."
        )
    side = None if size == "native" else (int(size), int(size))
    return Backbone(
        name=f"pixels:{size}",
        builder="pixels",
        module=Pixels(),
        preprocessing=Preprocessing(side, None, "bilinear", (0.0,) * 3, (1.0,) * 3, origin="pixels"),
        aliases={"pixels": ""},
        default_layer="pixels",
    )


def _build_users(spec: str) -> Backbone:
    target = names.find_object(spec)
    if not callable(target):
        raise UsageError(f"'{spec}' is a {type(target).__name__}, not a function that builds a backbone")
    module = _call(spec, target)
    backbone = from_module(spec, module, users_preprocessing(spec, module))
    return dataclasses.replace(backbone, builder="module")


def from_module(name: str, module: nn.Module, preprocessing: Preprocessing) -> Backbone:
    """Return a backbone around a module that is in memory; it has to be frozen and in eval mode."""
    return Backbone(
        name=name, builder="memory", module=module, preprocessing=preprocessing, aliases={}, default_layer="output"
    )


def untrained_copy(backbone: Backbone, seed: int) -> Backbone | None:
    """Return the same network with every part initialised anew by PyTorch's own rules, for modules in memory.

    Returns:
        None if there are no parameters, or one belongs to a part that cannot initialise itself: it has no
        `reset_parameters`.
    """
    module = copied(backbone.module)
    left = {id(parameter) for parameter in module.parameters()}
    if not left:
        return None
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        for part in module.modules():
            reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
            if callable(reset):
                reset()
                left -= {id(parameter) for parameter in part.parameters(recurse=False)}
    if left:
        return None
    return dataclasses.replace(backbone, module=module.eval().requires_grad_(False), report=None, format=None)


def _call(spec: str, target: Callable[[], Any]) -> nn.Module:
    if isinstance(target, nn.Module):
        raise UsageError(
            f"'{spec}' is a module already", f"Give a function that returns it: lambda: {spec.split(':')[1]}"
        )
    try:
        module = target()
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error}"
        raise BackboneError(f"calling '{spec}()' failed at {frame.filename}, line {frame.lineno}: {reason}") from error
    if not isinstance(module, nn.Module):
        raise BackboneError(f"'{spec}()' returned a {type(module).__name__}, not a torch.nn.Module")
    return module


def users_preprocessing(spec: str, module: nn.Module) -> Preprocessing:
    """Return what a user's module says in its attribute 'preprocessing'; ImageNet's usual one where it has none.

    Raises:
        BackboneError: the attribute is neither a dict nor a `Preprocessing`.
        UsageError: a key or value is wrong, or the resized images do not fill a crop that was not asked for.
    """
    given = getattr(module, "preprocessing", None)
    if given is None:
        return Preprocessing(origin=f"ImageNet default ({spec} has no attribute 'preprocessing')")
    if isinstance(given, Preprocessing):
        return given
    if not isinstance(given, dict):
        raise BackboneError(
            f"the attribute 'preprocessing' of {spec} is a {type(given).__name__}",
            "Make it a dict with the keys of sslbench.preprocessing.Preprocessing.",
        )
    used = build_dataclass(Preprocessing, {"origin": f"{spec}.preprocessing", **given}, where=f"{spec}.preprocessing")
    if "resize" in given and "crop" not in given:
        used.refuse_unfilled_crop()
    return used
