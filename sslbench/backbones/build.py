"""From a name to a backbone with random weights: ResNets, AlexNets, timm models, a user's own module, raw pixels."""

import dataclasses
import hashlib
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from sslbench import names
from sslbench.backbones import alexnet, resnet
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.timm_models import build_timm, is_timm_name
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
    """The floor: the resized image itself as a vector."""

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 3 * H * W), channel by channel."""
        return images.flatten(1)


def build(name: str, *, seed: int = 0) -> Backbone:
    """A backbone with random weights, frozen and in eval mode; nothing is downloaded.

    Args:
        name: 'resnet50', 'resnext50_32x4d', 'resnet50w2', 'resnet18_cifar', 'alexnet_bvlc', ...; a timm name, as it is
            or after 'timm:'; the user's 'module:callable'; 'pixels', 'pixels:SIZE' or 'pixels:native'. ResNets and
            timm's models take images of another number of channels: 'resnet50,in_chans=13'.
        seed: of the random weights, which depend on nothing else; the global random state is left alone.

    Raises:
        UsageError: no such name or option; the message gives the nearest names.
        BackboneError: the user's callable fails or returns something else than a module.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        backbone = _build(name)
    backbone.module.eval().requires_grad_(False)
    return backbone


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
    """Without 'timm:', 'resnet50' is sslbench's own also where timm has a network of that name."""
    base, comma, options = name.partition(",")
    if comma and (resnet.parse(base) is not None or base in alexnet.NAMES):
        has = (
            "none" if base in alexnet.NAMES else f"in_chans=4, last_stride=1 and stride_in_1x1=true: {base},in_chans=4"
        )
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
        identity={"builder": "resnet"},
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
        identity={"builder": "alexnet"},
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
        identity={"builder": "pixels"},
    )


def _build_users(spec: str) -> Backbone:
    target = names.find_object(spec)
    if not callable(target):
        raise UsageError(f"'{spec}' is a {type(target).__name__}, not a function that builds a backbone")
    module = _call(spec, target)
    backbone = from_module(spec, module, _users_preprocessing(spec, module))
    return dataclasses.replace(backbone, identity={"builder": "module", "source": _source_hash(target, module)})


def from_module(name: str, module: nn.Module, preprocessing: Preprocessing) -> Backbone:
    """A backbone around a module that is in memory already; it has to be frozen and in eval mode."""
    return Backbone(
        name=name,
        builder="module",
        module=module,
        preprocessing=preprocessing,
        aliases={},
        default_layer="output",
        identity={"builder": "module", "source": _source_hash(type(module), module)},
    )


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


def _users_preprocessing(spec: str, module: nn.Module) -> Preprocessing:
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
    from sslbench.config import build as build_dataclass

    return build_dataclass(Preprocessing, {"origin": f"{spec}.preprocessing", **given}, where=f"{spec}.preprocessing")


def _source_hash(target: Any, module: nn.Module) -> str:
    """Hash of the files that define a user's module: its builder, the classes of its parts that no library defines."""
    libraries = {"torch", "torchvision", "timm"}
    objects = [target, *{type(part) for part in module.modules()}]
    files = set()
    for thing in objects:
        if getattr(thing, "__module__", "").partition(".")[0] not in libraries:
            try:
                files.add(inspect.getfile(thing))
            except (TypeError, OSError):  # a builtin, a partial, something typed into an interpreter
                continue
    contents = sorted(hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files if Path(file).is_file())
    return hashlib.sha256("".join(contents).encode()).hexdigest()[:32] if contents else "unknown"
