"""Barlow Twins, VICReg, BYOL, SimSiam, DINO(v2), iBOT as VISSL, lightly, solo-learn and DINO(v2) compute them."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from golden_cases import Case
from golden_losses import PRECISIONS, close, compare, value_of
from golden_losses_distributed import Computation, check
from helpers import two_processes
from torch import Tensor
from torch.nn import functional

from sslbench.methods import barlow_twins, byol, dino, dinov2, msn, simsiam, vicreg
from sslbench.methods._parts import self_distillation
from sslbench.methods._parts.self_distillation import patch_loss, teacher_probabilities, warmed_up
from sslbench.methods._parts.sinkhorn import sinkhorn
from sslbench.train.method import Step


def _barlow_twins(case: Case) -> None:
    """VISSL normalises both views together; lightly and solo-learn each by itself, as the paper."""
    args = case.meta["args"]
    settings = {
        "off_diagonal": value_of(args, "lambda_", "lambda_param", "lamb", default=0.0051),
        "scale": args.get("scale_loss", 1.0),
        "normalisation": "vissl" if case.name.startswith("vissl") else "paper",
    }
    compare(case, ["za", "zb"], lambda x: barlow_twins.barlow_twins_loss(x["za"], x["zb"], **settings))


def _vicreg(case: Case) -> None:
    """solo-learn adds the variance terms of the views, lightly (like the official code) takes their mean."""
    args = case.meta["args"]
    if case.name.startswith("solo"):
        weights = (args["sim_loss_weight"], 2 * args["var_loss_weight"], args["cov_loss_weight"])
    else:
        weights = (args.get("lambda_param", 25.0), args.get("mu_param", 25.0), args.get("nu_param", 1.0))
    settings = dict(zip(("invariance", "variance", "covariance"), weights, strict=True))
    compare(case, ["za", "zb"], lambda x: vicreg.vicreg_loss(x["za"], x["zb"], **settings))


def _byol(case: Case) -> None:
    compare(case, ["p"], lambda x: byol.regression_loss(x["p"], x["z"]))


def _simsiam(case: Case) -> None:
    compare(case, ["p"], lambda x: simsiam.negative_cosine(x["p"], x["z"].detach()))


def _negative_cosine(case: Case) -> None:
    compare(case, ["p", "z"], lambda x: simsiam.negative_cosine(x["p"], x["z"]))


def _dino(case: Case) -> None:
    """Compare the loss of each step, the centre after it, and the teacher's temperature in each epoch."""
    args = case.meta["args"]
    init = args["init"]
    config = dino.Config(
        prototypes=init["out_dim"],
        first_teacher_temperature=init["warmup_teacher_temp"],
        teacher_temperature=init["teacher_temp"],
        temperature_epochs=init["warmup_teacher_temp_epochs"],
        temperature_steps="update" if case.name.startswith("dino_vissl") else "epoch",
    )
    # VISSL counts updates: with one update in each epoch the numbers are the same.
    moments = [Step(epoch, init["nepochs"], 1) for epoch in range(init["nepochs"])]
    temperatures = [dino.teacher_temperature(config, step) for step in moments]
    assert [temperatures[epoch] for epoch in args["epochs"]] == pytest.approx(args["vtemps"], rel=1e-12)
    wanted = case.expected()
    for precision in PRECISIONS:
        if f"{precision}/teacher_temp_schedule" in wanted:
            recorded = wanted[f"{precision}/teacher_temp_schedule"]
            np.testing.assert_allclose(
                temperatures[: len(recorded)], recorded, rtol=1e-12 if recorded.itemsize > 4 else 1e-7
            )

    def loss(x: dict[str, Tensor]) -> Tensor:
        precision = next(name for name, dtype in PRECISIONS.items() if dtype == x["student0"].dtype)
        center, values = x["center"].clone(), []
        for i, epoch in enumerate(args["epochs"]):
            views = x[f"student{i}"], x[f"teacher{i}"]
            others = temperatures[epoch], init["student_temp"], init["center_momentum"]
            values.append(_dino_step(views[0], views[1], center, *others))
            recorded = wanted[f"{precision}/center{i}"].reshape(1, -1)
            np.testing.assert_allclose(center.numpy(), recorded, rtol=0, atol=1e-6 if precision == "f32" else 1e-12)
        return torch.stack(values).sum()

    # lightly's temperatures are float32 numbers, DINO's and VISSL's centres are not.
    names = [f"student{i}" for i in range(len(args["epochs"]))]
    compare(case, names, loss, f64=1e-7 if case.name.startswith("dino_lightly") else 1e-9)


