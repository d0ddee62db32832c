"""Layers by name: `LAYER[:POOL]`, tapped with hooks in one forward pass.

LAYER is a name of the backbone's own table (`res4`, `features`), any module path (`layer3.2.conv1`, `blocks.11`),
`PATH@input` for the input of that module (`fc@input`), or `output` for the output of the backbone. `head`, `head.0`,
`predictor.2` are layers of the heads that a weights file has (`sslbench.weights.heads`), on the backbone's output.
`concat(A,B)` are the features of several layers, one after the other.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sslbench.backbones.backbone import Backbone, copied, probe_images
from sslbench.backbones.layer_spec import JOIN, Pool, parse_layer, parse_pool
from sslbench.backbones.pools import Tokens, apply_pool
from sslbench.errors import BackboneError, UsageError
from sslbench.names import did_you_mean
from sslbench.weights.formats.schema import HEAD_NAMES
from sslbench.weights.heads import widths

log = logging.getLogger("sslbench")


@dataclasses.dataclass(frozen=True)
class Layer:
    """One named feature of a backbone.

    Attributes:
        text: name in results and feature stores, `res4:avg(8,3)`.
        path: module path; '' is the backbone itself.
        side: side of the module that is taken, output or input.
        pool: None is the default for the shape of the output.
        head: layers of the file's heads, applied to the backbone's output; None for layers of the backbone.
        parts: layers whose features are joined; path, side and pool are then unused. Empty: a single layer.
    """

    text: str
    path: str
    side: Literal["output", "input"] = "output"
    pool: Pool | None = None
    head: nn.Sequential | None = None
    parts: tuple["Layer", ...] = ()

    @property
    def regions(self) -> int:
        """Number of regions of an image, each with a descriptor of its own, in one row of features; usually 1."""
        if self.parts:
            return self.parts[0].regions
        return 1 if self.pool is None else self.pool.regions

    @property
    def flipped(self) -> bool:
        """True where features are means over an image and its mirror image (pool `grid+flip`)."""
        pool = self.parts[0].pool if self.parts else self.pool
        return pool is not None and pool.of_grid and pool.name.endswith("+flip")

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of the regions of the pool `grid`; None for other pools."""
        if self.parts:
            return self.parts[0].grid
        if self.pool is None or not self.pool.of_grid:
            return None
        return int(self.pool.arguments[0]), int(self.pool.arguments[1])


def single_layers(layers: Sequence[Layer]) -> list[Layer]:
    """Return the layers to tap, each once: the given ones, and the parts of joined ones."""
    return list({part.text: part for layer in layers for part in layer.parts or (layer,)}.values())


def resolve_layers(backbone: Backbone, specs: Sequence[str], *, tokens: bool = False) -> tuple[Layer, ...]:
    """Return the layers of a backbone by name, each once; without names, the default layer.

    `tokens`: accept the pools that keep a vector per token, which only a head that attends to them can use.
    """
    layers = {layer.text: layer for layer in (_resolve(backbone, spec) for spec in specs or [backbone.default_layer])}
    kept = [] if tokens else [each for each in single_layers([*layers.values()]) if each.pool and each.pool.of_tokens]
    if kept:
        raise UsageError(
            f"layer '{kept[0].text}' keeps a vector per token, and features are one per image",
            f"Name {kept[0].text.partition(':')[0]}, with head=attentive in linear-online or finetune.",
        )
    whole = backbone.kind.users and any(layer.path == "" for layer in single_layers(tuple(layers.values())))
    if whole and (last := last_linear(backbone)):
        log.warning(
            f"{backbone.name} returns the output of its last linear layer '{last}', probably class scores. "
            f"To evaluate the features before it: --layers {last}@input"
        )
    return tuple(layers.values())


def _resolve(backbone: Backbone, spec: str) -> Layer:
    written = parse_layer(spec)
    if written.parts:
        parts = tuple(_resolve(backbone, part) for part in written.parts)
        if len({part.text for part in parts}) < len(parts) or any(part.parts or part.regions > 1 for part in parts):
            raise UsageError(f"layer '{spec}' should join different single layers, none of them by regions")
        text = f"{JOIN}{','.join(part.text for part in parts)})"
        return Layer(text, " + ".join(part.path or "output" for part in parts), parts=parts)
    name, path, pool = written.name, written.path, written.pool
    at = name != path  # PATH@input
    modules = {path for path, _ in backbone.module.named_modules() if path}
    names = {"output": "", **backbone.aliases}
    heads = head_layers(backbone)
    if path not in modules | set(names) and path in heads:
        if at or pool:
            raise UsageError(f"layer '{spec}': a layer of a head takes neither @input nor a pool", f"Write {path}.")
        return Layer(path, "", head=heads[path])
    if path not in modules | set(names):
        if names_head(path):
            remedy = f"It has: {', '.join(heads)}." if heads else "The weights file has no head of known layers."
            raise BackboneError(f"{backbone.name} has no layer '{path}' in a head", remedy)
        raise BackboneError(f"{backbone.name} has no layer '{path}'", did_you_mean(path, modules | set(names)))
    # `conv1@input` refers to the module conv1 if there is one: aliases name outputs.
    target = path if (at and path in modules) or path not in names else names[path]
    if at and not target:
        raise BackboneError(f"'{name}' is the input image itself", "Use --weights pixels for raw pixels.")
    if pool is not None and pool.name == "vissl":
        pool = _vissl_pool(backbone, name)
    elif pool is not None and pool.needs_file_power:
        if backbone.gem_power is None:
            raise BackboneError(
                f"layer '{spec}': the weights have no learnt power of GeM",
                "Give a number: gem(3). Files of cirtorch have a learnt one.",
            )
        pool = dataclasses.replace(pool, arguments=(backbone.gem_power,))
    text = f"{name}:{pool}" if pool else name
    return Layer(text, target, "input" if at else "output", pool)


