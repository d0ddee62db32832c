"""Writes keys/byol_deepmind.txt: what Haiku names the tensors of BYOL's ResNet-50, with their shapes, no weights.

Made from the architecture, without the rename table. Run it from the repository's root: `python
tests/weights/make_haiku_key_list.py`.
"""

import torch
from make_cnn_key_lists import meta
from make_key_lists import Entries, write


def haiku_norm(name: str, *width: int) -> tuple[Entries, Entries]:
    """Parameters and state of a BatchNorm of Haiku, which keeps the dimensions that it averages over."""
    shape = (1,) * (3 if len(width) == 1 else 1) + width[-1:]
    moving = {
        f"{name}/~/{which}_ema/{leaf}": meta(*shape) for which in ("mean", "var") for leaf in ("hidden", "average")
    }
    moving |= {f"{name}/~/{which}_ema/counter": meta(dtype=torch.int32) for which in ("mean", "var")}
    return {f"{name}/{leaf}": meta(*shape) for leaf in ("scale", "offset")}, moving


def haiku_resnet50() -> Entries:
    """Parameters, then state, of `networks.ResNet50` with BYOL's heads, as Haiku names them: convolutions are HWIO."""
    params: Entries = {}
    state: Entries = {}

    def unit(conv: str, norm_name: str, *shape: int) -> None:
        params[f"{conv}/w"] = meta(*shape)
        scale, moving = haiku_norm(norm_name, shape[-1])
        params.update(scale)
        state.update(moving)

    unit("res_net50/~/initial_conv", "res_net50/~/initial_batchnorm", 7, 7, 3, 64)
    inputs = 64
    for group, (blocks, width) in enumerate(((3, 256), (4, 512), (6, 1024), (3, 2048))):
        for block in range(blocks):
            where = f"res_net50/~/block_group_{group}/~/block_{block}/~"
            if block == 0:
                unit(f"{where}/shortcut_conv", f"{where}/shortcut_batchnorm", 1, 1, inputs, width)
            unit(f"{where}/conv_0", f"{where}/batchnorm_0", 1, 1, inputs, width // 4)
            unit(f"{where}/conv_1", f"{where}/batchnorm_1", 3, 3, width // 4, width // 4)
            unit(f"{where}/conv_2", f"{where}/batchnorm_2", 1, 1, width // 4, width)
            inputs = width
    for head, wide in (("projector", 2048), ("predictor", 256)):
        params |= {f"{head}/linear/w": meta(wide, 4096), f"{head}/linear/b": meta(4096)}
        scale, moving = haiku_norm(f"{head}/batch_norm", 1, 4096)
        params |= {**scale, f"{head}/linear_1/w": meta(4096, 256)}
        state |= moving
    return params | {"classifier/w": meta(2048, 1000), "classifier/b": meta(1000)} | state


def main() -> None:
    write("byol_deepmind", "experiment_state.online", haiku_resnet50())


if __name__ == "__main__":
    main()
