"""Barlow Twins, VICReg, BYOL, SimSiam, DINO(v2), iBOT as VISSL, lightly, solo-learn and DINO(v2) compute them."""

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from golden_arrays import by_kind
from golden_cases import Case, option
from golden_losses import KINDS as CONTRASTIVE
from golden_losses import Inputs, close, compare, inputs_in, not_offered, numbered, precision_of, recorded_precisions
from torch import Tensor
from torch.nn import functional

from sslbench.methods import barlow_twins, byol, dino, dinov2, msn, simsiam, vicreg
from sslbench.methods._parts import self_distillation
from sslbench.methods._parts.losses import sinkhorn, variance_and_covariance
from sslbench.methods._parts.self_distillation import patch_loss, teacher_probabilities, warmed_up
from sslbench.train.method import Step


def _barlow_twins(case: Case) -> None:
    """VISSL normalises both views together; lightly and solo-learn each by itself, as the paper."""
    together = case.is_of("vissl") or case.name.startswith("vissl")
    off_diagonal, scale = (0.0051, 0.024) if together else (0.005, 0.025) if _is_of_solo(case) else (0.005, 1.0)
    settings = {
        "off_diagonal": option(case.args, "lambda_", "lambda_param", "lamb", default=off_diagonal),
        "scale": option(case.args, "scale_loss", default=scale),
        "normalisation": "vissl" if together else "paper",
    }
    names = numbered(case.inputs(), "embedding") or ["za", "zb"]

    def loss(x: Inputs) -> Tensor:
        za, zb = x["embedding"].chunk(2) if "embedding" in x else (x["za"], x["zb"])
        return barlow_twins.barlow_twins_loss(za, zb, **settings)

    compare(case, names, loss)


def _is_of_solo(case: Case) -> bool:
    return case.is_of("solo") or case.name.startswith("solo")


def _vicreg(case: Case) -> None:
    """solo-learn adds the variance terms of the views, lightly (like the official code) takes their mean.

    lightly takes maps of embeddings too (images, positions, d): each position is a set.
    """
    args, given = case.args, case.inputs()
    variance = option(args, "mu_param", "var_loss_weight", default=25.0) * (2 if _is_of_solo(case) else 1)
    weights = (
        option(args, "lambda_param", "sim_loss_weight", default=25.0),
        variance,
        option(args, "nu_param", "cov_loss_weight", default=1.0),
    )
    settings = dict(zip(("invariance", "variance", "covariance"), weights, strict=True))
    if option(args, "eps", default=1e-4) != 1e-4:
        not_offered("VICReg with another epsilon")

    def loss(x: Inputs) -> Tensor:
        if x["za"].dim() == 2:
            return vicreg.vicreg_loss(x["za"], x["zb"], **settings)
        sets = [x[name].flatten(1, -2).movedim(0, -2) if x[name].dim() > 2 else x[name] for name in ("za", "zb")]
        (va, ca), (vb, cb) = (variance_and_covariance(z) for z in sets)
        terms = functional.mse_loss(x["za"], x["zb"]), (va + vb) / 2, ca + cb
        return torch.stack([weight * term for weight, term in zip(weights, terms, strict=True)]).sum()

    assert given["za"].shape == given["zb"].shape
    compare(case, ["za", "zb"], loss)


def _byol(case: Case) -> None:
    compare(case, ["p"], lambda x: byol.regression_loss(x["p"], x["z"]))


def _simsiam(case: Case) -> None:
    compare(case, ["p"], lambda x: simsiam.negative_cosine(x["p"], x["z"].detach()))


def _negative_cosine(case: Case) -> None:
    """lightly takes the cosine along any axis, and may bound the lengths from below."""
    axis, epsilon, given = option(case.args, "dim", default=1), option(case.args, "eps", default=1e-8), case.inputs()
    names = numbered(given, "p") + numbered(given, "z")
    shortest = min(np.linalg.norm(given[name], axis=axis).min() for name in names)
    if epsilon != 1e-8 and shortest**2 <= epsilon:
        not_offered("a cosine with another epsilon")

    def rows(x: Tensor) -> Tensor:
        return x.movedim(axis, -1).flatten(0, -2)

    compare(case, names, lambda x: simsiam.negative_cosine(*(rows(x[name]) for name in names)))


