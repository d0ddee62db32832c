"""Tubelets: patches of two frames, the tokens of networks on clips."""

from torch import Tensor, nn

TUBELET = 2


class Tubelets(nn.Module):
    """First layer of networks on clips: a vector per tubelet.

    Args:
        side: of the frames, in pixels.
        patch: side of a tubelet.
        channels: of a frame.
        width: of the vectors.
        frames: of a clip, an even number.

    Raises:
        ValueError: an odd number of frames, or sides that are no multiple of the patch.

    >>> import torch
    >>> first = Tubelets(32, 16, 3, 8, 4)
    >>> first(torch.zeros(5, 3, 4, 32, 32)).shape, first(torch.zeros(5, 4 * 3, 32, 32)).shape
    (torch.Size([5, 8, 8]), torch.Size([5, 8, 8]))
    """

    def __init__(self, side: int, patch: int, channels: int, width: int, frames: int) -> None:
        super().__init__()
        if frames < TUBELET or frames % TUBELET or side % patch:
            raise ValueError(
                f"clips of {frames} frames of {side} pixels are not cut into tubelets of {TUBELET} frames of {patch}"
            )
        size = (TUBELET, patch, patch)
        self.proj = nn.Conv3d(channels, width, size, size)
        self.frames, self.img_size, self.strict_img_size = frames, (side, side), True
        self.grid = (frames // TUBELET, side // patch, side // patch)
        self.num_patches = self.grid[0] * self.grid[1] * self.grid[2]

    def forward(self, clips: Tensor) -> Tensor:
        """Return the tokens (B, N, width), frame by frame and row by row.

        clips: (B, channels, T, H, W), or with the frames one after the other in the channels, (B, T * channels, H, W).
            An image, (B, channels, H, W), is shown in every frame.
        """
        if clips.ndim == 4:
            # The number of images stays free in exported networks.
            frames = clips.shape[1] // self.proj.in_channels
            clips = clips.reshape(-1, frames, self.proj.in_channels, *clips.shape[2:]).transpose(1, 2)
            if clips.shape[2] == 1:
                clips = clips.expand(-1, -1, self.frames, -1, -1)
        if clips.shape[2:] != (self.frames, *self.img_size):
            given = " x ".join(map(str, clips.shape[2:]))
            raise ValueError(f"clips of {given} are given, and {self.frames} x {self.img_size[0]} x {self.img_size[1]}")
        tokens: Tensor = self.proj(clips).flatten(2).transpose(1, 2)
        return tokens
