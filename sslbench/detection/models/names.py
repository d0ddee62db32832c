"""Translation of a detector's tensor names to and from Detectron2's."""

from collections.abc import Mapping

from torch import Tensor

from sslbench.errors import WeightsError
from sslbench.weights.formats.tables import load_table

_COUNTER = ".num_batches_tracked"
_PYRAMID, _TRUNK, _RES5 = "backbone.bottom_up.", "backbone.", "roi_heads.res5."
_RES5_NORM = f"{_RES5}norm."
# not learnt: further tensors of some Detectron2 files
_BESIDE = ("pixel_mean", "pixel_std", "proposal_generator.anchor_generator.")


def to_detectron2(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a detector's state under Detectron2's names, as its own checkpointer loads it.

    Counters of BatchNorm are left out, as Detectron2's frozen norm has none.

    Raises:
        WeightsError: the backbone is no ResNet: Detectron2's vision transformers are other networks than timm's.
    """
    if any(name.startswith("backbone.net.") for name in state):
        raise WeightsError("Detectron2 cannot name the tensors of timm's vision transformers: its own differs")
    pyramid = any(name.startswith(_PYRAMID) for name in state)
    canonical, heads = {}, {}
    for name, tensor in state.items():
        if name.endswith(_COUNTER):
            continue
        own = canonical_name(name, pyramid=pyramid)
        if own is None:
            heads[name] = tensor
        else:
            canonical[own] = tensor
    table = load_table("detectron2" if pyramid else "detectron2_c4")
    renamed = table.from_canonical(canonical, prefix=_PYRAMID if pyramid else None)
    return {**renamed, **heads}


def from_detectron2(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the 'model' of a Detectron2 file under the names of a `Detector`, for `weights.fill`.

    Raises:
        WeightsError: a name of the backbone is not one of Detectron2's ResNet.
    """
    pyramid = any(name.startswith(_PYRAMID) for name in tensors)
    mine: dict[str, Tensor] = {}
    heads: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.startswith(_BESIDE) or name.endswith(_COUNTER):
            continue
        of_backbone = name.startswith(_PYRAMID) if pyramid else name.startswith((_TRUNK, _RES5))
        (mine if of_backbone and not name.startswith(_RES5_NORM) else heads)[name] = tensor
    canonical, _ = load_table("detectron2" if pyramid else "detectron2_c4").to_canonical(mine)
    return {place(name, pyramid=pyramid): tensor for name, tensor in canonical.items()} | heads


def canonical_name(name: str, *, pyramid: bool) -> str | None:
    """Return the canonical name of a backbone tensor; None for one of the heads or the pyramid."""
    if pyramid:
        return name.removeprefix(_PYRAMID) if name.startswith(_PYRAMID) else None
    if name.startswith(_RES5) and not name.startswith(_RES5_NORM):
        return "layer4." + name.removeprefix(_RES5)
    return name.removeprefix(_TRUNK) if name.startswith(_TRUNK) else None


def place(name: str, *, pyramid: bool) -> str:
    """Return the name of a backbone tensor in a detector."""
    if pyramid:
        return _PYRAMID + name
    return _RES5 + name.removeprefix("layer4.") if name.startswith("layer4.") else _TRUNK + name