def _dino(case: Case) -> None:
    """Compare the loss of each step, the centre after it, and the teacher's temperature in each epoch.

    VISSL counts updates: with one update in each epoch the numbers are the same. lightly's temperatures are float32
    numbers, DINO's and VISSL's are not.
    """
    args, given, wanted = case.args, case.inputs(), case.expected()
    vissl, lightly = (
        any(case.is_of(name) or name in case.name for name in (project,)) for project in ("vissl", "lightly")
    )
    students, teachers = numbered(given, "student"), numbered(given, "teacher")
    epochs = option(args, "epochs", default=list(range(len(students))))
    last = option(args, "teacher_temp", default=0.04)
    config = dino.Config(
        prototypes=option(args, "out_dim", "output_dim", default=given[students[0]].shape[-1]),
        first_teacher_temperature=option(args, "warmup_teacher_temp", default=0.04),
        teacher_temperature=last,
        temperature_epochs=option(args, "warmup_teacher_temp_epochs", default=30),
        temperature_steps="update" if vissl else "epoch",
    )
    student_temperature = option(args, "student_temp", default=0.1)
    momentum = option(args, "center_momentum", "ema_center", default=0.9)
    views = len(option(args, "crops_for_teacher", default=(0, 1)))
    length = max(option(args, "nepochs", default=0), max(epochs) + 1)
    temperatures = [dino.teacher_temperature(config, Step(epoch, length, 1)) for epoch in range(length)]
    if "vtemps" in args:
        assert [temperatures[epoch] for epoch in epochs] == pytest.approx(
            args["vtemps"], rel=3e-7 if lightly else 1e-12
        )
    for precision in recorded_precisions(case):
        if (recorded := wanted.get(f"{precision}/teacher_temp_schedule")) is not None:
            rtol = 1e-12 if recorded.itemsize > 4 else 3e-7
            np.testing.assert_allclose(temperatures[: len(recorded)], recorded[: len(temperatures)], rtol=rtol)

    def loss(x: Inputs) -> Tensor:
        precision = precision_of(x[students[0]])
        center, values = x["center"].reshape(1, -1).clone(), []
        for i, (student, teacher, epoch) in enumerate(zip(students, teachers, epochs, strict=True)):
            temperature = float(np.float32(temperatures[epoch])) if lightly else temperatures[epoch]
            settings = temperature, student_temperature, momentum
            values.append(dino_step(x[student], x[teacher], center, *settings, teachers=views))
            if (recorded := wanted.get(f"{precision}/loss{i}")) is not None:
                close(values[-1].detach().numpy(), recorded.reshape(()), rtol=1e-5, atol=1e-6)
            if (recorded := wanted.get(f"{precision}/center{i}")) is not None:
                atol = 1e-6 if precision == "f32" else 1e-12
                np.testing.assert_allclose(center.numpy(), recorded.reshape(1, -1), rtol=0, atol=atol)
        return torch.stack(values).sum()

    compare(case, students, loss, f64=1e-6 if lightly else 1e-9)


def dino_step(
    student: Tensor,
    logits: Tensor,
    center: Tensor,
    teacher_temperature: float,
    temperature: float,
    momentum: float,
    *,
    teachers: int = 2,
) -> Tensor:
    """Return the loss of one step with some teacher views; the centre moves."""
    images, classes = len(logits) // teachers, student.shape[-1]
    teacher = dino.teacher_probabilities(logits, center, temperature=teacher_temperature).view(-1, images, classes)
    value = dino.dino_loss(student.view(-1, images, classes), teacher, temperature=temperature)
    _move_center(center, logits, momentum)
    return value


def _move_center(center: Tensor, logits: Tensor, momentum: float) -> None:
    self_distillation.move_center(center, logits.sum(0, keepdim=True), rows=len(logits), momentum=momentum)


