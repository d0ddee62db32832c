"""The online linear probe from end to end: train, choose, score."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sslbench.arrays import IntArray
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer
from sslbench.data.clips import views_of
from sslbench.data.decode.handlers import Reading
from sslbench.data.groups import source_groups
from sslbench.data.loading.probing import EpochBatches, random_flip
from sslbench.data.source import Source
from sslbench.data.views import View
from sslbench.distributed import this_process
from sslbench.distributed.collectives import rank, sum_, world_size
from sslbench.errors import UsageError
from sslbench.features.array import ExtractSettings
from sslbench.names import did_you_mean
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.attention import attention_of, head_layers
from sslbench.protocols._parts.heads import probe
from sslbench.protocols._parts.images import evaluation_side, random_sample, readable_batches, unreadable_images
from sslbench.protocols._parts.selection import best_of, edge_notes, held_out_rows, percent
from sslbench.protocols._parts.views import over_views
from sslbench.protocols.linear_online.heads import AttentiveBank, Bank, Head, Heads, LinearBank, Norm, first_weights
from sslbench.protocols.linear_online.settings import Settings, optimizer_settings
from sslbench.protocols.linear_online.training import Input, InputEncoder, Training, block_inputs, layer_inputs, train
from sslbench.protocols.protocol import ImageInputs
from sslbench.results import NetworkWeights, Outcome
from sslbench.runtime.progress import stage_progress
from sslbench.runtime.resources import StartMethod
from sslbench.runtime.seeds import seeded
from sslbench.targets.classes import Classes
from sslbench.targets.target import OfClasses, Target

log = logging.getLogger("sslbench")

Choice = dict[str, float | int | bool]


@dataclasses.dataclass(frozen=True)
class BankPlan:
    """Bank of heads to train: its input, the normalisation, and its row of results."""

    input: Input
    norm: Norm
    row: str


@dataclasses.dataclass(frozen=True)
class Scored:
    """Scores of all heads on a source.

    Attributes:
        headlines: top-1 (single label) or mAP of every head, in order; NaN for one that was not computed.
        logits: number of a head -> float32 (N, C), for the heads that were wanted.
    """

    headlines: tuple[float, ...]
    logits: dict[int, npt.NDArray[np.float32]]


Score = Callable[[Source, Sequence[int]], Scored]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Head among which one is chosen.

    Attributes:
        number: among all heads of the run.
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
        return " ".join(
            f"{key}={str(value).lower() if isinstance(value, bool) else f'{value:g}'}"
            for key, value in self.choice.items()
        )


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Head of a row that is reported.

    Attributes:
        others: the other heads of the row.
        on: data of the choice; '' where there was no choice.
        score: its headline metric there, a fraction.
    """

    head: Candidate
    others: tuple[Candidate, ...]
    on: str = ""
    score: float = float("nan")


def run(inputs: ImageInputs[Settings]) -> dict[str, Outcome]:
    """Run the protocol, see `linear_online.run_on_images`."""
    backbone, settings, engine, seed = inputs.backbone, inputs.settings, inputs.engine, inputs.seed
    whole, test, progress = inputs.train.in_rank(), inputs.test, inputs.progress
    plans = planned(backbone, inputs.layers, settings)
    fit, held_out = split(whole, plans, settings, seed)
    batches = make_batches(
        fit,
        backbone.preprocessing,
        settings,
        seed=seed,
        piece=engine.batch_size,
        workers=engine.workers,
        start_method=engine.start_method,
    )
    updates = settings.updates or max(1, round(settings.epochs * batches.steps_per_epoch))
    plan = Training(
        updates=updates,
        schedule=settings.rate_schedule(updates / batches.steps_per_epoch),
        optimizer=optimizer_settings(settings),
        folder=inputs.folder,
        unreadable=lambda: unreadable_images(whole, backbone.preprocessing, engine),
        progress=stage_progress(progress, f"{backbone.name}: training heads on {whole.name}"),
    )
    read = tuple({plan.input.name: plan.input for plan in plans}.values())
    side = evaluation_side(fit, backbone.preprocessing, "linear-online")
    sides = (settings.size or side, side)
    encode = InputEncoder(backbone, read, sides=sides, device=engine.device, precision=engine.float_precision())
    classes, order = len(whole.target.classes), OfClasses.of(whole.target).by_first_sample()
    heads = make_heads(plans, encode.widths, classes, settings, seed=seed, device=engine.device, order=order)
    log.info(
        f"{len(heads.all_heads())} heads ({settings.head}) on {backbone.name}, {updates} updates of "
        f"{batches.batch_size} images"
    )
    train(heads, encode, fit, batches, plan)

    def scored(source: Source, heads_: Sequence[int], title: str) -> Scored:
        report = stage_progress(progress, f"{backbone.name}: {title} {source.name}")
        return score(heads, encode, source, backbone.preprocessing, engine, wanted=heads_, progress=report)

    found = candidates(plans, settings, heads.finite())
    chosen = choose(
        found, settings, functools.partial(scored, title="selecting heads on"), test=test, held_out=held_out
    )
    numbers = [each.head.number for each in chosen.values()]
    on_test = scored(test, numbers, "scoring")
    sample = random_sample(fit, len(test), seed)
    # Right predictions are counted for every head without keeping its scores; other metrics need them.
    on_train = scored(sample, [] if whole.target.leads_by_right() else numbers, "scoring a part of")
    if rank() != 0:
        return {}
    for row in dict.fromkeys(each.row for each in found if each.row not in chosen):
        log.warning(f"{row}: every head diverged; try lower learning rates")
    trained = f"Trained for {batches.batch_size * updates / len(fit):.3g} epochs" + (
        f" on {len(fit):,} of {len(whole):,} train samples; the others chose the head." if held_out is not None else "."
    )
    notes = [trained, f"The train score is measured on {len(sample):,} samples with the evaluation transform."]
    outcomes = {}
    for row, each in chosen.items():
        outcome = _outcome(each, on_test, on_train, test, settings, seed, notes)
        outcomes[row] = dataclasses.replace(outcome, weights=_probe(heads, each.head.number, plans, whole.target))
    return outcomes


