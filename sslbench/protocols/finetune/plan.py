"""Plan of a finetuning run from its settings: samples to train on and batches."""

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torchvision.transforms import v2

from sslbench import paths
from sslbench.arrays import IntArray
from sslbench.data.decode.handlers import Reading
from sslbench.data.groups import source_groups
from sslbench.data.loading.probing import EpochBatches, random_flip
from sslbench.data.source import Source
from sslbench.data.views.ops import make_view
from sslbench.distributed import this_process
from sslbench.errors import DataError, UsageError
from sslbench.features.array import ExtractSettings
from sslbench.names import did_you_mean
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts import few_shot
from sslbench.protocols._parts.selection import held_out_rows, percent
from sslbench.protocols.finetune.settings import Settings, candidates

# Largest number of checkpoints of a training, without those of interruptions.
CHECKPOINTS = 20
_MAGNITUDES = 31  # of torchvision's RandAugment: 0 to 30, of which 10 steps of the publications are 0, 3, ..., 30


@dataclasses.dataclass(frozen=True)
class Portion:
    """Part of train: all of it, a share, k images per class, or the images of a list.

    Attributes:
        text: name of the part in results; empty for all of train.
        fraction: share of train; 0 if it is not drawn by share.
        k: images per class; 0 if they are not drawn per class.
        rows: rows of the listed images, ascending; None without a list.
        listed: the same as text without the name of the list's file, which decides nothing; empty without a list.
    """

    text: str = ""
    fraction: float = 0.0
    k: int = 0
    rows: IntArray | None = None
    listed: str = ""

    def of(self, train: Source, seed: int) -> Source:
        """Return the samples of a draw."""
        labels, groups, shuffler = train.target, source_groups(train), few_shot.ByName(train.ids, seed)
        if self.fraction:
            drawn = few_shot.share(labels, self.fraction, seed, shuffler, stratified=True, groups=groups)
            return train.select(drawn.rows)
        if self.k:
            return train.select(few_shot.k_per_class(labels, self.k, shuffler, groups=groups).rows)
        return train if self.rows is None else train.select(self.rows)


def portions(settings: Settings, train: Source) -> tuple[Portion, ...]:
    """Return the parts of train by the settings; each gives a result."""
    if settings.train_list is not None:
        return (_listed(Path(settings.train_list), train),)
    most, why = few_shot.largest_k(train.target) if settings.per_class else (0, "")
    for k in settings.per_class:
        if k > most:
            raise UsageError(f"finetune: train has too few images for per_class={k}: {why}", f"The largest is {most}.")
    if settings.images and max(settings.images) > len(train):
        raise UsageError(f"finetune: images={max(settings.images):,}, and {train.name} has {len(train):,}")
    parts = [Portion(f"{percent(fraction)} of train", fraction=fraction) for fraction in settings.fractions]
    parts += [Portion(f"{n:,} images", fraction=n / len(train)) for n in settings.images]
    parts += [Portion(f"{k} per class", k=k) for k in settings.per_class]
    return tuple(parts) or (Portion(),)


