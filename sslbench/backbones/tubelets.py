"""Clips as networks take them, and tubelets: patches of two frames, the tokens of transformers on clips."""

from torch import Tensor, nn

TUBELET = 2


def as_clips(images: Tensor, channels: int, frames: int) -> Tensor:
    """Return clips (B, C, T, H, W) of frames one after the other in the channels, (B, T * C, H, W).

    An image, (B, C, H, W), is shown in every one of the `frames`; clips stay as they are.

    >>> import torch
    >>> as_clips(torch.zeros(2, 4 * 3, 8, 8), 3, 4).shape, as_clips(torch.zeros(2, 3, 8, 8), 3, 4).shape
    (torch.Size([2, 3, 4, 8, 8]), torch.Size([2, 3, 4, 8, 8]))
    """
    if images.ndim == 5:
        return images
    # The number of images stays free in exported networks.
    clips = images.reshape(-1, images.shape[1] // channels, channels, *images.shape[2:]).transpose(1, 2)
    return clips.expand(-1, -1, frames, -1, -1) if clips.shape[2] == 1 else clips


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

        clips: (B, channels, T, H, W), or as `as_clips` takes them.
        """
        clips = as_clips(clips, self.proj.in_channels, self.frames)
        if clips.shape[2:] != (self.frames, *self.img_size):
            given = " x ".join(map(str, clips.shape[2:]))
            raise ValueError(f"clips of {given} are given, and {self.frames} x {self.img_size[0]} x {self.img_size[1]}")
        tokens: Tensor = self.proj(clips).flatten(2).transpose(1, 2)
        return tokens
