"""Finetuning from end to end: selection of the rates, training, scores."""

import dataclasses
import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer
from sslbench.backbones.speed import prepare as prepare_encoder
from sslbench.data.decode.transforms import normalise
from sslbench.data.groups import source_groups
from sslbench.data.sharded import rows_of
from sslbench.data.source import Source
from sslbench.distributed.collectives import from_first, rank, sum_, world_size
from sslbench.features.array import Features
from sslbench.metrics.measure import Probabilities
from sslbench.paths import new_file
from sslbench.protocols._parts import few_shot
from sslbench.protocols._parts.attention import attention_of, head_layers
from sslbench.protocols._parts.heads import probe
from sslbench.protocols._parts.images import random_sample, readable_batches
from sslbench.protocols._parts.selection import best_of, edge_notes, percent
from sslbench.protocols.finetune.network import check_backbone
from sslbench.protocols.finetune.plan import Portion, portions, split
from sslbench.protocols.finetune.settings import Rates, Settings, candidates
from sslbench.protocols.finetune.training import Finetuned, finetune, prepare
from sslbench.protocols.protocol import ImageInputs
from sslbench.results import NetworkWeights, Outcome
from sslbench.runtime.progress import stage_progress
from sslbench.runtime.seeds import preserved_random_states
from sslbench.targets.classes import Classes
from sslbench.targets.numbers import Numbers
from sslbench.train.loop import NotFiniteError
from sslbench.train.observers.always import requested

log = logging.getLogger("sslbench")

# R2 on training samples below which a training on numbers has diverged: the mean of train has 0.
_DIVERGED = -10.0
Scores = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class _Trial:
    """Training on one draw of train, and its scores.

    Attributes:
        scores: scores of test, (N_test, C).
        train: leading metric on training samples.
        selected: selected rates with the scores of all candidates; empty without a selection.
    """

    network: Finetuned
    rows: Source
    scores: Scores
    train: float
    selected: dict[str, Any]


