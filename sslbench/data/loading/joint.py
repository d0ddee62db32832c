"""Images together with a target for every pixel: augmented crops for training, whole images for scoring.

Both halves are resized, cropped, mirrored and rotated alike: images bilinearly, targets by the nearest pixel. The order
is drawn from (seed, epoch), a crop from (seed, epoch, index), so the position in the stream is the only state to save.

The steps are those of MMSegmentation, which DINOv2 and DINOv3 use: resize by a random factor, crop that no class
fills, flip, photometric distortion (Liu et al., "SSD", ECCV 2016, section 3.2). Differences: images are resized with
antialiasing, the label of a pixel is that nearest to its centre, and images smaller than the crop are padded with
`fill` before their colours are normalised.
"""

import dataclasses
import functools
from collections.abc import Callable, Generator, Iterator
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms.v2 import InterpolationMode, functional

from sslbench.arrays import IntArray
from sslbench.data.decode.handlers import DEFAULT, PictureDecoder, Reading, picture_decoder
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.decode.transforms import resize_and_crop
from sslbench.data.loading import loader
from sslbench.data.loading.batch import as_trained, start_worker, training_decoder
from sslbench.data.loading.kept import KeptSamples, keeping
from sslbench.data.loading.loader import Unreadable
from sslbench.data.source import Source
from sslbench.data.views import MapColours
from sslbench.data.workers import Computed, run
from sslbench.errors import SslbenchError
from sslbench.preprocessing import Preprocessing
from sslbench.runtime.resources import StartMethod

PixelTarget = npt.NDArray[np.float32]
"""(k, H, W); a pixel without a target is nan."""
ReadTarget = Callable[[Source, int, tuple[int, int]], PixelTarget]
"""Function from a source, a position in it and the height and width of its upright image to its target; picklable."""
Mirrored = Callable[[Tensor], Tensor]
"""Function that corrects the values of a flipped map (..., k, H, W): the x of surface normals changes its sign."""
Pixels = npt.NDArray[np.uint8] | npt.NDArray[np.float32]
"""(h, w, C), float32 from 0 to 255."""

_ORDER, _CROPS = 0, 4  # random streams, apart from those of other loaders
_TRIES = 10  # crops drawn until no class fills one, as in MMSegmentation


def unchanged(x: Tensor) -> Tensor:
    """Return the values as they are."""
    return x


@dataclasses.dataclass(frozen=True)
class JointView:
    """Augmented crop of an image and its target.

    Attributes:
        crop: height and width.
        short_side: that of the resized image before `resize_range`; None: the image's own.
        resize_range: range of a random factor of its size.
        most_of_one: a crop in which one value of the target fills a larger share of the known pixels is drawn again, up
            to ten times; 1.0: any crop.
        flip: probability of a horizontal flip.
        rotation: images are rotated by up to so many degrees, half of them; what comes into view is unknown.
        colours: 'photometric': SSD's brightness, contrast, saturation and hue, each on half of the images; 'gamma':
            gamma 0.9 to 1.1, brightness 0.75 to 1.25 and colours 0.9 to 1.1 on half of the images (Lee et al., BTS).
        interpolation: filter of the images' resize.
        region: left, top, right and bottom of the part of the image that is used; None: all.
        fill: value of padding, per channel, 0 to 255.
    """

    crop: tuple[int, int]
    short_side: int | None = None
    resize_range: tuple[float, float] = (1.0, 1.0)
    most_of_one: float = 1.0
    flip: float = 0.5
    rotation: float = 0.0
    colours: MapColours = "none"
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"
    region: tuple[int, int, int, int] | None = None
    fill: tuple[float, ...] = (0.0, 0.0, 0.0)