def _probe(heads: Heads, number: int, plans: Sequence[BankPlan], labels: Target) -> NetworkWeights | None:
    """Return a chosen head for its file; None for joined blocks, which are no layer by name."""
    bank, h, _ = heads.all_heads()[number]
    layers = next(plan.input for plan in plans if plan.input.name == bank.input).layers
    if len(layers) > 1:
        return None
    attention = bank.attention if isinstance(bank, AttentiveBank) else None
    facts = {"attention": None if attention is None else dataclasses.asdict(attention)}
    with seeded(0):  # a new layer draws its first weights
        head = bank.classifier(h)
    norm = "batch" if isinstance(head.norm, torch.nn.BatchNorm1d) else "none"
    return probe(dict(head.state_dict()), labels, layer=layers[0].text, norm=norm, **facts)


def _outcome(
    choice: Chosen, on_test: Scored, on_train: Scored, test: Source, settings: Settings, seed: int, notes: Sequence[str]
) -> Outcome:
    target, name = test.target, test.target.metric
    selected: dict[str, Any] = {}
    if choice.on:
        selected = {**choice.head.choice, "on": choice.on, "score": choice.score}
        selected |= {} if choice.on == "test" else {"seed": seed}
    # Test scores of the other heads, for information; multi-label data would need the scores of every head.
    variants = (
        {each.text: {name: on_test.headlines[each.number]} for each in choice.others} if target.leads_by_right() else {}
    )
    notes = list(notes)
    if choice.on == "test":
        heads = len(choice.others) + 1
        notes.append(
            f"The best of {heads} heads was selected on the reported test samples, so the score is optimistic."
        )
    if diverged := [each.text for each in choice.others if not each.alive]:
        notes.append(f"Diverged heads were left out: {'; '.join(diverged)}.")
    notes += edge_notes("lr", choice.head.choice["lr"], settings.lr, least=3)
    return Outcome.of(
        target,
        on_test.logits[choice.head.number],
        seed=seed,
        groups=source_groups(test),
        train=on_train.headlines[choice.head.number],
        selected=selected,
        variants=variants,
        notes=tuple(notes),
        probabilities="softmax" if isinstance(target, Classes) else None,
    )


def planned(backbone: Backbone, layers: Sequence[Layer], settings: Settings) -> tuple[BankPlan, ...]:
    """Return the banks of heads, in the order of the results."""
    texts = [layer.text for layer in layers]
    if settings.blocks and texts != [backbone.default_layer]:
        raise UsageError(
            f"blocks={list(settings.blocks)} and the layers {', '.join(texts)} exclude each other",
            "Give --layers or blocks=..., not both.",
        )
    if settings.blocks:
        found = block_inputs(backbone, settings.blocks, settings.patch_mean)
    else:
        found = layer_inputs(head_layers(backbone, layers, settings))
    for name in settings.plain_layers:
        if name not in texts or settings.blocks:
            raise UsageError(f"plain_layers: '{name}' is not an evaluated layer", did_you_mean(name, texts))
    plans = []
    for each in found:
        plans.append(BankPlan(each, settings.norm, each.row))
        if each.name in settings.plain_layers and settings.norm != "none":
            plans.append(BankPlan(each, "none", f"{each.row}, no norm"))
    return tuple(plans)


def split(train: Source, plans: Sequence[BankPlan], settings: Settings, seed: int) -> tuple[Source, Source | None]:
    """Return the training part and the part held out for the choice; None where nothing is chosen on train."""
    several_heads = len(settings.lr) * len(settings.weight_decay) > 1 or len({plan.row for plan in plans}) < len(plans)
    if settings.select_on == "test" or not several_heads:
        return train, None
    remedy = f"Give one learning rate, such as lr={settings.lr[len(settings.lr) // 2]:g}."
    rows = held_out_rows(train, settings.holdout, seed, selected="a head", remedy=remedy)
    return train.select(rows[0]), train.select(rows[1])