def _listed(path: Path, train: Source) -> Portion:
    places = [path.expanduser(), paths.data_dir() / path]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise UsageError(
            f"train_list: there is no file {' or '.join(map(str, dict.fromkeys(places)))}",
            "Give train_list=FILE, the name of an image per line, or put the file into the folder of the data "
            "($SSLBENCH_DATA). SimCLR's of ImageNet: github.com/google-research/simclr/tree/master/imagenet_subsets.",
        )
    try:
        # Windows programs write a byte order mark, which would become part of the first name.
        text = found.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"train_list: cannot read {found}: {error}") from error
    names = dict.fromkeys(line.strip() for line in text.splitlines() if line.strip())
    if not names:
        raise UsageError(f"train_list: {path} is empty", "Give a file with the name of an image per line.")
    by_id = {name: row for row, name in enumerate(train.ids)}
    by_file: dict[str, list[int]] = {}
    for row, name in enumerate(train.ids):
        by_file.setdefault(name.rpartition("/")[2], []).append(row)
    rows: list[int] = []
    missing: list[str] = []
    for name in names:
        same_file = by_file.get(name.rpartition("/")[2], [])
        # One path is the end of the other: 'cat/1.png' of 'train/cat/1.png', not of 'dog/1.png'.
        ends = [(row, f"/{train.ids[row]}") for row in same_file]
        alike = [row for row, other in ends if f"/{name}".endswith(other) or other.endswith(f"/{name}")]
        matches = [by_id[name]] if name in by_id else alike
        if len(matches) > 1:
            raise DataError(
                f"train_list: {path} names '{name}', and {len(matches)} train images have that file name",
                "Write names with their folder, as in train: " + train.ids[matches[0]],
            )
        rows += matches
        missing += [] if matches else [name]
    if missing:
        some = ", ".join(missing[:3])
        raise DataError(
            f"train_list: {len(missing):,} of the {len(names):,} images in {path} are not in train: {some}",
            f"Images of train have names such as {train.ids[0]}. " + did_you_mean(missing[0], train.ids[:1000]),
        )
    chosen = torch.tensor(sorted(set(rows))).numpy()
    digest = hashlib.sha256("\n".join(train.ids[row] for row in chosen).encode()).hexdigest()[:8]
    listed = f"{len(chosen):,} listed images ({digest})"
    return Portion(f"{len(chosen):,} images of {path.name} ({digest})", rows=chosen, listed=listed)


def split(source: Source, settings: Settings, seed: int) -> tuple[Source, Source] | None:
    """Return the parts that train and score the candidates of the selection; None for a single candidate."""
    tried = candidates(settings)
    if len(tried) == 1:
        return None
    remedy = f"Give one learning rate and one weight decay, such as lr={tried[0].lr:g}."
    rows = held_out_rows(source, settings.holdout, seed, selected="rates", remedy=remedy)
    return source.select(rows[0]), source.select(rows[1])


def make_batches(
    source: Source,
    preprocessing: Preprocessing,
    settings: Settings,
    size: int,
    *,
    seed: int,
    engine: ExtractSettings | None,
) -> EpochBatches:
    """Return the training batches of this process.

    `size`: side of the views in pixels; `engine`: workers; None decodes in this process.
    """
    process = this_process()
    # A single channel is computed from three.
    channels = 3 if preprocessing.channels == 1 else preprocessing.channels
    if settings.randaugment and channels != 3:
        raise UsageError(f"finetune: randaugment is for RGB images, and the backbone takes {channels} channels")
    passes = process.world * settings.accumulate
    batch_size = settings.batch_size
    if batch_size % passes:
        raise UsageError(
            f"finetune: batch_size={batch_size} does not divide into {process.world} processes of "
            f"{settings.accumulate} passes",
            f"Use a multiple of {passes}.",
        )
    # A smaller batch has to divide into processes and passes as well.
    batch_size = min(batch_size, len(source) // passes * passes)
    if batch_size < 2:
        raise DataError(
            f"finetune: {len(source)} training images are too few for {passes} forward passes per update"
            if passes > 1
            else f"finetune needs at least two training images, there is {len(source)}"
        )
    resized = preprocessing if settings.augment == "none" else None
    transform: Callable[[Tensor], Tensor] = (
        make_view(settings.view(size)) if resized is None else random_flip(settings.flip)
    )
    if settings.randaugment:
        operations, magnitude = settings.randaugment
        step = round(magnitude * (_MAGNITUDES - 1) / 10)
        fill = [255 * value for value in preprocessing.mean]
        # torchvision rotates and shears tensors with the bilinear filter only.
        augment = v2.RandAugment(int(operations), step, _MAGNITUDES, v2.InterpolationMode.BILINEAR, fill=fill)
        transform = v2.Compose([transform, augment])
    return EpochBatches(
        source,
        transform,
        size=size,
        batch_size=batch_size,
        piece=batch_size,
        seed=seed,
        share=(process.rank, process.world),
        workers=engine.workers if engine is not None else 0,
        reading=Reading(
            preprocessing.decoder, preprocessing.max_pixels, engine.start_method if engine is not None else "auto"
        ),
        sampler=settings.sampler,
        channels=channels,
        resized=resized,
    )
