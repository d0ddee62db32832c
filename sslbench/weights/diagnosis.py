"""Why weights do not fit: guesses from names and shapes alone, for the message that refuses them."""

import re
from collections.abc import Mapping, Sequence

Shapes = Mapping[str, tuple[int, ...]]

_RESNETS: Mapping[tuple[tuple[int, ...], bool], str] = {
    ((2, 2, 2, 2), False): "resnet18",
    ((3, 4, 6, 3), False): "resnet34",
    ((3, 4, 6, 3), True): "resnet50",
    ((3, 4, 23, 3), True): "resnet101",
    ((3, 8, 36, 3), True): "resnet152",
}
_LAYER_SCALE = re.compile(r"(?:^|\.)(?:ls\d\.gamma|gamma(?:_?\d)?|lambda\d|layer_scale\w*(?:\.lambda1)?)$")


def likely_cause(file: Shapes, backbone: Shapes, *, missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """One sentence on what probably is wrong; '' when nothing sensible can be said.

    Args:
        file: canonical name -> shape of the tensors in the file.
        backbone: name -> shape of the tensors in the module.
        missing: names in the backbone only.
        unexpected: names in the file only.
    """
    return (
        _prefix(file, backbone, missing, unexpected)
        or _layer_scale(missing, unexpected)
        or _architecture(file, backbone)
        or _closest_rename(file, backbone, missing, unexpected)
    )


def describe(shapes: Shapes) -> str:
    """An architecture in words, from names and shapes: 'a resnet50', 'a ViT of 12 blocks, width 384, patch 16'."""
    stages: dict[int, set[int]] = {}
    blocks = set()
    for name in shapes:
        if found := re.match(r"layer(\d+)\.(\d+)\.conv1\.weight$", name):
            stages.setdefault(int(found[1]), set()).add(int(found[2]))
        if found := re.match(r"blocks\.(\d+)\.attn\.", name):
            blocks.add(int(found[1]))
    if stages:
        depths = tuple(len(stages[stage]) for stage in sorted(stages))
        bottleneck = any(re.match(r"layer\d+\.\d+\.conv3\.weight$", name) for name in shapes)
        known = _RESNETS.get((depths, bottleneck))
        first = shapes.get("layer1.0.conv1.weight", ())
        width = f" (first block of width {first[0]})" if first and first[0] != 64 else ""
        kind = "bottleneck" if bottleneck else "basic"
        tail = width + _stem(shapes.get("conv1.weight", ()))
        return f"a {known}{tail}" if known else f"a ResNet of {'-'.join(map(str, depths))} {kind} blocks{tail}"
    if blocks:
        patch = shapes.get("patch_embed.proj.weight", ())
        tail = f", width {patch[0]}, patch {patch[-1]}{_for_channels(patch[1])}" if len(patch) == 4 else ""
        return f"a ViT of {len(blocks)} blocks{tail}"
    return ""


def _stem(shape: tuple[int, ...]) -> str:
    """What is unusual about the first convolution of a ResNet."""
    if len(shape) != 4:
        return ""
    kernel = "x".join(map(str, shape[2:]))
    return (f" with a {kernel} stem" if kernel != "7x7" else "") + _for_channels(shape[1])


def _for_channels(count: int) -> str:
    return "" if count == 3 else f" for images of {count} channel{'s' if count > 1 else ''}"


def _prefix(file: Shapes, backbone: Shapes, missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """Names that would fit if their beginning were taken away, or put in front."""
    if not missing or not unexpected:
        return ""
    lacking, extra = backbone.keys() - file.keys(), set(unexpected)
    for name in unexpected[:3]:
        segments = name.split(".")
        for cut in range(1, len(segments)):
            prefix = ".".join(segments[:cut]) + "."
            fits = sum(other.removeprefix(prefix) in lacking for other in extra if other.startswith(prefix))
            if 2 * fits > len(lacking):
                return f"{fits} names in the file fit once '{prefix}' at their beginning is taken away"
    for name in missing[:3]:
        segments = name.split(".")
        for cut in range(1, len(segments)):
            prefix = ".".join(segments[:cut]) + "."
            fits = sum(other.removeprefix(prefix) in extra for other in lacking if other.startswith(prefix))
            if 2 * fits > len(lacking):
                return f"{fits} names in the file fit once '{prefix}' is put in front"
    return ""


def _layer_scale(missing: Sequence[str], unexpected: Sequence[str]) -> str:
    if unexpected and all(_LAYER_SCALE.search(name) for name in unexpected):
        return "The file has LayerScale, the backbone has none: the weights are of another variant of it"
    if missing and all(_LAYER_SCALE.search(name) for name in missing):
        return "The backbone has LayerScale, the file has none: the weights are of another variant of it"
    return ""


def _architecture(file: Shapes, backbone: Shapes) -> str:
    here, there = describe(file), describe(backbone)
    if here and there and here != there:
        return f"The weights are of {here}, the backbone is {there}"
    return ""


def _closest_rename(file: Shapes, backbone: Shapes, missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """The pair of a missing and an unexpected name of one shape whose ends agree longest."""
    best: tuple[int, str, str] = (0, "", "")
    for wanted in missing[:20]:
        for name in unexpected[:2000]:
            if file[name] == backbone[wanted]:
                best = max(best, (_shared_end(wanted, name), wanted, name), key=lambda pair: pair[0])
    return f"Closest by shape and name: '{best[2]}' in the file for '{best[1]}'" if best[0] else ""


def _shared_end(a: str, b: str) -> int:
    """Number of dotted segments at the end that agree."""
    count = 0
    for left, right in zip(reversed(a.split(".")), reversed(b.split(".")), strict=False):
        if left != right:
            break
        count += 1
    return count