def make_batches(
    source: Source,
    preprocessing: Preprocessing,
    settings: Settings,
    *,
    seed: int,
    piece: int,
    workers: int = 0,
    start_method: StartMethod = "auto",
) -> EpochBatches:
    """Return this process's training batches."""
    if preprocessing.channels not in (1, 3):
        raise UsageError(
            f"linear-online augments RGB images, and the backbone takes {preprocessing.channels} channels",
            "Use a protocol on features, such as linear.",
        )
    size = settings.size or evaluation_side(source, preprocessing, "linear-online")
    transform: View | Callable[[Tensor], Tensor] = settings.view(size)
    resized = preprocessing if settings.augment == "none" else None
    if resized is not None:
        transform = random_flip(settings.flip)
    process = this_process()
    return EpochBatches(
        source,
        transform,
        size=size,
        batch_size=settings.batch_size,
        piece=piece,
        seed=seed,
        share=(process.rank, process.world),
        workers=workers,
        reading=Reading(preprocessing.decoder, preprocessing.max_pixels, start_method),
        resized=resized,
    )


def make_heads(
    plans: Sequence[BankPlan],
    widths: dict[str, tuple[int, int]],
    classes: int,
    settings: Settings,
    *,
    seed: int,
    device: torch.device,
    order: IntArray | None = None,
) -> Heads:
    """Return new heads: one per bank, learning rate and weight decay.

    `order`: (C,) class numbers in the order in which they get their first weights; None: ascending.
    """
    grid = [Head(lr, decay) for lr in settings.lr for decay in settings.weight_decay]
    banks: list[Bank] = []
    for plan in plans:
        name, (width, channels) = plan.input.name, widths[plan.input.name]
        attention = attention_of(settings, width)
        if attention is not None:
            first = first_weights(settings.init, classes, width, seed=seed, order=order)
            banks.append(
                AttentiveBank(
                    name, grid, attention, width=width, norm=plan.norm, eps=settings.norm_eps, first=first, seed=seed
                )
            )
            continue
        banks.append(
            LinearBank(
                name,
                grid,
                widths=(width, channels),
                classes=classes,
                norm=plan.norm,
                eps=settings.norm_eps,
                init=settings.init,
                seed=seed,
                order=order,
            )
        )
    return Heads(banks).to(device)


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

    `heads`: trained; running statistics are used; `wanted`: heads whose scores are kept. Of the others only right
    predictions are counted, by class; mAP needs all scores, so it is computed for the wanted ones only.
    """
    labels, videos = source.target, views_of(source.images)
    device = engine.device
    mine = np.arange(rank(), len(source), world_size())
    # Each process fills its own rows; the others stay 0, so that the sum at the end puts all together.
    logits = {number: torch.zeros((len(source), len(labels.classes))) for number in wanted}
    right = torch.zeros((len(labels.classes), len(heads.all_heads())), device=device)
    for batch in readable_batches(source, mine, preprocessing, engine, progress):
        features = encode(videos.by_view(batch.images))
        with torch.inference_mode():
            # (B, heads of all banks, C)
            answers = torch.cat([bank(features[bank.input]) for bank in heads.all_banks()], dim=1)
            answers = over_views(answers, videos.views, single=isinstance(labels, Classes))
        if labels.leads_by_right():
            truth = torch.from_numpy(labels.values[batch.indices]).to(device)
            right.index_add_(0, truth, (answers.argmax(dim=2) == truth[:, None]).float())
        for number, values in logits.items():
            values[batch.indices] = answers[:, number].cpu()
    found = {number: sum_(values.to(device)).cpu().numpy() for number, values in logits.items()}
    counted, table = [float("nan")] * len(heads.all_heads()), sum_(right).T.cpu().numpy()
    if labels.leads_by_right():
        counted = labels.of_right(table, OfClasses.of(labels).counts()).tolist()
    exact = {number: labels.headline(labels.values, values) for number, values in found.items()}
    return Scored(tuple(exact.get(number, value) for number, value in enumerate(counted)), found)


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

    `held_out`: the held-out part of train; None where nothing is chosen on it.
    """
    rows: dict[str, list[Candidate]] = {}
    for each in found:
        rows.setdefault(each.row, []).append(each)
    part = held_out if held_out is not None else test if any(len(row) > 1 for row in rows.values()) else None
    values: Mapping[int, float] = {}
    sign = test.target.sign()
    if part is not None:
        # Accuracies only count right predictions; mAP and other metrics need the scores of all heads.
        numbers = [] if part.target.leads_by_right() else [each.number for each in found]
        values = dict(enumerate(score(part, numbers).headlines))
    on = "test" if held_out is None else f"held-out {percent(settings.holdout)} of train"
    choices = {}
    for name, row in rows.items():
        alive = [each for each in row if each.alive]
        if not alive:
            continue
        best = alive[best_of([values[each.number] for each in alive], sign)] if values else alive[0]
        others = tuple(each for each in row if each is not best)
        choices[name] = Chosen(best, others, on, values[best.number]) if others else Chosen(best, ())
    return choices
