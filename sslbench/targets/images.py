"""Images of samples, as every format provides them and everything else reads them."""

from typing import Protocol

import numpy as np
import numpy.typing as npt


class Images(Protocol):
    """N images that can be read in any order, from any process (an implementation must be picklable)."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
        """Return the encoded file, or for images that are arrays already uint8 (H, W) or (H, W, channels).

        Raises:
            OSError: the file cannot be read.
        """
        ...

    def path(self, index: int) -> str:
        """Return the name of an image in messages and in index.csv: its file, else a text such as 'digits[17]'."""
        ...

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes: a hash of each image's content. Cheap when nothing changed since the last call."""
        ...

    def select(self, indices: npt.NDArray[np.int64]) -> "Images":
        """Return the images at `indices`, in that order."""
        ...
