"""Which head of a row is reported: the best on a held-out part of train, or where asked for on test."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from sslbench.data.source import Source
from sslbench.protocols._common import is_better, percent
from sslbench.protocols._linear_plan import BankPlan
from sslbench.protocols._linear_scoring import Scored

if TYPE_CHECKING:
    from sslbench.protocols.linear_online import Settings

Choice = dict[str, float | int | bool]
Score = Callable[[Source, Sequence[int]], Scored]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A head that may be chosen.

    Attributes:
        number: among all heads of the run.
        row: of the results.
        choice: what tells it from the others of its row: lr, and whatever else was tried.
        alive: its parameters are numbers.
    """

    number: int
    row: str
    choice: Choice
    alive: bool

    @property
    def text(self) -> str:
        """Such as 'lr=0.1 blocks=4'."""
        return " ".join(f"{key}={_text(value)}" for key, value in self.choice.items())


def _text(value: float | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The head of a row that is reported.

    Attributes:
        head: it.
        others: the other heads of the row.
        on: what it was chosen on; '' where there was no choice.
        score: its headline metric there, a fraction.
    """

    head: Candidate
    others: tuple[Candidate, ...]
    on: str = ""
    score: float = float("nan")


def candidates(plans: Sequence[BankPlan], settings: "Settings", alive: Sequence[bool]) -> list[Candidate]:
    """All heads in the order of `Heads.all_heads`."""
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
    found: Sequence[Candidate], settings: "Settings", score: Score, *, test: Source, held: Source | None
) -> dict[str, Chosen]:
    """Row -> its head; of equal scores the first one. A row without a head that is alive is left out.

    Args:
        found: all heads.
        settings: says where to choose.
        score: of a source, keeping the scores of some heads.
        test: what is reported.
        held: the held-out part of train; None where nothing is chosen on it.
    """
    rows: dict[str, list[Candidate]] = {}
    for each in found:
        rows.setdefault(each.row, []).append(each)
    part = held if held is not None else test if any(len(row) > 1 for row in rows.values()) else None
    values: Mapping[int, float] = {}
    if part is not None:
        # mAP needs the scores of all heads; for top-1 right answers are counted on the way.
        wanted = [each.number for each in found] if part.labels.kind == "multi" else []
        values = dict(enumerate(score(part, wanted).headlines))
    on = "test" if held is None else f"held-out {percent(settings.holdout)} of train"
    chosen = {}
    for name, row in rows.items():
        alive = [each for each in row if each.alive]
        if not alive:
            continue
        best = alive[0]
        for each in alive[1:]:
            best = each if is_better(values[each.number], values[best.number]) else best
        others = tuple(each for each in row if each is not best)
        chosen[name] = Chosen(best, others, on, values[best.number]) if others else Chosen(best, ())
    return chosen