class FinetuneRun:
    """Run of the protocol: all trainings and their outcomes."""

    def __init__(self, inputs: ImageInputs[Settings]) -> None:
        self.backbone, self.settings = inputs.backbone, inputs.settings
        (self.layer,) = head_layers(inputs.backbone, inputs.layers, inputs.settings)
        self.whole, self.test = inputs.train.in_rank(), inputs.test
        self.seed, self.folder, self.engine, self.progress = inputs.seed, inputs.folder, inputs.engine, inputs.progress

    def outcomes(self) -> dict[str, Outcome]:
        """Return the outcome of each part of train by name; {} on processes other than the first."""
        outcomes = {}
        with preserved_random_states():
            for number, portion in enumerate(portions(self.settings, self.whole)):
                drawn = portion.k or 0 < portion.fraction < 1
                seeds = few_shot.seeds(self.seed, self.settings.draws if drawn else 1)
                trials = [self._trial(portion, each, self.folder / f"{number}.{i}") for i, each in enumerate(seeds)]
                if rank() == 0:
                    outcome = dataclasses.replace(
                        self._outcome(portion, seeds, trials), train_part=portion.listed or portion.text
                    )
                    outcomes[row_name(self.layer, portion)] = outcome
        return outcomes

    def _trial(self, portion: Portion, seed: int, folder: Path) -> _Trial:
        source = portion.of(self.whole, seed)
        rates, selected = self._choose(source, seed, folder)
        network = self._train(source, rates, seed, folder / "final", "finetuning on")
        scores = self._score(network, self.test, "scoring")
        sample = random_sample(source, len(self.test), seed)
        on_train = self._score(network, sample, "scoring a part of")
        train = sample.target.headline(sample.target.values, on_train)
        if isinstance(source.target, Numbers) and (r2 := Numbers.headline(sample.target.values, on_train)) < _DIVERGED:
            raise NotFiniteError(
                f"finetune: the training diverged: its predictions of training samples have an R2 of {r2:.3g}",
                "Give a lower lr or head_lr_factor, or clip_norm=1.",
            )
        return _Trial(network, source, scores, train, selected)

    def _choose(self, source: Source, seed: int, folder: Path) -> tuple[Rates, dict[str, Any]]:
        """Return the first candidate with the best score on held-out samples, and the record of the selection."""
        tried, parts = candidates(self.settings), split(source, self.settings, seed)
        if parts is None:
            return tried[0], {}
        fit, held_out = parts
        stored = _ScoreFile(folder / "selection.json")
        scores: dict[str, float] = {}
        for rates in tried:
            score = stored.get(rates.text)
            if score is None:
                score = self._held_out_score(fit, held_out, rates, seed, folder / rates.text.replace(" ", "_"))
                stored.put(rates.text, score)
            log.info(
                f"{rates.text}: " + ("diverged" if math.isnan(score) else f"{100 * score:.2f} on held-out samples")
            )
            scores[rates.text] = score
        best = tried[best_of([scores[rates.text] for rates in tried], source.target.sign())]
        if math.isnan(scores[best.text]):
            raise NotFiniteError("finetune: every training diverged", "Give lower learning rates.")
        on = f"held-out {percent(self.settings.holdout)} of train, then trained on all of it"
        selected = {
            "lr": best.lr,
            "weight_decay": best.weight_decay,
            "on": on,
            "score": scores[best.text],
            "seed": seed,
        }
        return best, {**selected, "tried": scores}

    def _held_out_score(self, fit: Source, held_out: Source, rates: Rates, seed: int, folder: Path) -> float:
        try:
            network = self._train(fit, rates, seed, folder, f"{rates.text} on")
        except NotFiniteError as error:
            log.warning(f"{rates.text}: {error.message}")
            return math.nan
        scores = self._score(network, held_out, "scoring held-out samples of")
        return held_out.target.headline(held_out.target.values, scores)

    def _train(self, source: Source, rates: Rates, seed: int, folder: Path, title: str) -> Finetuned:
        # The logs of a training stay beside the record: NAME.logs/NAME-0.0-final.
        logs = "-".join((self.folder.stem, *folder.relative_to(self.folder).parts))
        return finetune(
            self.backbone,
            self.layer,
            source,
            rates,
            self.settings,
            seed=seed,
            engine=self.engine,
            folder=folder,
            logs=self.folder.with_suffix(".logs") / logs,
            progress=stage_progress(self.progress, f"{self.backbone.name}: {title} {source.name}"),
        )

    def _score(self, network: Finetuned, source: Source, title: str) -> Scores:
        """Return the scores (N, C) of a network; each process computes a share and receives all."""
        report = stage_progress(self.progress, f"{self.backbone.name}: {title} {source.name}")
        engine, preprocessing = self.engine, self.backbone.preprocessing
        encode = prepare_encoder(
            network.backbone, (self.layer,), device=engine.device, precision=engine.float_precision()
        )
        head = network.head.to(engine.device)
        # Each process fills its own rows; the others stay 0, so that the sum at the end puts all together.
        scores = torch.zeros((len(source), len(source.target.classes)), device=engine.device)
        share = rows_of(source.images, rank(), world_size())
        for batch in readable_batches(source, share, preprocessing, engine, report):
            images = normalise(batch.images.to(engine.device, non_blocking=True), preprocessing, encode.dtype)
            with torch.inference_mode():
                scores[torch.from_numpy(batch.indices).to(engine.device)] = head(encode(images)[self.layer.text])
        return sum_(scores).cpu().numpy()

    def _outcome(self, portion: Portion, seeds: Sequence[int], trials: Sequence[_Trial]) -> Outcome:
        first, labels = trials[0], self.test.target
        notes = [
            f"Trained for {first.network.epochs:.3g} epochs on {len(first.rows):,} of {len(self.whole):,} train "
            "samples; the last epoch counts."
        ]
        notes += [f"The metrics are means over {len(trials)} draws of {portion.text}."] if len(trials) > 1 else []
        notes += first.network.notes
        if first.selected:
            notes += edge_notes("lr", first.selected["lr"], self.settings.lr, least=3)
        weights = self._weights(first)
        probabilities: Probabilities | None = "softmax" if isinstance(labels, Classes) else None
        if len(trials) > 1:
            return self._mean(portion, seeds, trials, notes, weights, probabilities)
        return Outcome.of(
            labels,
            first.scores,
            seed=self.seed,
            groups=source_groups(self.test),
            train=first.train,
            selected=first.selected,
            notes=tuple(notes),
            probabilities=probabilities,
            weights=weights,
        )

    def _mean(
        self,
        portion: Portion,
        seeds: Sequence[int],
        trials: Sequence[_Trial],
        notes: Sequence[str],
        weights: NetworkWeights | None,
        probabilities: Probabilities | None,
    ) -> Outcome:
        # Without features: the curve reads labels, ids and groups only.
        test = Features(
            np.zeros((len(self.test), 0), np.float32), self.test.target, self.test.ids, groups=source_groups(self.test)
        )
        curve = few_shot.LearningCurve(test, self.whole.ids, seed=self.seed, probabilities=probabilities)
        position = {name: row for row, name in enumerate(self.whole.ids)}
        draws = [
            few_shot.Draw(np.array([position[name] for name in trial.rows.ids]), trial.rows.target) for trial in trials
        ]
        curve.add(
            portion.text,
            draws,
            (few_shot.Fitted(each.scores.astype(np.float64), each.train, math.nan) for each in trials),
            headline=True,
        )
        selected = {f"draw {i}": trial.selected for i, trial in enumerate(trials) if trial.selected}
        outcome = curve.outcome(selected=selected, seeds=seeds, notes=notes)
        return dataclasses.replace(outcome, weights=weights)

    def _weights(self, trial: _Trial) -> NetworkWeights | None:
        """Return the finetuned network for a weights file; None for labels that no weights file has."""
        backbone, labels = trial.network.backbone, self.test.target
        attention = attention_of(self.settings, trial.network.head.head.in_features)
        facts = {"attention": None if attention is None else dataclasses.asdict(attention), "norm": self.settings.norm}
        weights = probe(dict(trial.network.head.state_dict()), labels, layer=self.layer.text, **facts)
        if weights is None:
            return None
        metadata = {
            "method": "finetune",
            "epochs": trial.network.epochs,
            "data": self.whole.name,
            "images": len(trial.rows),
        }
        tensors = dict(backbone.module.state_dict())
        return dataclasses.replace(weights, backbone=backbone.name, tensors=tensors, metadata=metadata)


