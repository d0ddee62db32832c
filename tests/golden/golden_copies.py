"""Copy detection: micro AP of DISC, score normalisation of SSCD, Copydays of DINO."""

import re

import numpy as np
import numpy.typing as npt
import pytest
from golden_arrays import by_kind, options
from golden_cases import Case

from sslbench.metrics import retrieval
from sslbench.metrics.retrieval import GroundTruth
from sslbench.protocols.retrieval.descriptors import subtract_background, unit_length
from sslbench.solvers.whitening import fit_whitening


def share_found(
    scores: npt.NDArray[np.floating],
    correct: npt.NDArray[np.bool_],
    queries: npt.NDArray[np.integer],
    k: int,
    n_pairs: int,
) -> float:
    """Return the share of all true pairs that are predicted among the first k of their query, from 0 to 1.

    Equal scores count against a pair: its rank is the number of the query's predictions that score at least as much.

    `scores`: (M,) of the predicted pairs, higher is surer; `correct`: (M,) the pair is true; `queries`: (M,) number of
    the query of each pair.

    >>> share_found(np.array([0.9, 0.8, 0.3]), np.array([False, True, True]), np.array([0, 0, 1]), 1, 4)
    0.25
    """
    found = 0
    for query in np.unique(queries[correct]):
        own = queries == query
        ranks = (scores[own][:, None] >= scores[own & correct][None, :]).sum(axis=0)
        found += int((ranks <= k).sum())
    return found / n_pairs if n_pairs else float("nan")


def micro_ap(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    true = {tuple(pair) for pair in given["gt_pairs"].tolist()}
    correct = np.array([tuple(pair) in true for pair in given["pred_pairs"].tolist()], dtype=bool)
    scores, queries = given["scores"], given["pred_pairs"].reshape(-1, 2)[:, 0]
    found = dict(zip(("micro_ap", "recall_at_p90"), one_list(scores, correct, len(true)).tolist(), strict=True))
    for name, value in expected.items():
        if name in ("precisions", "recalls", "thresholds", "threshold_at_p90"):
            continue  # the curve behind both, which no record holds
        if at := re.fullmatch(r"recall_at_rank(\d+)", name):
            found[name] = share_found(scores, correct, queries, int(at[1]), len(true))
        wanted = np.nan_to_num(value.astype(np.float64))
        np.testing.assert_allclose(np.nan_to_num(found[name]), wanted, rtol=1e-9, err_msg=name)


def one_list(scores: npt.NDArray[np.float64], correct: npt.NDArray[np.bool_], pairs: int) -> npt.NDArray[np.float64]:
    """Return micro AP and the recall at a precision of 0.9, (2,), of the predictions of one query."""
    of_query, number = np.zeros(len(scores), dtype=np.int64), np.array([float(pairs)])
    return retrieval.micro_values(np.ones((1, 1)), scores, correct, of_query, number)[0]


def copydays(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    args = options(case, topk=20, distractors=0, blocks=["original", "strong"])
    number = args.get("originals", len(given["database"]) - args["distractors"])
    database, queries = (unit_length(given[name].astype(np.float64)) for name in ("database", "queries"))
    learnt = [value for name, value in given.items() if name.startswith("whit")]
    if args.get("whitened", bool(learnt)):
        whitening = fit_whitening(learnt[0], covariance="uncentred")
        database, queries = (unit_length(whitening.apply(given[name])) for name in ("database", "queries"))
    of_blocks = [given["strong_original"] if block == "strong" else np.arange(number) for block in args["blocks"]]
    ranks = [
        retrieval.ranks_of_positives(row, GroundTruth(np.array([original])))
        for row, original in zip(queries @ database.T, np.concatenate(of_blocks), strict=True)
    ]
    aps = np.array([retrieval.average_precision(r[r < args["topk"]], 1) for r in ranks])
    ours = [part.mean() for part in np.split(aps, np.cumsum([len(block) for block in of_blocks])[:-1])]
    if "map" in expected:
        np.testing.assert_allclose(ours, expected["map"], rtol=1e-3 if learnt else 1e-6)
    if "map_printed" in expected:
        np.testing.assert_allclose(ours, expected["map_printed"], rtol=0, atol=2e-3 if learnt else 5.01e-4)


def score_normalisation(case: Case) -> None:
    given, args = case.inputs(), options(case, k=10)
    true = {tuple(pair) for pair in given["gt_pairs"].tolist()}
    for key, value in case.expected().items():
        settings, _, name = key.rpartition("/")
        codec, norm, *scope = settings.split("|")
        each = [given[n].astype(np.float64) for n in ("query", "reference", "training")]
        for step in codec.split(","):
            if step.startswith("PCAW"):
                whitening = fit_whitening(each[2], int(step.removeprefix("PCAW")))
                each = [whitening.apply(x) for x in each]
            elif step == "L2norm":
                each = [unit_length(x) for x in each]
            else:
                assert step == "Flat", key
        query, reference, training = each
        if norm.lower() == "none":
            scores = -((query[:, None] - reference[None]) ** 2).sum(2)
        else:
            weight, first, last = re.fullmatch(r"([-\d.]+)\[(\d+)(?:,(\d+))?\]", norm).groups()
            a, b = subtract_background(
                query, reference, training, weight=float(weight), first=int(first), last=int(last or first)
            )
            scores = a @ b.T
        k = min(args["k"], len(reference))
        flat = np.sort(scores, axis=None)
        whole = scope or args.get("global_candidates")
        lowest = flat[-min(args["k"] * len(query), len(flat))] if whole else np.sort(scores, axis=1)[:, -k][:, None]
        queries, references = np.nonzero(scores >= lowest)
        correct = np.array([(q, r) in true for q, r in zip(queries.tolist(), references.tolist(), strict=True)])
        found = scores[queries, references]
        average_precision, recall = one_list(found, correct, len(true))
        ours = {
            "uAP": average_precision,
            "recall-at-p90": recall,
            "accuracy-at-1": share_found(found, correct, queries, 1, len(true)),
        }[name]
        assert np.nan_to_num(ours) == pytest.approx(np.nan_to_num(float(value)), rel=1e-4), key


PATTERNS = {
    "20_copy_detection/*": by_kind(
        {
            "isc.metrics|^micro_ap": micro_ap,
            "disc_eval|^score_normalisation": score_normalisation,
            "Copydays|^copydays": copydays,
        }
    )
}