def names_head(text: str) -> bool:
    """Return whether a layer may be one of a file's heads: 'head.0', 'predictor'.

    >>> names_head("head.0"), names_head("res5:avg"), names_head("header")
    (True, False, False)
    """
    return text.partition(":")[0].strip().partition(".")[0] in HEAD_NAMES


def head_layers(backbone: Backbone) -> dict[str, nn.Sequential]:
    """Return name -> the heads up to this layer: 'head.0', ..., 'head' for all of it, then 'predictor.0', ..."""
    found, before = dict[str, nn.Sequential](), list[nn.Module]()
    for name, head in backbone.heads.items():
        for number, layer in enumerate(head):
            before.append(layer)
            found[f"{name}.{number}"] = nn.Sequential(*before)
        found[name] = nn.Sequential(*before)
    return found


def _vissl_pool(backbone: Backbone, name: str) -> Pool | None:
    if name not in backbone.vissl_pools:
        has = ", ".join(backbone.vissl_pools)
        remedy = (
            f"It is defined for: {has}."
            if has
            else "It is defined for ResNets of bottleneck blocks with the 7x7 stem, widths 1, 2, 4."
        )
        raise BackboneError(f"VISSL defines no pool for layer '{name}' of {backbone.name}", remedy)
    text = backbone.vissl_pools[name]
    return parse_pool(text) if text else None


def forward_layers(module: nn.Module, images: Tensor, layers: Sequence[Layer]) -> dict[str, Tensor]:
    """Compute the features of all layers in one forward pass.

    They are pooled inside the hooks: a later in-place operation (ReLU) cannot change them, and no map is kept.

    images: (B, 3, H, W), normalised.
    -> text of each layer -> (B, D) float32, on the device of `images`.
    """
    # Parts of joined layers are tapped once, however many layers share them.
    taps = single_layers(layers)
    taken: dict[str, list[Tensor]] = {layer.text: [] for layer in taps}

    def pool(layer: Layer, value: Any) -> None:
        value, tokens = map_of(module, layer, value, images)
        features = apply_pool(value, layer.pool, tokens, layer=layer.text)
        if layer.head is not None:
            try:
                features = layer.head(features)
            except RuntimeError as error:
                width, _ = widths(layer.head)
                raise BackboneError(
                    f"layer '{layer.text}': the head takes {width} numbers, the backbone returns {features.shape[1]}",
                    "The head belongs to another backbone; evaluate the backbone's own layers.",
                ) from error
        taken[layer.text].append(features)

    with hooked(module, taps, pool):
        run(module, images)
    for layer in taps:
        if (times := len(taken[layer.text])) != 1:
            tapped = f"layer '{layer.text}' (module '{layer.path}')"
            raise BackboneError(
                f"{tapped} ran {times} times in one forward pass: it is shared"
                if times
                else f"{tapped} did not run in the forward pass, or not through its own call",
                f"Name the enclosing module, or the input{'' if times else ' or output'} of the next one: PATH@input.",
            )
    return {
        # One after the other within each region.
        layer.text: torch.cat(
            [taken[part.text][0].reshape(len(images), layer.regions, -1) for part in layer.parts], dim=2
        ).flatten(1)
        if layer.parts
        else taken[layer.text][0]
        for layer in layers
    }


def feature_widths(backbone: Backbone, layers: Sequence[Layer]) -> list[int]:
    """Return the number of features of each layer, from a forward pass of noise."""
    with torch.no_grad():
        features = forward_layers(backbone.module, probe_images(backbone.preprocessing), layers)
    return [features[layer.text].shape[1] for layer in layers]


def relative_difference(got: Tensor, wanted: Tensor) -> float:
    """Return the largest difference as a fraction of the largest value; infinite for other shapes."""
    if got.shape != wanted.shape:
        return float("inf")
    # Where all values are 0 the quotient would be NaN.
    scale = wanted.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
    return float((got - wanted).abs().max() / scale)