class _ScoreFile:
    """File of the held-out scores of finished candidates, for a run that continues."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # All have to agree on what is finished, or they would wait for each other in different trainings.
        self.scores: dict[str, float | None] = from_first(self._read)

    def _read(self) -> dict[str, float | None]:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def get(self, name: str) -> float | None:
        """Return the score of a finished candidate, NaN if it diverged; None for an unfinished one."""
        if name not in self.scores:
            return None
        score = self.scores[name]
        return math.nan if score is None else score

    def put(self, name: str, score: float) -> None:
        """Store the score of a candidate."""
        # JSON has no NaN.
        self.scores[name] = None if math.isnan(score) else score
        if rank() == 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with new_file(self.path) as temporary:
                temporary.write_text(json.dumps(self.scores), encoding="utf-8")


def checked_rows(backbone: Backbone, layer: Layer, train: Source, settings: Settings, *, seed: int) -> tuple[str, ...]:
    """Return the names of the results, after all checks that need no training."""
    requested(settings, Path(), {})  # refuses loggers that are not installed
    check_backbone(backbone, settings)
    (layer,) = head_layers(backbone, [layer], settings)
    parts = portions(settings, train)
    for portion in parts:
        source = portion.of(train, few_shot.seeds(seed, settings.draws)[0])
        halves = split(source, settings, seed)
        prepare(backbone, layer, source if halves is None else halves[0], settings, seed=seed, engine=None)
    return tuple(row_name(layer, portion) for portion in parts)


def row_name(layer: Layer, portion: Portion) -> str:
    """Return the name of a result: the layer, and the part of train if it is not all."""
    return f"{layer.text}, {portion.text}" if portion.text else layer.text
