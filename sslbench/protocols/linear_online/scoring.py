"""Scores of trained linear heads: the images once through the backbone with the evaluation transform.

Shapes: N samples, C classes.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from sslbench.data.loading import loader
from sslbench.data.source import Source
from sslbench.distributed.collectives import rank, sum_, world_size
from sslbench.features.array import ExtractSettings
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.images import unreadable_images
from sslbench.protocols._parts.selection import is_better, percent
from sslbench.protocols.linear_online.heads import Heads
from sslbench.protocols.linear_online.inputs import InputEncoder
from sslbench.protocols.linear_online.plan import BankPlan
from sslbench.protocols.linear_online.settings import Settings
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel


@dataclasses.dataclass(frozen=True)
class Scored:
    """Scores of all heads on a source.

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
    """Score every sample once; every process takes its share, and all get the whole.

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
    labels = source.target
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
        if isinstance(labels, Classes):
            truth = torch.from_numpy(labels.values[batch.indices]).to(device)
            right += (answers.argmax(dim=2) == truth[:, None]).sum(0)
        for number, values in logits.items():
            values[batch.indices] = answers[:, number].cpu()
        done += len(batch.indices)
        if progress is not None:
            progress(min(done * world_size(), len(source)), len(source))
    found = {number: sum_(values.to(device)).cpu().numpy() for number, values in logits.items()}
    counted = (sum_(right) / max(len(source), 1)).tolist()
    if isinstance(labels, MultiLabel):
        counted = [float("nan")] * len(counted)
    exact = {number: labels.headline(labels.values, values) for number, values in found.items()}
    return Scored(tuple(exact.get(number, value) for number, value in enumerate(counted)), found)


Choice = dict[str, float | int | bool]
Score = Callable[[Source, Sequence[int]], Scored]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Head among which one is chosen.

    Attributes:
        number: among all heads of the run.
        row: of the results.
        choice: difference from the others of its row: lr, and whatever else was tried.
        alive: its parameters are numbers.
    """

    number: int
    row: str
    choice: Choice
    alive: bool

    @property
    def text(self) -> str:
        """Return the head's settings as text: 'lr=0.1 blocks=4'."""
        return " ".join(f"{key}={_text(value)}" for key, value in self.choice.items())


def _text(value: float | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Head of a row that is reported.

    Attributes:
        head: it.
        others: the other heads of the row.
        on: data of the choice; '' where there was no choice.
        score: its headline metric there, a fraction.
    """

    head: Candidate
    others: tuple[Candidate, ...]
    on: str = ""
    score: float = float("nan")


def candidates(plans: Sequence[BankPlan], settings: Settings, alive: Sequence[bool]) -> list[Candidate]:
    """Return all heads in the order of `Heads.all_heads`."""
    found: list[Candidate] = []
    for plan in plans:
        for lr in settings.lr:
            for decay in settings.weight_decay:
                choice: Choice = {"lr": lr}
                if len(settings.weight_decay) > 1:
                    choice["weight_decay"] = decay
                choice |= dict(plan.input.choice)
                found.append(Candidate(len(found), plan.row, choice, alive[len(found)]))
    return found


def choose(
    found: Sequence[Candidate], settings: Settings, score: Score, *, test: Source, held_out: Source | None
) -> dict[str, Chosen]:
    """Return the chosen head of each row, of equal scores the first one; rows whose heads all diverged are left out.

    Args:
        found: all heads.
        settings: says where to choose.
        score: of a source, keeping the scores of some heads.
        test: scores that are reported.
        held_out: the held-out part of train; None where nothing is chosen on it.
    """
    rows: dict[str, list[Candidate]] = {}
    for each in found:
        rows.setdefault(each.row, []).append(each)
    part = held_out if held_out is not None else test if any(len(row) > 1 for row in rows.values()) else None
    values: Mapping[int, float] = {}
    if part is not None:
        # mAP needs the scores of all heads; top-1 only counts correct predictions.
        numbers = [each.number for each in found] if isinstance(part.target, MultiLabel) else []
        values = dict(enumerate(score(part, numbers).headlines))
    on = "test" if held_out is None else f"held-out {percent(settings.holdout)} of train"
    choices = {}
    for name, row in rows.items():
        alive = [each for each in row if each.alive]
        if not alive:
            continue
        best = alive[0]
        for each in alive[1:]:
            best = each if is_better(values[each.number], values[best.number]) else best
        others = tuple(each for each in row if each is not best)
        choices[name] = Chosen(best, others, on, values[best.number]) if others else Chosen(best, ())
    return choices
