"""DINOv3's rotary periods and biases of its keys, which timm computes or leaves out, as a file has them."""

from collections.abc import Mapping

from torch import Tensor, nn

from sslbench.weights.positions import MASKED_BIASES, PERIODS, with_masked_biases

_BIASES = ("attn.q_bias", "attn.k_bias", "attn.v_bias")


def fit_rotary(tensors: Mapping[str, Tensor], module: nn.Module) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the tensors for a vision transformer with rotary positions, and a description of each change.

    The authors' files hold the periods of the rotation, rounded to bfloat16, and biases of the keys. Both take part in
    the outputs as they are in the file: `module` gets persistent buffers for them. Biases that are all zero, as in most
    of the published networks, are left out where `module` has none. Other networks are left alone.

    Args:
        tensors: canonical name -> tensor; not changed.
        module: the backbone; changed.
    """
    fitted = with_masked_biases(tensors)
    for name, part in module.named_modules():
        for kind in ("k_bias", PERIODS.rpartition(".")[2]):
            buffer = part._buffers.get(kind)
            if buffer is not None and f"{name}.{kind}" in fitted:
                part.register_buffer(kind, buffer, persistent=True)
    notes = [MASKED_BIASES] if len(fitted) < len(tensors) else []
    biases = [name for name in fitted if name.endswith(_BIASES)]
    known = module.state_dict().keys()
    if biases and not any(name in known or bool(fitted[name].any()) for name in biases):
        fitted = {name: tensor for name, tensor in fitted.items() if name not in biases}
        notes.append("biases of queries, keys and values, which are all zero, left out")
    return fitted, tuple(notes)