@dataclasses.dataclass(frozen=True)
class JointBatch:
    """Batch of crops.

    Attributes:
        images: (B, C, h, w), uint8 or float32 from 0 to 255, channels interleaved in memory.
        targets: float32 (B, k, h, w), nan where unknown.
        indices: int64 (B,), positions in the source.
        unreadable: images that could not be read; the batch is then empty.
    """

    images: Tensor
    targets: Tensor
    indices: Tensor
    unreadable: tuple[Unreadable, ...] = ()

    def pin_memory(self) -> "JointBatch":
        """Return the batch in page-locked memory (called by torch's DataLoader)."""
        return dataclasses.replace(self, images=self.images.pin_memory(), targets=self.targets.pin_memory())


@dataclasses.dataclass(frozen=True)
class WholeImage:
    """Resized image with its target at the image's own size.

    Attributes:
        index: position in the source.
        image: (1, C, h, w), uint8 or float32 from 0 to 255.
        target: (k, H, W), nan where unknown.
        unreadable: the image, if it could not be read; the others are then empty.
    """

    index: int
    image: Tensor
    target: PixelTarget
    unreadable: tuple[Unreadable, ...] = ()

    def pin_memory(self) -> "WholeImage":
        """Return the image in page-locked memory (called by torch's DataLoader)."""
        return dataclasses.replace(self, image=self.image.pin_memory())


@dataclasses.dataclass(frozen=True)
class JointBatches(Dataset[JointBatch | SslbenchError]):
    """Batches of crops of a source, over the ends of epochs: every image is seen once before any is seen again.

    As a data set, those from `start` on. Errors are returned, since DataLoader would raise tracebacks.

    Attributes:
        source: images with targets.
        read: reader of a target.
        view: augmentation.
        batch_size: crops of a batch.
        seed: of order and augmentation.
        mirrored: correction of a flipped target.
        workers: processes that read.
        reading: settings of the decoding.
        channels: of the images.
        start: first batch.
        stop: batch after the last one.
        kept: decoded pictures and targets of earlier epochs; None: all are decoded each time.
    """

    source: Source
    read: ReadTarget
    view: JointView
    batch_size: int = dataclasses.field(kw_only=True)
    seed: int = dataclasses.field(kw_only=True)
    mirrored: Mirrored = unchanged
    workers: int = 0
    reading: Reading = DEFAULT
    channels: int = 3
    start: int = 0
    stop: int = 0
    kept: KeptSamples | None = None
    decoder: PictureDecoder = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        # Before workers are forked, which share what it has loaded.
        object.__setattr__(self, "decoder", training_decoder(self.source.images, self.reading, self.channels))

    def batches(self, start: int, stop: int) -> Generator[JointBatch]:
        """Iterate over the batches start, ..., stop - 1; each depends on its number and the seed alone."""
        again = (stop - start) * self.batch_size > len(self.source)
        with keeping(len(self.source), workers=self.workers, again=again) as kept:
            part = dataclasses.replace(self, start=start, stop=stop, kept=kept)
            yield from run(part, self.workers, start=start_worker, start_method=self.reading.start_method)

    def __len__(self) -> int:
        return self.stop - self.start

    def decode(self, index: int) -> tuple[Tensor, Tensor]:
        """Return an image and its target before the augmentation."""
        image = as_trained(loader.read(self.source.images, index, self.decoder).image, self.channels)
        return image, torch.from_numpy(self.read(self.source, index, (image.shape[1], image.shape[2])))

    def __getitem__(self, item: int) -> JointBatch | SslbenchError:
        if item >= len(self):
            raise IndexError(item)
        n = len(self.source)
        first = (self.start + item) * self.batch_size
        places = [divmod(place, n) for place in range(first, first + self.batch_size)]
        chosen = [(epoch, int(_order(self.seed, epoch, n)[place])) for epoch, place in places]
        pairs: list[tuple[Tensor, Tensor]] = []
        try:
            for epoch, index in chosen:
                image, target = self.decode(index) if self.kept is None else self.kept.sample(index, self.decode)
                # By image and epoch, so a run that continues draws what it would have drawn.
                draw = np.random.default_rng((_CROPS, self.seed, epoch, index))
                pairs.append(augmented(image, target, self.view, draw, self.mirrored))
        except UnreadableImage as error:
            empty = torch.empty(0)
            return JointBatch(empty, empty, empty, ((index, error.path, error.reason),))
        except SslbenchError as error:
            return error
        images = (
            [image.float() for image, _ in pairs] if len({p.dtype for p, _ in pairs}) > 1 else [p for p, _ in pairs]
        )
        return JointBatch(
            torch.stack([image.permute(1, 2, 0) for image in images]).permute(0, 3, 1, 2),
            torch.stack([target for _, target in pairs]),
            torch.tensor([index for _, index in chosen]),
        )


