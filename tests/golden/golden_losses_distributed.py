"""The losses of `golden_losses` in two processes, against what VISSL and lightly recorded there."""

import functools
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import torch
from golden_cases import Case, find_cases
from helpers import two_processes
from torch import Tensor
from torch.nn import functional

from sslbench.distributed.collectives import gather
from sslbench.methods import moco, simclr, swav
from sslbench.methods._parts.queue import enqueue_

Arrays = dict[str, np.ndarray]
Computation = Callable[[dict[str, Tensor], dict[str, object]], dict[str, Tensor]]
"""(a process's own part of the inputs, the case's settings) -> what the case recorded, by name."""

SHARED = ("queue", "center", "bank")
"""Inputs that all processes have in common; the others have a leading axis of processes."""

LOSS_TOLERANCE = 5e-6
GRADIENT_TOLERANCE = 2e-5


def check(case: Case, computations: Mapping[str, Computation]) -> None:
    """Runs all cases of the topic that `computations` knows in one go, and compares this one.

    Args:
        case: of the topic.
        computations: pattern of a case's name -> computation; functions at the top level of a module.
    """
    wanted = case.expected()
    for rank, found in enumerate(_results(case.topic, tuple(computations.items()))):
        assert set(found[case.name]) == set(wanted)
        for name, value in found[case.name].items():
            recorded = wanted[name][rank]
            if name == "loss":
                np.testing.assert_allclose(value, recorded, rtol=LOSS_TOLERANCE)
            else:
                np.testing.assert_allclose(value, recorded, rtol=0, atol=GRADIENT_TOLERANCE * np.abs(recorded).max())


@functools.cache
def _results(topic: Path, computations: tuple[tuple[str, Computation], ...]) -> list[dict[str, Arrays]]:
    jobs = [
        (case.name, computation, case.inputs(), case.meta["args"])
        for case in find_cases(topic.parent)
        for pattern, computation in computations
        if case.topic == topic and fnmatchcase(case.name, pattern)
    ]
    return two_processes.run(_compute, jobs)


def _compute(rank: int, jobs: list[tuple[str, Computation, Arrays, dict[str, object]]]) -> dict[str, Arrays]:
    results = {}
    for name, computation, inputs, args in jobs:
        mine = {key: torch.from_numpy(x if key in SHARED else x[rank]).clone() for key, x in inputs.items()}
        results[name] = {key: value.detach().numpy() for key, value in computation(mine, args).items()}
    return results


def _with_gradients(inputs: dict[str, Tensor], names: list[str], loss: Callable[[], Tensor]) -> dict[str, Tensor]:
    for name in names:
        inputs[name].requires_grad_()
    value = loss()
    value.backward()
    return {"loss": value, **{f"grad_{name}": inputs[name].grad for name in names}}


def _simclr(x: dict[str, Tensor], args: dict[str, object]) -> dict[str, Tensor]:
    return _with_gradients(x, ["embedding"], lambda: simclr.nt_xent(x["embedding"].unflatten(0, (2, -1)), args["T"]))


def _two_views(x: dict[str, Tensor], args: dict[str, object]) -> dict[str, Tensor]:
    return _with_gradients(x, ["z0", "z1"], lambda: simclr.nt_xent(torch.stack([x["z0"], x["z1"]]), args["T"]))


def _swav(x: dict[str, Tensor], args: dict[str, object]) -> dict[str, Tensor]:
    def loss() -> Tensor:
        views = x["scores"].unflatten(0, (args["nc"], -1))
        config = swav.Config(epsilon=args.get("epsilon", 0.05), iterations=args.get("num_iters", 3))
        assigned = args.get("crops_for_assign", range(min(2, args["nc"])))
        codes = torch.stack([swav.assign(views[i].detach(), None, config) for i in assigned])
        return swav.swapped_prediction(views, codes, assigned, args.get("T", 0.1))

    return _with_gradients(x, ["scores"], loss)


def _moco(x: dict[str, Tensor], args: dict[str, object]) -> dict[str, Tensor]:
    def loss() -> Tensor:
        return moco.info_nce(functional.normalize(x["query"], dim=1), x["key"], x["queue"].T, args["T"])

    result = _with_gradients(x, ["query"], loss)
    queue = x["queue"].T.clone()
    enqueue_(queue, gather(x["key"]), args.get("queue_ptr", args.get("ptr", 0)))
    return {**result, "queue_after": queue.T}


COMPUTATIONS: dict[str, Computation] = {
    "simclr_2ranks*": _simclr,
    "lightly_ntxent_gather_2ranks*": _two_views,
    "swav_2ranks*": _swav,
    "moco_2ranks*": _moco,
}


def losses(case: Case) -> None:
    """Value and gradients of a process's own loss."""
    check(case, COMPUTATIONS)


def multicrop_simclr(case: Case) -> None:
    """VISSL leaves out the negatives of other processes. Without a process group ours is the same, rank by rank.

    With one, ours counts them: tests/methods/test_simclr.py compares that with one process on the whole batch.
    """
    wanted, args = case.expected(), case.meta["args"]
    for rank, embedding in enumerate(case.inputs()["embedding"]):
        x = torch.from_numpy(embedding).clone().requires_grad_()
        loss = simclr.nt_xent(x.unflatten(0, (args["nc"], -1)), args["T"])
        loss.backward()
        np.testing.assert_allclose(loss.item(), wanted["loss"][rank], rtol=LOSS_TOLERANCE)
        gradient = wanted["grad_embedding"][rank]
        np.testing.assert_allclose(x.grad.numpy(), gradient, rtol=0, atol=GRADIENT_TOLERANCE * np.abs(gradient).max())


PATTERNS: dict[str, Callable[[Case], None]] = {
    **dict.fromkeys(COMPUTATIONS, losses),
    "multicrop_simclr_2ranks*": multicrop_simclr,
}
"""Name of a case of 01b_losses_distributed (a pattern) -> what runs it."""
