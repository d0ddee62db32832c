"""The losses of topic 01 in two processes, against what VISSL and lightly recorded there."""

import functools
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from golden_cases import Case, cases_of, option
from golden_losses import numbered
from golden_losses_distillation import dino_step
from helpers import two_processes
from torch import Tensor
from torch.nn import functional

from sslbench.distributed.collectives import gather
from sslbench.methods import barlow_twins, dcl, moco, simclr, swav, vicreg
from sslbench.methods._parts.memory import enqueue_

Arrays = dict[str, np.ndarray]
Args = Mapping[str, Any]
Computation = Callable[[dict[str, Tensor], Args], dict[str, Tensor]]
"""(a process's own part of the inputs, the case's settings) -> what the case recorded, by name."""

SHARED = ("queue", "center", "bank")
"""Inputs that all processes have in common; the others have a leading axis of processes."""

LOSS_TOLERANCE = 5e-6
GRADIENT_TOLERANCE = 2e-5


def losses(case: Case) -> None:
    """Compare value and gradients of a process's own loss."""
    for rank, found in enumerate(_results(case.topic)):
        assert set(_named(case.expected())) <= set(found[case.name])
        _check(case, rank, found[case.name])


def _named(wanted: Arrays) -> Arrays:
    """Recorded results by name, without the precision that may stand before it."""
    return {name.removeprefix("f32/"): value for name, value in wanted.items() if not name.startswith("f64/")}


def _check(case: Case, rank: int, found: Arrays) -> None:
    for name, recorded in _named(case.expected()).items():
        if name == "loss":
            np.testing.assert_allclose(found[name].ravel(), recorded[rank].ravel(), rtol=LOSS_TOLERANCE)
        else:
            atol = GRADIENT_TOLERANCE * np.abs(recorded[rank]).max()
            np.testing.assert_allclose(found[name].reshape(recorded[rank].shape), recorded[rank], rtol=0, atol=atol)


@functools.cache
def _results(topic: Path) -> list[dict[str, Arrays]]:
    """Run all cases of a topic in one go: for each process, results by case."""
    jobs = [
        (case.name, computation, case.inputs(), case.args)
        for case in cases_of(topic)
        for pattern, computation in COMPUTATIONS.items()
        if fnmatchcase(case.name, pattern)
    ]
    return two_processes.run(_compute, jobs)


def _compute(rank: int, jobs: list[tuple[str, Computation, Arrays, Args]]) -> dict[str, Arrays]:
    results = {}
    for name, computation, inputs, args in jobs:
        mine = {key: torch.from_numpy(x if key in SHARED else x[rank]).clone() for key, x in inputs.items()}
        results[name] = {key: value.detach().numpy() for key, value in computation(mine, args).items()}
    return results


def _with_gradients(x: dict[str, Tensor], names: list[str], loss: Callable[[], Tensor]) -> dict[str, Tensor]:
    for name in names:
        x[name].requires_grad_()
    value = loss()
    value.backward()
    return {"loss": value, **{f"grad_{name}": x[name].grad for name in names}}


def _temperature(args: Args, default: float) -> float:
    return float(option(args, "T", "temperature", "tau", default=default))


def _simclr(x: dict[str, Tensor], args: Args) -> dict[str, Tensor]:
    return _with_gradients(
        x, ["embedding"], lambda: simclr.nt_xent(x["embedding"].unflatten(0, (2, -1)), _temperature(args, 0.1))
    )


def _two_views(x: dict[str, Tensor], args: Args) -> dict[str, Tensor]:
    names = numbered(x, "z")
    return _with_gradients(
        x, names, lambda: simclr.nt_xent(torch.stack([x[name] for name in names]), _temperature(args, 0.5))
    )


def _decoupled(x: dict[str, Tensor], args: Args) -> dict[str, Tensor]:
    names = numbered(x, "z")
    return _with_gradients(
        x, names, lambda: dcl.decoupled(torch.stack([x[name] for name in names]), _temperature(args, 0.1))
    )


def _swav(x: dict[str, Tensor], args: Args) -> dict[str, Tensor]:
    names, crops = numbered(x, "scores"), option(args, "nc", "num_crops", default=2)
    config = swav.Config(
        epsilon=option(args, "epsilon", default=0.05),
        iterations=option(args, "num_iters", default=3),
        power_law=option(args, "shk_powerlaw", default=0.0),
        double_precision=option(args, "use_double_precision", default=False),
    )
    assigned = option(args, "crops_for_assign", default=range(min(2, crops)))
    hard = option(args, "temp_hard_assignment_iters", default=0) > 0

    def loss() -> Tensor:
        terms = []
        for name in names:
            views = x[name].unflatten(0, (crops, -1))
            codes = torch.stack([swav.assign(views[i].detach(), None, config, hard=hard) for i in assigned])
            terms.append(swav.swapped_prediction(views, codes, assigned, _temperature(args, 0.1)))
        return torch.stack(terms).mean()

    return _with_gradients(x, names, loss)


