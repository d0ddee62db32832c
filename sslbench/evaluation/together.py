"""Features of several weights on the same data from one pass over the images, before each is evaluated."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer
from sslbench.distributed import this_process
from sslbench.errors import SslbenchError
from sslbench.evaluation import floors
from sslbench.evaluation.preparation import Prepared, for_request, layers_of, one_part, shared_part
from sslbench.evaluation.request import Request
from sslbench.features.together import extract_together
from sslbench.runtime.progress import Progress, stage_progress

log = logging.getLogger("sslbench")


def likewise(prepared: Prepared, request: Request, loaded: Backbone) -> Prepared:
    """Return the evaluation of other weights on the data of an evaluation that is prepared.

    Args:
        prepared: evaluation of the first weights.
        request: the same for other weights.
        loaded: their backbone.

    Raises:
        SslbenchError: the preprocessing or the layers do not fit them.
    """
    backbone, _ = for_request(loaded, request, prepared.run)
    request = dataclasses.replace(request, tasks=prepared.request.tasks)
    layers = layers_of(backbone, request)
    return dataclasses.replace(prepared, request=request, loaded=loaded, backbone=backbone, layers=layers)


def can_encode_ahead(prepared: Prepared) -> bool:
    """Return whether features can be stored ahead: one process, and no protocol that encodes images in its own way."""
    own = any(task.kind.needs_images or task.kind.several_sets for task in prepared.request.tasks)
    return not own and not prepared.run.on_the_fly and this_process().world == 1


def encode_ahead(several: Sequence[Prepared], *, store: Path, progress: Progress | None) -> None:
    """Store the features of several weights, and of their untrained copies, in one pass where they are decoded alike.

    After an error everything is encoded later, one backbone after the other: it then belongs to one of the weights.

    Args:
        several: evaluations of different weights on the same data, see `likewise` and `can_encode_ahead`.
        store: folder of the feature store.
        progress: receiver of the progress.
    """
    first = several[0]
    data = one_part(first.data, shared_part(first.request.tasks))
    wanted = [pair for each in several for pair in _wanted(each) if pair[0].known and not pair[0].kind.pixels]
    if len(wanted) < 2:
        return
    splits = [("all", data.whole)] if data.whole is not None else [("train", data.train), ("test", data.test)]
    splits = splits[1:] if data.train is data.test and data.whole is None else splits
    try:
        for split, source in splits:
            title = f"{len(wanted)} backbones on {source.name}"
            shown = stage_progress(progress, title)
            settings = first.run.extract_settings()
            saved = extract_together(wanted, source, settings, root=store, split=split, progress=shown)
            if saved:
                log.info(f"{title}: encoded together, {saved} passes over the images saved")
    except (SslbenchError, MemoryError, RuntimeError) as error:
        log.info(f"each of the weights is encoded alone, since together they failed: {error}")


def _wanted(prepared: Prepared) -> list[tuple[Backbone, tuple[Layer, ...]]]:
    """Return the backbone and, where it is a floor, its untrained copy, with their layers."""
    found = [(prepared.backbone, prepared.layers)]
    if prepared.run.floors:
        is_floor = prepared.request.weights == "random"
        untrained = floors.floor_backbones(prepared.backbone, is_floor=is_floor).found.get("untrained")
        found += [] if untrained is None else [(untrained, prepared.layers)]
    return found