def run(module: nn.Module, images: Tensor) -> None:
    """Run the module on images for its hooks."""
    try:
        module(images)
    except (BackboneError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        shape = "x".join(map(str, images.shape))
        reason = f"{type(error).__name__}: {str(error).strip() or 'no message'}"
        raise BackboneError(
            f"the backbone fails on images of shape {shape} ({images.dtype}): {reason}",
            "If it needs another size, set the crop; a vision transformer of timm takes images of any size with "
            "--backbone timm:NAME,dynamic_img_size=True,dynamic_img_pad=True; if it needs float32, use precision fp32.",
        ) from error


@contextlib.contextmanager
def hooked(module: nn.Module, layers: Sequence[Layer], take: Callable[[Layer, Any], None]) -> Iterator[None]:
    """Call `take` with the value of each layer during forward passes; the hooks are removed at the end."""
    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.callback(_hook(module.get_submodule(layer.path), layer, take).remove)
        yield


def _hook(module: nn.Module, layer: Layer, take: Callable[[Layer, Any], None]) -> torch.utils.hooks.RemovableHandle:
    if layer.side == "output":
        return module.register_forward_hook(lambda _, args, output: take(layer, output))
    # With keywords: transformers' modules get their input as hidden_states=...
    return module.register_forward_pre_hook(
        lambda _, args, kwargs: take(layer, next(iter((*args, *kwargs.values())), None)), with_kwargs=True
    )


def map_of(root: nn.Module, layer: Layer, value: Any, images: Tensor) -> tuple[Tensor, Tokens]:
    """Return a layer's value as (B, C, H, W), (B, N, C) or (B, D), and the layout of its tokens."""
    if not isinstance(value, Tensor):
        raise BackboneError(
            f"layer '{layer.text}' gives a {type(value).__name__}, not a tensor",
            "Name a layer inside it, or the input of the next one: PATH@input.",
        )
    if value.ndim < 2 or value.shape[0] != images.shape[0]:
        raise BackboneError(
            f"layer '{layer.text}' gives shape {tuple(value.shape)} for {len(images)} images",
            "The first dimension must be the images: name another layer.",
        )
    if value.ndim == 4 and _channels_last(root, layer, value, images):
        value = value.permute(0, 3, 1, 2)
    return value, token_layout(root, layer.path, value)


def _channels_last(root: nn.Module, layer: Layer, x: Tensor, images: Tensor) -> bool:
    """Return whether a 4-D output is (B, H, W, C), as in Swin and MambaOut.

    Square images give square maps, which shows in the shape alone; otherwise timm's own declaration counts, except for
    modules that exist for (B, C, H, W) only.
    """
    _, a, b, c = x.shape
    if images.shape[2] == images.shape[3] and (a == b) != (b == c):
        return a == b
    target = root.get_submodule(layer.path)
    if isinstance(target, nn.Conv2d | nn.BatchNorm2d | nn.MaxPool2d | nn.AvgPool2d):
        return False
    return str(getattr(root, "output_fmt", "NCHW")) == "NHWC"


def token_layout(root: nn.Module, path: str, x: Tensor) -> Tokens:
    """Return the token layout at a module, declared by it or by the nearest enclosing module.

    timm's models have `num_prefix_tokens`; others a parameter `cls_token`, and `num_register_tokens` (DINOv2).
    """
    parts = path.split(".") if path else []
    for length in range(len(parts), -1, -1):
        owner = root.get_submodule(".".join(parts[:length]))
        has_class = isinstance(getattr(owner, "cls_token", None), Tensor)
        registers = getattr(owner, "num_register_tokens", 0)
        prefix = getattr(owner, "num_prefix_tokens", has_class + registers if has_class else None)
        if isinstance(prefix, int):
            patches = getattr(getattr(owner, "patch_embed", None), "num_patches", None)
            # CaiT and XCiT add the class token only in their last blocks; before, tokens equal patches in number.
            absent = x.ndim == 3 and x.shape[1] == patches
            return Tokens() if absent or prefix == 0 else Tokens(prefix, has_class)
    return Tokens()


def last_linear(backbone: Backbone) -> str | None:
    """Return the path of the linear layer whose output a user's network returns, as classifiers do; else None."""
    module, seen = copied(backbone.module), dict[str, Tensor]()
    size = backbone.preprocessing.crop or backbone.preprocessing.resize
    height, width = size if isinstance(size, tuple) else (224, 224)
    linears = [Layer(path, path) for path, part in module.named_modules() if isinstance(part, nn.Linear)]
    with (
        torch.inference_mode(),
        hooked(module, [*linears, Layer("", "")], lambda layer, value: seen.update({layer.path: value})),
    ):
        run(module, torch.zeros(1, backbone.preprocessing.channels, height, width))
    return next((path for path, value in seen.items() if path and value is seen[""]), None)