def _moco(x: dict[str, Tensor], args: Args) -> dict[str, Tensor]:
    def loss() -> Tensor:
        query = functional.normalize(x["query"], dim=1)
        return moco.info_nce(query, x["key"], x["queue"].T, _temperature(args, 0.2))

    result = _with_gradients(x, ["query"], loss)
    queue = x["queue"].T.clone()
    after = enqueue_(queue, gather(x["key"]), option(args, "queue_ptr", "ptr", default=0))
    return {**result, "queue_after": queue.T, "ptr_after": torch.tensor(after)}


def _barlow_rows(x: dict[str, Tensor], args: Args) -> dict[str, Tensor]:
    def loss() -> Tensor:
        za, zb = x["embedding"].chunk(2)
        settings = {
            "off_diagonal": option(args, "lambda_", default=0.0051),
            "scale": option(args, "scale_loss", default=0.024),
        }
        return barlow_twins.barlow_twins_loss(za, zb, **settings, normalisation="vissl")

    return _with_gradients(x, ["embedding"], loss)


def _vicreg_views(x: dict[str, Tensor], args: Args) -> dict[str, Tensor]:
    names = {"invariance": "lambda_param", "variance": "mu_param", "covariance": "nu_param"}
    weights = {ours: args[theirs] for ours, theirs in names.items() if theirs in args}
    return _with_gradients(x, ["z0", "z1"], lambda: vicreg.vicreg_loss(x["z0"], x["z1"], **weights))


def _dino_rows(x: dict[str, Tensor], args: Args) -> dict[str, Tensor]:
    center = x["center"].clone()
    defaults = {"teacher_temp": 0.05, "student_temp": 0.1, "center_momentum": 0.9}  # of the recorded run
    settings = [option(args, name, default=value) for name, value in defaults.items()]
    result = _with_gradients(x, ["student"], lambda: dino_step(x["student"], x["teacher"], center, *settings))
    return {**result, "center_after": center}


COMPUTATIONS: dict[str, Computation] = {
    "simclr_2ranks*": _simclr,
    "lightly_ntxent_gather_2ranks*": _two_views,
    "lightly_dcl_gather_2ranks*": _decoupled,
    "swav_2ranks*": _swav,
    "moco_2ranks*": _moco,
    "barlow_2ranks*": _barlow_rows,
    "lightly_vicreg_gather_2ranks*": _vicreg_views,
    "dino_2ranks*": _dino_rows,
}


def multicrop_simclr(case: Case) -> None:
    """VISSL leaves out the negatives of other processes. Without a process group ours is the same, rank by rank.

    With one, ours counts them: tests/methods/test_simclr.py compares that with one process on the whole batch.
    """
    temperature, crops = _temperature(case.args, 0.1), option(case.args, "nc", "num_crops", default=2)
    for rank, embedding in enumerate(case.inputs()["embedding"]):
        x = {"embedding": torch.from_numpy(embedding).clone()}
        found = _with_gradients(
            x, ["embedding"], lambda x=x: simclr.nt_xent(x["embedding"].unflatten(0, (crops, -1)), temperature)
        )
        _check(case, rank, {name: value.detach().numpy() for name, value in found.items()})


def barlow_normalised_alone(case: Case) -> None:
    """lightly normalises each process's rows alone, ours (like the official code) those of the whole batch.

    Rows that are normalised beforehand give lightly's value, but for the second epsilon. lightly's gradient is the sum
    over processes; that of `barlow_twins_loss` is smaller by their number, which `Method.loss` makes good.
    """
    wanted = _named(case.expected())
    # lightly's default is 0.005; the first recorded run was made with the paper's weight and does not say so.
    off_diagonal = option(case.args, "lambda_param", default=0.0051)
    for rank, found in enumerate(two_processes.run(_normalised_alone, case.inputs(), off_diagonal)):
        np.testing.assert_allclose(found["loss"].ravel(), wanted["loss"][rank].ravel(), rtol=5e-5)
        for name in ("grad_z0", "grad_z1"):
            recorded = wanted[name][rank]
            np.testing.assert_allclose(2 * found[name], recorded, rtol=0, atol=2e-4 * np.abs(recorded).max())


def _normalised_alone(rank: int, inputs: Arrays, off_diagonal: float) -> Arrays:
    x = {name: torch.from_numpy(value[rank]).clone() for name, value in inputs.items()}

    def loss() -> Tensor:
        za, zb = (functional.batch_norm(x[name], None, None, training=True) for name in ("z0", "z1"))
        return barlow_twins.barlow_twins_loss(za, zb, off_diagonal=off_diagonal)

    return {name: value.detach().numpy() for name, value in _with_gradients(x, ["z0", "z1"], loss).items()}


PATTERNS = {
    **{f"01b_losses_distributed/{kind}": losses for kind in COMPUTATIONS},
    "01b_losses_distributed/multicrop_simclr_2ranks*": multicrop_simclr,
    "01b_losses_distributed/lightly_barlow_gather_2ranks*": barlow_normalised_alone,
}