def _ibot(case: Case) -> None:
    """Both losses and both centres; VISSL waits with the warm-up of the patches' temperature until masking starts."""
    args, wanted = case.args, case.expected()
    written = re.search(r"epoch=(\d+)", case.call)
    epoch = option(args, "epoch", default=int(written[1]) if written else 2)
    start, views = option(args, "mim_start_epoch", default=0), option(args, "ngcrops", default=2)
    length = option(args, "warmup_teacher_temp_epochs", default=30)
    student_temperature = option(args, "student_temp", default=0.1)
    momenta = option(args, "center_momentum", default=0.9), option(args, "center_momentum2", default=0.9)
    weights = option(args, "lambda1", default=1.0), option(args, "lambda2", default=1.0)
    epochs = option(args, "nepochs", default=epoch + 1)

    def temperatures(first: str, last: str, default: float, delay: int) -> list[float]:
        ends = option(args, first, default=0.04), option(args, last, default=default)
        return [warmed_up(*ends, position=max(position - delay, 0), length=length) for position in range(epochs)]

    of_classes = temperatures("warmup_teacher_temp", "teacher_temp", 0.04, 0)
    of_patches = temperatures("warmup_teacher_temp2", "teacher_temp2", 0.07, start)
    for precision in recorded_precisions(case):
        for name, ours in (("temp", of_classes), ("temp2", of_patches)):
            if (recorded := wanted.get(f"{precision}/{name}")) is not None:
                rtol = 1e-12 if recorded.itemsize > 4 else 3e-7
                np.testing.assert_allclose(ours[: len(recorded)], recorded[: len(ours)], rtol=rtol)

    def loss(x: Inputs) -> Tensor:
        precision = precision_of(x["s_cls"])
        teacher = teacher_probabilities(x["t_cls"], x["center"].reshape(1, -1), temperature=of_classes[epoch])
        student = torch.cat([x["s_cls"], x["s_local"]]) if "s_local" in x else x["s_cls"]
        shape = (-1, len(x["t_cls"]) // views, student.shape[-1])
        classes = dino.dino_loss(student.view(shape), teacher.view(shape), temperature=student_temperature)
        mask = x["mask"].bool().flatten(1)
        targets = teacher_probabilities(x["t_patch"], x["center2"].reshape(-1), temperature=of_patches[epoch])
        patches = patch_loss(x["s_patch"][mask], targets[mask], mask, temperature=student_temperature)
        values = classes * weights[0], patches * weights[1]
        for name, value in zip(("cls", "patch"), values, strict=True):
            if (recorded := wanted.get(f"{precision}/{name}")) is not None:
                close(value.detach().numpy(), recorded.reshape(()), rtol=1e-5, atol=1e-6)
        rows = x["t_cls"], x["t_patch"].flatten(0, 1)
        for name, logits, momentum in zip(("center", "center2"), rows, momenta, strict=True):
            center = x[name].reshape(1, -1).clone()
            _move_center(center, logits, momentum)
            _check_center(case, f"{precision}/{name}_after", center)
        return torch.stack(values).sum()

    compare(case, [name for name in ("s_cls", "s_patch", "s_local") if name in case.inputs()], loss)


def _check_center(case: Case, name: str, center: Tensor) -> None:
    if (recorded := case.expected().get(name)) is not None:
        np.testing.assert_allclose(center.numpy(), recorded.reshape(1, -1), rtol=0, atol=1e-6)


def _ibot_rows(case: Case) -> None:
    """lightly's rows are those of the masked patches only, by which its centre moves."""
    args = case.args
    teacher_temperature = option(args, "teacher_temp", default=0.04)
    student_temperature = option(args, "student_temp", default=0.1)

    def loss(x: Inputs) -> Tensor:
        center = x["center"].reshape(1, -1).clone()
        targets = teacher_probabilities(x["teacher"], center, temperature=teacher_temperature)
        if len(x["teacher"]):
            _move_center(center, x["teacher"], option(args, "center_momentum", default=0.9))
            _check_center(case, f"{precision_of(x['student'])}/center_after", center)
        mask = x["mask"].bool().flatten(1)
        return patch_loss(x["student"], targets, mask, temperature=student_temperature)

    compare(case, ["student"], loss, f64=1e-6)  # lightly's temperature is a float32 number


def _dinov2(case: Case) -> None:
    """DINOv2 adds up the losses of all pairs of the crops given; here each pair is a loss of its own.

    The number of images is not among the arguments: KoLeo is of the first crop of the student.
    """
    args, wanted, given = case.args, case.expected(), case.inputs()
    temperature, count = option(args, "teacher_temp", default=0.05), option(args, "n_iterations", default=3)
    student_temperature = option(args, "student_temp", default=0.1)
    rows = len(given["student"]), len(given["teacher"])
    images = rows[1] // 2
    if (regulariser := wanted.get("f32/koleo", wanted.get("f64/koleo"))) is not None:
        student = torch.from_numpy(given["student"]).float()
        found = {n: dinov2.koleo(student[:n]).item() for n in range(2, rows[0] + 1)}
        nearest = min(found, key=lambda n: abs(found[n] - regulariser.item()))
        assert found[nearest] == pytest.approx(regulariser.item(), abs=1e-5)
        images = nearest if not (rows[0] % nearest or rows[1] % nearest) else images

    def loss(x: Inputs, *, balanced: bool = False) -> Tensor:
        precision = precision_of(x["student"])
        center = x["center"].reshape(1, -1).clone()
        centred = teacher_probabilities(x["teacher"], center, temperature=temperature)
        codes = sinkhorn(x["teacher"].float(), epsilon=temperature, iterations=count)
        for name, ours in (("teacher_centered", centred), ("teacher_sinkhorn", codes)):
            if (recorded := wanted.get(f"{precision}/{name}")) is not None:
                np.testing.assert_allclose(ours.numpy(), recorded, rtol=1e-4, atol=1e-6)
        _move_center(center, x["teacher"], option(args, "center_momentum", default=0.9))
        _check_center(case, f"{precision}/center_after", center)
        targets = (codes.to(x["student"].dtype) if balanced else centred).split(images)
        pairs = [
            dino.dino_loss(
                torch.stack([torch.zeros_like(student), student]), target[None], temperature=student_temperature
            )
            for student in x["student"].split(images)
            for target in targets
        ]
        return torch.stack(pairs).sum()

    compare(case, ["student"], loss)
    for precision in recorded_precisions(case):
        if (recorded := wanted.get(f"{precision}/loss_sinkhorn")) is not None:
            value = loss(inputs_in(case, precision), balanced=True).numpy()
            np.testing.assert_allclose(value, recorded.reshape(()), rtol=2e-6)


def _msn(case: Case) -> None:
    args, names = case.args, ["anchors", "prototypes"]
    settings = {
        "temperature": option(args, "temperature", default=0.1),
        "sharpening": option(args, "target_sharpen_temperature", default=0.25),
        "iterations": option(args, "sinkhorn_iterations", default=3),
        "entropy_weight": option(args, "me_max_weight", "regularization_weight", default=1.0),
    }
    compare(case, names, lambda x: msn.msn_loss(x["anchors"], x["targets"], x["prototypes"], **settings), f64=1e-7)


def _koleo(case: Case) -> None:
    args = case.args
    if option(args, "p", default=2) != 2 or option(args, "eps", default=1e-8) != 1e-8:
        not_offered("KoLeo with another norm or epsilon")
    compare(case, ["x"], lambda x: dinov2.koleo(x["x"]), f64=1e-6)


KINDS: dict[str, Callable[[Case], None]] = {
    r"dinov2": _dinov2,
    r"KoLeo|koleo": _koleo,
    r"MSNLoss|lightly_msn": _msn,
    r"iBOTCriterion|ibot_vissl": _ibot,
    r"IBOTPatchLoss|ibot_lightly": _ibot_rows,
    r"(?i)barlow": _barlow_twins,
    r"(?i)vicreg": _vicreg,
    r"byol": _byol,
    r"simsiam": _simsiam,
    r"NegativeCosine|negcos": _negative_cosine,
    r"DINOLoss|^dino_": _dino,
}
"""Callable or name of a case of 01_losses (a regular expression; the first counts) -> its runner."""

PATTERNS = {"01_losses/*": by_kind({**KINDS, **CONTRASTIVE})}
