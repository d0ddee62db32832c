"""Recognition of published RegNets by the names and shapes of their tensors; others are named by the user."""

import re
from collections.abc import Mapping

from sslbench.weights.reading.model_config import NO_CONFIG, ModelConfig

_Sizes = tuple[tuple[int, ...], tuple[int, ...], int]
_X: Mapping[_Sizes, str] = {
    ((1, 1, 4, 7), (24, 56, 152, 368), 8): "002",
    ((1, 2, 7, 12), (32, 64, 160, 384), 16): "004",
    ((1, 2, 7, 12), (32, 64, 160, 400), 16): "004_tv",
    ((1, 3, 5, 7), (48, 96, 240, 528), 24): "006",
    ((1, 3, 7, 5), (64, 128, 288, 672), 16): "008",
    ((2, 4, 10, 2), (72, 168, 408, 912), 24): "016",
    ((2, 6, 15, 2), (96, 192, 432, 1008), 48): "032",
    ((2, 5, 14, 2), (80, 240, 560, 1360), 40): "040",
    ((2, 4, 10, 1), (168, 392, 784, 1624), 56): "064",
    ((2, 5, 15, 1), (80, 240, 720, 1920), 80): "080",
    ((2, 5, 11, 1), (224, 448, 896, 2240), 112): "120",
    ((2, 6, 13, 1), (256, 512, 896, 2048), 128): "160",
    ((2, 7, 13, 1), (336, 672, 1344, 2520), 168): "320",
}
"""Blocks and channels of each stage, and channels of a group -> timm's word; without squeeze-excitation."""
_Y: Mapping[_Sizes, str] = {
    ((1, 1, 4, 7), (24, 56, 152, 368), 8): "002",
    ((1, 3, 6, 6), (48, 104, 208, 440), 8): "004",
    ((1, 3, 7, 4), (48, 112, 256, 608), 16): "006",
    ((1, 3, 8, 2), (64, 128, 320, 768), 16): "008",
    ((1, 3, 8, 2), (64, 144, 320, 784), 16): "008_tv",
    ((2, 6, 17, 2), (48, 120, 336, 888), 24): "016",
    ((2, 5, 13, 1), (72, 216, 576, 1512), 24): "032",
    ((2, 6, 12, 2), (128, 192, 512, 1088), 64): "040",
    ((2, 7, 14, 2), (144, 288, 576, 1296), 72): "064",
    ((2, 4, 10, 1), (168, 448, 896, 2016), 56): "080",
    ((2, 4, 10, 1), (224, 448, 896, 2016), 56): "080_tv",
    ((2, 5, 11, 1), (224, 448, 896, 2240), 112): "120",
    ((2, 4, 11, 1), (224, 448, 1232, 3024), 112): "160",
    ((2, 5, 12, 1), (232, 696, 1392, 3712), 232): "320",
    ((2, 5, 12, 1), (328, 984, 1968, 4920), 328): "640",
    ((2, 7, 17, 1), (528, 1056, 2904, 7392), 264): "1280",
}
"""The same with squeeze-excitation."""
_KNOWN = re.compile(
    r"(?:stem|s\d\.b\d+\.(?:conv[123]|downsample))\.(?:conv\.weight|bn\.\w+)|s\d\.b\d+\.se\.fc[12]\.(?:weight|bias)"
)


def recognise_regnet(
    shapes: Mapping[str, tuple[int, ...]], config: ModelConfig = NO_CONFIG, weights: str = ""
) -> str | None:
    """Return the name, for `--backbone`, of the RegNet with these tensors; None for other networks.

    >>> recognise_regnet({"conv1.weight": (64, 3, 7, 7)})

    Args:
        shapes: canonical name -> shape, without the classifier.
        config: configuration beside the file.
        weights: name of the file.

    Raises:
        BackboneError: the configuration is of another network.
    """
    if "s1.b1.conv2.conv.weight" not in shapes or not all(_KNOWN.fullmatch(name) for name in shapes):
        return None
    blocks = [found for name in shapes if (found := re.match(r"s(\d)\.b(\d+)\.", name))]
    depths = tuple(max((int(b[2]) for b in blocks if int(b[1]) == stage), default=0) for stage in range(1, 5))
    widths = tuple(shapes.get(f"s{stage}.b1.conv3.conv.weight", (0,))[0] for stage in range(1, 5))
    group, gated = shapes["s1.b1.conv2.conv.weight"][1], "s1.b1.se.fc1.weight" in shapes
    word, stem = (_Y if gated else _X).get((depths, widths, group)), shapes.get("stem.conv.weight", (0, 0))
    if word is None:
        return None
    name = f"timm:regnet{'y' if gated else 'x'}_{word}" + (f",in_chans={stem[1]}" if stem[1] != 3 else "")
    shown = {"model_type": frozenset(("regnet",)), "num_channels": stem[1], "embedding_size": stem[0]}
    shown |= {"hidden_sizes": widths, "depths": depths, "groups_width": group, "layer_type": "y" if gated else "x"}
    config.compare(shown, weights, name)
    config.require({"hidden_act": "relu", "downsample_in_first_stage": True})
    return name