def _dino_step(
    student: Tensor, logits: Tensor, center: Tensor, teacher_temperature: float, temperature: float, momentum: float
) -> Tensor:
    """The loss of one step with two teacher views; the centre moves."""
    images, classes = len(logits) // 2, student.shape[-1]
    teacher = dino.teacher_probabilities(logits, center, temperature=teacher_temperature)
    value = dino.dino_loss(student.view(-1, images, classes), teacher.view(2, images, classes), temperature=temperature)
    self_distillation.move_center(center, logits.sum(0, keepdim=True), rows=len(logits), momentum=momentum)
    return value


def _ibot(case: Case) -> None:
    """Both losses and both centres; VISSL waits with the warm-up of the patches' temperature until masking starts."""
    args, wanted = case.meta["args"], case.expected()
    epoch, start, views = 2, args["mim_start_epoch"], args["ngcrops"]
    length = args["warmup_teacher_temp_epochs"]

    def temperature(first: float, last: float, position: int) -> float:
        return warmed_up(first, last, position=max(position, 0), length=length)

    of_classes = [temperature(args["warmup_teacher_temp"], args["teacher_temp"], e) for e in range(args["nepochs"])]
    second = args["warmup_teacher_temp2"], args["teacher_temp2"]
    of_patches = [temperature(*second, e - start) for e in range(args["nepochs"])]
    np.testing.assert_allclose(of_classes, wanted["f64/temp"], rtol=1e-12)
    np.testing.assert_allclose(of_patches, wanted["f64/temp2"], rtol=1e-12)

    def loss(x: dict[str, Tensor]) -> Tensor:
        precision = next(name for name, dtype in PRECISIONS.items() if dtype == x["s_cls"].dtype)
        teacher = teacher_probabilities(x["t_cls"], x["center"], temperature=of_classes[epoch])
        student = torch.cat([x["s_cls"], x["s_local"]]) if "s_local" in x else x["s_cls"]
        images = len(x["t_cls"]) // views
        shape = (-1, images, args["out_dim"])
        classes = dino.dino_loss(student.view(shape), teacher.view(shape), temperature=args["student_temp"])
        mask = x["mask"].bool().flatten(1)
        targets = teacher_probabilities(x["t_patch"], x["center2"], temperature=of_patches[epoch])
        patches = patch_loss(x["s_patch"][mask], targets[mask], mask, temperature=args["student_temp"])
        for name, value in (("cls", classes), ("patch", patches)):
            close(value.detach().numpy(), wanted[f"{precision}/{name}"].reshape(()), rtol=1e-5, atol=1e-6)
        for name, logits in (("center", x["t_cls"]), ("center2", x["t_patch"].flatten(0, 1))):
            center = x[name].reshape(1, -1).clone()
            self_distillation.move_center(center, logits.sum(0, keepdim=True), rows=len(logits), momentum=0.9)
            after = wanted[f"{precision}/{name}_after"].reshape(1, -1)
            np.testing.assert_allclose(center.numpy(), after, rtol=0, atol=1e-6)
        return classes * args["lambda1"] + patches * args["lambda2"]

    compare(case, [name for name in ("s_cls", "s_patch", "s_local") if name in case.inputs()], loss)


