"""Scores of trained linear heads: the images once through the backbone with the evaluation transform.

Shapes: N samples, C classes.
"""

import dataclasses
from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt
import torch

from sslbench.data import loader
from sslbench.data.source import Source
from sslbench.distributed.collectives import rank, sum_, world_size
from sslbench.features.job import ExtractSettings
from sslbench.metrics.summary import headline
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._linear_heads import Heads
from sslbench.protocols._linear_inputs import InputEncoder
from sslbench.protocols._linear_training import unreadable_images


@dataclasses.dataclass(frozen=True)
class Scored:
    """What heads say about a source.

    Attributes:
        headlines: top-1 (single label) or mAP of every head, in order; NaN for one that was not computed.
        logits: number of a head -> float32 (N, C), for the heads that were wanted.
    """

    headlines: tuple[float, ...]
    logits: dict[int, npt.NDArray[np.float32]]


def score(
    heads: Heads,
    encode: InputEncoder,
    source: Source,
    preprocessing: Preprocessing,
    engine: ExtractSettings,
    *,
    wanted: Collection[int],
    progress: Callable[[int, int], None] | None = None,
) -> Scored:
    """Scores every sample once; every process takes its share, and all get the whole.

    Args:
        heads: trained; running statistics are used.
        encode: the frozen backbone.
        source: labelled images.
        preprocessing: the evaluation transform.
        engine: batch size and workers are used.
        wanted: heads whose scores are kept. Of the others only top-1 is counted, which costs no memory; mAP needs all
            scores, so it is computed for the wanted ones only.
        progress: called with images done and images in all.

    Raises:
        DataError: an image cannot be read.
    """
    labels = source.labels
    device = engine.device
    mine = np.arange(rank(), len(source), world_size())
    logits = {number: torch.zeros((len(source), len(labels.classes))) for number in wanted}
    right = torch.zeros(len(heads.all_heads()), device=device)
    done = 0
    batches = loader.batches(
        source,
        mine,
        preprocessing,
        batch_size=engine.batch_size,
        workers=engine.workers,
        start_method=engine.start_method,
    )
    for batch in batches:
        if batch.unreadable:
            raise unreadable_images(source, preprocessing, engine)
        features = encode(batch.images)
        with torch.inference_mode():
            # (B, heads of all banks, C)
            answers = torch.cat([bank(features[bank.input]) for bank in heads.all_banks()], dim=1)
        if labels.kind == "single":
            truth = torch.from_numpy(labels.values[batch.indices]).to(device)
            right += (answers.argmax(dim=2) == truth[:, None]).sum(0)
        for number, values in logits.items():
            values[batch.indices] = answers[:, number].cpu()
        done += len(batch.indices)
        if progress is not None:
            progress(min(done * world_size(), len(source)), len(source))
    found = {number: sum_(values.to(device)).cpu().numpy() for number, values in logits.items()}
    counted = (sum_(right) / max(len(source), 1)).tolist()
    if labels.kind == "multi":
        counted = [float("nan")] * len(counted)
    exact = {number: headline(labels.kind, labels.values, values) for number, values in found.items()}
    return Scored(tuple(exact.get(number, value) for number, value in enumerate(counted)), found)
