"""Transfer of a backbone's weights to Detectron2's model through a file, checked tensor by tensor."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sslbench.backbones.backbone import Backbone
from sslbench.detection.detectron2.library import load
from sslbench.errors import WeightsError
from sslbench.weights.formats.layout import write
from sslbench.weights.formats.tables import load_table

_COUNTER = ".num_batches_tracked"
_PYRAMID = "backbone.bottom_up."


def load_weights(model: Any, backbone: Backbone) -> str:
    """Load the backbone of Detectron2's model with its own checkpointer, from a file as `convert` writes it.

    Args:
        model: as Detectron2 built it.
        backbone: a ResNet.

    Returns:
        Description of the loaded tensors.

    Raises:
        WeightsError: a tensor differs after loading.
    """
    canonical = {n: t for n, t in backbone.module.state_dict().items() if not n.endswith(_COUNTER)}
    table = load_table("detectron2")
    with tempfile.TemporaryDirectory(prefix="sslbench-") as folder:
        path = Path(folder) / "backbone.pth"
        keys = table.from_canonical(canonical)
        write(
            path, table, keys, heads_beside={}, backbone=backbone.name, note={"tensors_sha256": backbone.weights_sha256}
        )
        load("checkpoint").DetectionCheckpointer(model).load(str(path))
    return check_load(model, canonical)


def check_load(model: Any, canonical: dict[str, Tensor]) -> str:
    """Raise unless the model's tensors equal the given ones bit for bit; Detectron2 itself only warns.

    Raises:
        WeightsError: tensors are missing or differ; the message names the first ones.
    """
    state: dict[str, Tensor] = model.state_dict()
    if any(name.startswith(_PYRAMID) for name in state):
        wanted = {_PYRAMID + key: t for key, t in load_table("detectron2").from_canonical(canonical).items()}
    else:
        wanted = load_table("detectron2_c4").from_canonical(canonical)
    wrong = [name for name, tensor in wanted.items() if not _same(state.get(name), tensor)]
    if wrong:
        listed = ", ".join(f"'{name}'" for name in sorted(wrong)[:3]) + (" ..." if len(wrong) > 3 else "")
        raise WeightsError(
            f"Detectron2 loaded {len(wanted) - len(wrong)} of the {len(wanted)} backbone tensors; missing: {listed}",
            "Its network differs from the backbone: check the d2. keys, or use --backend torchvision.",
        )
    return f"Detectron2 loaded {len(wanted)} of {len(wanted)} backbone tensors, compared bit for bit"


def _same(found: Tensor | None, wanted: Tensor) -> bool:
    return found is not None and found.shape == wanted.shape and torch.equal(found.detach().cpu(), wanted.cpu())