def _ibot_rows(case: Case) -> None:
    """lightly's rows are those of the masked patches only, by which its centre moves."""
    args, wanted = case.meta["args"], case.expected()

    def loss(x: dict[str, Tensor]) -> Tensor:
        precision = next(name for name, dtype in PRECISIONS.items() if dtype == x["student"].dtype)
        targets = teacher_probabilities(x["teacher"], x["center"], temperature=args["teacher_temp"])
        center = x["center"].clone()
        rows = x["teacher"]
        self_distillation.move_center(center, rows.sum(0, keepdim=True), rows=len(rows), momentum=0.9)
        np.testing.assert_allclose(center.numpy(), wanted[f"{precision}/center_after"], rtol=0, atol=1e-6)
        mask = x["mask"].bool().flatten(1)
        return patch_loss(x["student"], targets, mask, temperature=args["student_temp"])

    compare(case, ["student"], loss, f64=1e-7)


def _dinov2(case: Case) -> None:
    """DINOv2 adds up the losses of all pairs of the crops given; here each pair is a loss of its own."""
    args, wanted = case.meta["args"], case.expected()
    temperature, count = args["teacher_temp"], args["n_iterations"]
    recorded = wanted["f64/loss_sinkhorn"]

    def loss(x: dict[str, Tensor], *, balanced: bool = False) -> Tensor:
        precision = next(name for name, dtype in PRECISIONS.items() if dtype == x["student"].dtype)
        centred = teacher_probabilities(x["teacher"], x["center"], temperature=temperature)
        codes = sinkhorn(x["teacher"].float(), epsilon=temperature, iterations=count)
        np.testing.assert_allclose(centred.numpy(), wanted[f"{precision}/teacher_centered"], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(codes.numpy(), wanted[f"{precision}/teacher_sinkhorn"], rtol=1e-4, atol=1e-6)
        center = x["center"].clone()
        rows = x["teacher"]
        self_distillation.move_center(center, rows.sum(0, keepdim=True), rows=len(rows), momentum=0.9)
        np.testing.assert_allclose(center.numpy(), wanted[f"{precision}/center_after"], rtol=0, atol=1e-6)
        images = len(rows) // 2
        targets = (codes.to(x["student"].dtype) if balanced else centred).split(images)
        pairs = [
            dino.dino_loss(torch.stack([torch.zeros_like(student), student]), target[None], temperature=0.1)
            for student in x["student"].split(images)
            for target in targets
        ]
        return torch.stack(pairs).sum()

    compare(case, ["student"], loss)
    x = {name: torch.from_numpy(value).double() for name, value in case.inputs().items()}
    np.testing.assert_allclose(loss(x, balanced=True).numpy(), recorded.reshape(()), rtol=1e-6)
    found = [dinov2.koleo(x["student"][:n].float()).item() for n in range(2, len(x["student"]) + 1)]
    assert min(abs(value - wanted["f32/koleo"].item()) for value in found) < 1e-5


def _msn(case: Case) -> None:
    args, names = case.meta["args"], ["anchors", "prototypes"]
    settings = {
        "temperature": args["temperature"],
        "sharpening": args["target_sharpen_temperature"],
        "iterations": args["sinkhorn_iterations"],
        "entropy_weight": args["regularization_weight"],
    }
    compare(case, names, lambda x: msn.msn_loss(x["anchors"], x["targets"], x["prototypes"], **settings), f64=1e-7)


def _koleo(case: Case) -> None:
    compare(case, ["x"], lambda x: dinov2.koleo(x["x"]), f64=1e-6)


PATTERNS: dict[str, Callable[[Case], None]] = {
    "dinov2_clstoken*": _dinov2,
    "lightly_koleo_*": _koleo,
    "lightly_msn_*": _msn,
    "ibot_vissl_*": _ibot,
    "ibot_lightly*": _ibot_rows,
    "*_barlow_n*": _barlow_twins,
    "*_vicreg_n*": _vicreg,
    "solo_byol*": _byol,
    "solo_simsiam*": _simsiam,
    "lightly_negcos*": _negative_cosine,
    "dino_*_c*": _dino,
}
"""Name of a case of 01_losses (a pattern) -> what runs it."""


def with_gradients(x: dict[str, Tensor], names: list[str], loss: Callable[[], Tensor]) -> dict[str, Tensor]:
    for name in names:
        x[name].requires_grad_()
    value = loss()
    value.backward()
    return {"loss": value, **{f"grad_{name}": x[name].grad for name in names}}


def _barlow_rows(x: dict[str, Tensor], args: dict[str, object]) -> dict[str, Tensor]:
    def loss() -> Tensor:
        za, zb = x["embedding"].chunk(2)
        settings = {"off_diagonal": args.get("lambda_", 0.0051), "scale": args.get("scale_loss", 0.024)}
        return barlow_twins.barlow_twins_loss(za, zb, **settings, normalisation="vissl")

    return with_gradients(x, ["embedding"], loss)


def _vicreg_views(x: dict[str, Tensor], args: dict[str, object]) -> dict[str, Tensor]:
    names = {"invariance": "lambda_param", "variance": "mu_param", "covariance": "nu_param"}
    weights = {ours: args[theirs] for ours, theirs in names.items() if theirs in args}
    return with_gradients(x, ["z0", "z1"], lambda: vicreg.vicreg_loss(x["z0"], x["z1"], **weights))


def _dino_rows(x: dict[str, Tensor], args: dict[str, object]) -> dict[str, Tensor]:
    center = x["center"].clone()
    init = {"teacher_temp": 0.05, "student_temp": 0.1, "center_momentum": 0.9, **args.get("init", {}), **args}
    settings = [init[name] for name in ("teacher_temp", "student_temp", "center_momentum")]
    result = with_gradients(x, ["student"], lambda: _dino_step(x["student"], x["teacher"], center, *settings))
    return {**result, "center_after": center}


COMPUTATIONS: dict[str, Computation] = {
    "barlow_2ranks*": _barlow_rows,
    "lightly_vicreg_gather_2ranks*": _vicreg_views,
    "dino_2ranks*": _dino_rows,
}


def losses_of_two_processes(case: Case) -> None:
    """Value and gradients of a process's own loss."""
    check(case, COMPUTATIONS)


def barlow_normalised_alone(case: Case) -> None:
    """lightly normalises each process's rows alone, ours (like the official code) those of the whole batch.

    Rows that are normalised beforehand give lightly's value, but for the second epsilon. lightly's gradient is the sum
    over processes; that of `barlow_twins_loss` is smaller by their number, which `Method.loss` makes good.
    """
    wanted = case.expected()
    off_diagonal = value_of(case.meta["args"], "lambda_param", default=0.0051)
    for rank, found in enumerate(two_processes.run(_normalised_alone, case.inputs(), off_diagonal)):
        np.testing.assert_allclose(found["loss"], wanted["loss"][rank], rtol=5e-5)
        for name in ("grad_z0", "grad_z1"):
            recorded = wanted[name][rank]
            np.testing.assert_allclose(2 * found[name], recorded, rtol=0, atol=2e-4 * np.abs(recorded).max())


def _normalised_alone(rank: int, inputs: dict[str, np.ndarray], off_diagonal: float) -> dict[str, np.ndarray]:
    x = {name: torch.from_numpy(value[rank]).clone() for name, value in inputs.items()}

    def loss() -> Tensor:
        za, zb = (functional.batch_norm(x[name], None, None, training=True) for name in ("z0", "z1"))
        return barlow_twins.barlow_twins_loss(za, zb, off_diagonal=off_diagonal)

    return {name: value.detach().numpy() for name, value in with_gradients(x, ["z0", "z1"], loss).items()}


PATTERNS_2_PROCESSES: dict[str, Callable[[Case], None]] = {
    **dict.fromkeys(COMPUTATIONS, losses_of_two_processes),
    "lightly_barlow_gather_2ranks*": barlow_normalised_alone,
}
"""Name of a case of 01b_losses_distributed -> what runs it."""