def whole_images(
    source: Source, read: ReadTarget, preprocessing: Preprocessing, *, workers: int, start_method: StartMethod = "auto"
) -> Iterator[WholeImage]:
    """Iterate over all images in order, resized as the preprocessing says, with targets at their own sizes."""
    decoder = picture_decoder(preprocessing, source.images)
    whole = functools.partial(_whole_image, source, read, preprocessing, decoder)
    return run(Computed(whole, range(len(source))), workers, start_method=start_method)


def _whole_image(
    source: Source, read: ReadTarget, preprocessing: Preprocessing, decoder: PictureDecoder, index: int
) -> WholeImage:
    try:
        decoded = loader.read(source.images, index, decoder)
        size = decoded.full or (int(decoded.image.shape[1]), int(decoded.image.shape[2]))
        target = read(source, index, size)
        return WholeImage(index, resize_and_crop(decoded.image, preprocessing, decoded.full)[None], target)
    except UnreadableImage as error:
        missing = ((index, error.path, error.reason),)
    except ValueError as error:
        missing = ((index, source.images.path(index), str(error)),)
    return WholeImage(index, torch.empty(0), np.empty((0, 0, 0), np.float32), missing)


# Two, since a batch may reach over the end of an epoch.
@functools.lru_cache(maxsize=2)
def _order(seed: int, epoch: int, n: int) -> IntArray:
    return np.random.default_rng((_ORDER, seed, epoch)).permutation(n)


def augmented(
    image: Tensor, target: Tensor, view: JointView, draw: np.random.Generator, mirrored: Mirrored = unchanged
) -> tuple[Tensor, Tensor]:
    """Return one crop of an image and its target.

    `image`: (C, H, W), uint8 or float32 from 0 to 255; `target`: float32 (k, H, W), nan where unknown.

    >>> image, target = torch.zeros(3, 8, 8, dtype=torch.uint8), torch.zeros(1, 8, 8)
    >>> view = JointView(crop=(4, 6), short_side=8, resize_range=(0.5, 2.0))
    >>> [tuple(x.shape) for x in augmented(image, target, view, np.random.default_rng(0))]
    [(3, 4, 6), (1, 4, 6)]
    """
    if view.region is not None:
        left, top, right, bottom = view.region
        image, target = image[:, top:bottom, left:right], target[:, top:bottom, left:right]
    height, width = int(image.shape[1]), int(image.shape[2])
    scale = draw.uniform(*view.resize_range) * (1 if view.short_side is None else view.short_side / min(height, width))
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    if size != (height, width):
        image = resize_and_crop(image, Preprocessing(resize=size, crop=None, interpolation=view.interpolation))
        # torch's "nearest" rounds down, which moves the target by up to half a pixel against the image.
        target = torch.nn.functional.interpolate(target[None], size, mode="nearest-exact")[0]
    angle = draw.uniform(-view.rotation, view.rotation) if view.rotation and draw.random() < 0.5 else 0.0
    if angle:
        fill = list(view.fill[: image.shape[0]])
        image = functional.rotate(image, angle, interpolation=InterpolationMode.BILINEAR, fill=fill)
        target = functional.rotate(target, angle, interpolation=InterpolationMode.NEAREST, fill=float("nan"))
    image, target = _cropped(image, target, view, draw)
    if draw.random() < view.flip:
        image, target = image.flip(2), mirrored(target.flip(2))
    if view.colours != "none":
        change = _photometric if view.colours == "photometric" else _gamma
        pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
        image = torch.from_numpy(np.ascontiguousarray(change(pixels, draw))).permute(2, 0, 1)
    return image, target.contiguous()


