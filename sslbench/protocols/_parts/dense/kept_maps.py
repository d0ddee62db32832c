"""Maps of training crops, kept in memory where the augmentation repeats crops exactly."""

import hashlib

import torch
from torch import Tensor

from sslbench.data.decode.transforms import normalise
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense.heads import MapEncoder

MOST_BYTES = 2 * 2**30  # of all kept maps


class KeptMaps:
    """Function from crops to their maps, without a second forward pass of a crop.

    Maps are those of the batch in which a crop came first, so a continued run has to see the crops in the same order to
    have them bit for bit. 400 kB are kept for a crop of 224 pixels and a ViT-S/16, 100 kB for a ResNet-18's last map.

    Attributes:
        keeps: maps are kept; False if there is not enough memory for all of them, or if no crop comes twice.
    """

    def __init__(self, encode: MapEncoder, preprocessing: Preprocessing, crops: int | None) -> None:
        """Set up without maps.

        `crops`: number of different crops; None: each is new.
        """
        self.keeps = crops is not None
        self._encode, self._preprocessing, self._crops = encode, preprocessing, crops or 0
        self._maps: dict[bytes, dict[str, Tensor]] = {}

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        """Return the maps of crops, (B, C, h, w) from 0 to 255: name -> (B, c, rows, columns)."""
        if not self.keeps:
            return self._encoded(images)
        keys = [_digest(image) for image in images.cpu()]
        new = {key: row for row, key in enumerate(keys) if key not in self._maps}
        if new:
            encoded = self._encoded(images[list(new.values())])
            if sum(maps[0].nbytes for maps in encoded.values()) * self._crops > MOST_BYTES:
                self.keeps = False
                return self._encoded(images)
            for place, key in enumerate(new):
                self._maps[key] = {name: maps[place].clone() for name, maps in encoded.items()}
        kept = [self._maps[key] for key in keys]
        return {name: torch.stack([maps[name] for maps in kept]) for name in kept[0]}

    def _encoded(self, images: Tensor) -> dict[str, Tensor]:
        return self._encode(normalise(images.to(self._encode.device, non_blocking=True), self._preprocessing))


def _digest(image: Tensor) -> bytes:
    pixels = image.permute(1, 2, 0).contiguous()  # no copy: the channels of a crop are interleaved in memory
    return hashlib.blake2b(pixels.numpy().data, digest_size=16).digest()