def _cropped(image: Tensor, target: Tensor, view: JointView, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return a random crop; images that are too small are padded at their right and lower edge."""
    height, width = view.crop
    tall, wide = int(image.shape[1]), int(image.shape[2])
    for _ in range(_TRIES):
        top, left = (int(draw.integers(0, max(have - want, 0) + 1)) for have, want in ((tall, height), (wide, width)))
        rows, columns = slice(top, top + height), slice(left, left + width)
        if view.most_of_one >= 1 or _largest_share(target[0, rows, columns]) < view.most_of_one:
            break
    image, target = image[:, rows, columns], target[:, rows, columns]
    missing = (height - image.shape[1], width - image.shape[2])
    if not any(missing):
        return image, target
    padded = torch.empty((image.shape[0], height, width), dtype=image.dtype)
    padded[:] = torch.tensor(view.fill[: image.shape[0]]).to(image.dtype)[:, None, None]
    padded[:, : image.shape[1], : image.shape[2]] = image
    edges = (0, missing[1], 0, missing[0])
    return padded, torch.nn.functional.pad(target, edges, value=float("nan"))


def _largest_share(values: Tensor) -> float:
    """Return the share of the most frequent value among the known ones; 1 if there is only one, or none."""
    counts = torch.bincount(values[~values.isnan()].long())
    counts = counts[counts > 0]
    return float(counts.max() / counts.sum()) if len(counts) > 1 else 1.0


def _photometric(pixels: Pixels, draw: np.random.Generator) -> Pixels:
    """Return SSD's distortion of (h, w, 3) as MMSegmentation has it, with the hue of OpenCV's 180 steps."""
    coins, contrast_first = draw.random(4) < 0.5, draw.random() < 0.5
    brightness, contrast = draw.uniform(-32, 32), draw.uniform(0.5, 1.5)
    saturation, hue = draw.uniform(0.5, 1.5), int(draw.integers(-18, 18))
    if coins[0]:
        pixels = _linear(pixels, 1.0, brightness)
    if coins[1] and contrast_first:
        pixels = _linear(pixels, contrast, 0.0)
    if pixels.shape[2] == 3 and pixels.dtype == np.uint8 and (coins[2] or coins[3]):
        hsv = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV).astype(np.int32)
        if coins[2]:
            hsv[..., 1] = np.clip(hsv[..., 1] * saturation, 0, 255)
        if coins[3]:
            hsv[..., 0] = (hsv[..., 0] + hue) % 180
        pixels = np.asarray(cv2.cvtColor(hsv.astype(np.uint8), cv2.COLOR_HSV2RGB), dtype=np.uint8)
    if coins[1] and not contrast_first:
        pixels = _linear(pixels, contrast, 0.0)
    return pixels


def _gamma(pixels: Pixels, draw: np.random.Generator) -> Pixels:
    """Return the colours of BTS: gamma, then brightness, then a factor per channel, on half of the images."""
    coin, gamma, brightness = draw.random() < 0.5, draw.uniform(0.9, 1.1), draw.uniform(0.75, 1.25)
    factors = brightness * draw.uniform(0.9, 1.1, pixels.shape[2])
    if not coin:
        return pixels
    shares: npt.NDArray[np.float32] = np.power(pixels.astype(np.float32) / 255, np.float32(gamma))
    return _within_range((255 * shares * factors).astype(np.float32), pixels)


def _linear(pixels: Pixels, factor: float, offset: float) -> Pixels:
    return _within_range(pixels.astype(np.float32) * np.float32(factor) + np.float32(offset), pixels)


def _within_range(changed: npt.NDArray[np.float32], pixels: Pixels) -> Pixels:
    """Return changed values from 0 to 255 in the type of the pixels."""
    clipped = np.clip(changed, 0, 255)
    return clipped.astype(np.uint8) if pixels.dtype == np.uint8 else clipped.astype(np.float32)
