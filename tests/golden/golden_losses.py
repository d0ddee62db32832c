"""SimCLR, MoCo, MoCo v3, SwAV and cross entropy as VISSL, lightly, solo-learn and MoCo's own code compute them."""

import functools
import re
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pytest
import torch
from golden_cases import Case, option
from scipy.special import logsumexp
from torch import Tensor
from torch.nn import functional

from sslbench.methods import dcl, deepclusterv2, moco, moco_v3, nnclr, ressl, simclr, supcon, swav, tico
from sslbench.methods._parts.losses import cross_entropy, multi_label_loss
from sslbench.methods._parts.memory import MemoryBank, enqueue_, shift_in
from sslbench.protocols.linear_online.heads import head_losses

Inputs = Mapping[str, Tensor]

PRECISIONS = {"f32": torch.float32, "f64": torch.float64}
LOSS_TOLERANCE = {"f32": 2e-6, "f64": 1e-9}
GRADIENT_TOLERANCE = {"f32": 1e-5, "f64": 1e-9}
SOFTPLUS = 5e-9
"""Tolerance of losses by torch's softplus, which leaves out exp(-x) for x above 20."""


def recorded_precisions(case: Case) -> dict[str, torch.dtype]:
    """Return the precisions in which a case has results."""
    wanted = case.expected()
    return {name: dtype for name, dtype in PRECISIONS.items() if any(key.startswith(name + "/") for key in wanted)}


def precision_of(tensor: Tensor) -> str:
    return next(name for name, dtype in PRECISIONS.items() if dtype == tensor.dtype)


def compare(case: Case, names: Iterable[str], loss: Callable[[Inputs], Tensor], *, f64: float = 1e-9) -> None:
    """Compare loss and gradients with respect to the inputs `names`, in float32 and float64.

    Where the reference's float32 value is no number, ours is compared with its float64 value; where that is none
    either, any finite value is right, or the same one. In float32 ours may be twice as far off as the reference's own
    float32 value is from its float64 value.

    Args:
        case: a case of the topic of losses.
        names: inputs that may have a recorded gradient.
        loss: of the inputs.
        f64: tolerance in float64, larger where the reference rounds to float32 inside.
    """
    wanted, precisions = case.expected(), recorded_precisions(case)
    assert precisions, "nothing is recorded"
    for precision in precisions:
        inputs = inputs_in(case, precision)
        compared = [name for name in names if f"{precision}/grad_{name}" in wanted]
        for name in compared:
            inputs[name].requires_grad_()
        value = loss(inputs)
        instead = "f64" if "f64" in precisions and not np.isfinite(wanted[f"{precision}/loss"]).all() else precision
        rtol = LOSS_TOLERANCE["f32"] if precision == "f32" else f64
        atol = (1e-6 if rtol > 1e-7 else 1e-14) + _rounding(wanted, "loss")[precision]
        close(value.detach().numpy(), wanted[f"{instead}/loss"].reshape(()), rtol=rtol, atol=atol)
        if not compared:
            continue
        value.backward()
        for name in compared:
            gradient = wanted[f"{instead}/grad_{name}"]
            share = GRADIENT_TOLERANCE["f32"] if precision == "f32" else max(f64, GRADIENT_TOLERANCE["f64"])
            largest = np.abs(gradient[np.isfinite(gradient)]).max(initial=0.0)
            atol = share * largest + (1e-8 if share > 1e-7 else 1e-15) + _rounding(wanted, f"grad_{name}")[precision]
            close(inputs[name].grad.numpy(), gradient, rtol=0, atol=atol)


def _rounding(wanted: Mapping[str, np.ndarray], name: str) -> dict[str, float]:
    """Return twice the distance of the reference's own float32 result from its float64 one, by precision."""
    single, double = (wanted.get(f"{precision}/{name}") for precision in PRECISIONS)
    if single is None or double is None:
        return dict.fromkeys(PRECISIONS, 0.0)
    with np.errstate(invalid="ignore"):
        apart = np.abs(single - double)
    return {"f32": 2 * float(apart[np.isfinite(apart)].max(initial=0.0)), "f64": 0.0}


def inputs_in(case: Case, precision: str) -> dict[str, Tensor]:
    """Return the inputs as tensors: floats in a precision, all others as int64."""
    dtype = PRECISIONS[precision]
    return {
        name: torch.from_numpy(value).to(dtype if value.dtype.kind == "f" else torch.int64)
        for name, value in case.inputs().items()
    }


def close(ours: np.ndarray, recorded: np.ndarray, *, rtol: float, atol: float) -> None:
    """Assert that ours are the recorded values; where the reference has no number, the same none or any number."""
    known = np.isfinite(recorded)
    assert (np.isfinite(ours) | (ours == recorded) | (np.isnan(ours) & np.isnan(recorded))).all()
    np.testing.assert_allclose(ours[known], recorded[known], rtol=rtol, atol=atol)


def numbered(inputs: Iterable[str], prefix: str) -> list[str]:
    """Return the names of inputs that are `prefix` and a number, by number; or `prefix` alone."""
    found = [name for name in inputs if re.fullmatch(rf"{prefix}\d*", name)]
    return sorted(found, key=lambda name: int(name.removeprefix(prefix) or 0))


def not_offered(what: str) -> None:
    """Skip a case of an option that the product does not have."""
    pytest.skip(f"sslbench does not offer {what}")


def _temperature(case: Case, default: float) -> float:
    return float(option(case.args, "temperature", "T", "tau", default=default))


def _named(case: Case, *names: str) -> str:
    """Return the first of these names that an input has."""
    return next(name for name in names if name in case.inputs())


def _views(rows: Tensor, count: int) -> Tensor:
    """View-major rows (count * B, d) as (count, B, d)."""
    return rows.unflatten(0, (count, -1))


def _unit(rows: Tensor) -> Tensor:
    return functional.normalize(rows, dim=1)


def _simclr(case: Case) -> None:
    """VISSL's exponentials overflow in float32 at a low temperature; ours give what it gets in float64 there too."""
    compare(
        case, ["embedding"], lambda x: simclr.nt_xent(_views(x["embedding"], 2), _temperature(case, 0.1)), f64=SOFTPLUS
    )


def _multicrop_simclr(case: Case) -> None:
    """VISSL's `effective_batch_size` counts images here, so it tells the number of crops too."""
    args, rows = case.args, len(case.inputs()["embedding"])
    crops = option(args, "num_crops", default=rows // option(args, "effective_batch_size", default=rows // 2))
    compare(
        case,
        ["embedding"],
        lambda x: simclr.nt_xent(_views(x["embedding"], crops), _temperature(case, 0.1)),
        f64=SOFTPLUS,
    )


def _nt_xent(case: Case) -> None:
    """With a memory bank it is InfoNCE.

    lightly drops keys where its bank is not a multiple of the batch; we refuse such a queue when it is made.
    """
    given, temperature = case.inputs(), _temperature(case, 0.5)
    if "bank" in given:
        query, key = _named(case, "q", "query"), _named(case, "k", "key")
        compare(
            case, [query], lambda x: moco.info_nce(_unit(x[query]), _unit(x[key]), x["bank"], temperature), f64=SOFTPLUS
        )
        return
    names = numbered(given, "z")
    compare(case, names, lambda x: simclr.nt_xent(torch.stack([x[name] for name in names]), temperature), f64=SOFTPLUS)


def _rows_with_labels(case: Case) -> None:
    """solo-learn sums the positives inside the logarithm (eq. 3) without dividing by their number.

    Labels are those of rows; where all views of an image have the same one, ours takes it once. With two views that
    are the only positives of each other it is NT-Xent.
    """
    names, temperature = numbered(case.inputs(), "z"), _temperature(case, 0.1)
    rows = sum(len(case.inputs()[name]) for name in names)
    labels = case.inputs().get("indexes", np.tile(np.arange(rows // len(names)), len(names)))
    by_view = labels.reshape(len(names), -1)
    positives = (labels[:, None] == labels).sum(axis=1) - 1
    if not positives.all():  # the logarithm of nothing, which ours cannot meet: an image has several views
        assert not np.isfinite(next(value for key, value in case.expected().items() if key.endswith("/loss"))).any()
        return

    def loss(x: Inputs) -> Tensor:
        views, own = torch.stack([x[name] for name in names]), torch.from_numpy(labels)
        own, views = (
            (own[: views.shape[1]], views) if (by_view == by_view[0]).all() else (own, views.flatten(0, 1)[None])
        )
        return supcon.supervised_contrastive(views, own, temperature, "inside") - float(np.log(positives).mean())

    compare(case, names, loss)
    if len(names) == 2 and (by_view[0] == by_view[1]).all() and (positives == 1).all():
        compare(
            case, names, lambda x: simclr.nt_xent(torch.stack([x[name] for name in names]), temperature), f64=SOFTPLUS
        )


def _moco(case: Case, *, unit_query: bool, unit_key: bool, temperature: float) -> None:
    """Compare InfoNCE and the queue, which is (d, K) in the references; ours holds rows.

    Args:
        case: of MoCo.
        unit_query: the reference normalises queries, which ours takes normalised.
        unit_key: the same of keys.
        temperature: the reference's default.
    """
    query, key = _named(case, "query", "q"), _named(case, "key", "k")
    temperature = _temperature(case, temperature)

    def keys(x: Inputs) -> Tensor:
        return _unit(x[key]) if unit_key else x[key]

    def loss(x: Inputs) -> Tensor:
        q = _unit(x[query]) if unit_query else x[query]
        return moco.info_nce(q, keys(x), x["queue"].T, temperature)

    compare(case, [query], loss, f64=SOFTPLUS)
    wanted = case.expected()
    for precision in recorded_precisions(case):
        if f"{precision}/queue_after" in wanted:
            x = inputs_in(case, precision)
            queue = x["queue"].T.clone()
            after = enqueue_(queue, keys(x), option(case.args, "queue_ptr", "ptr", default=0))
            np.testing.assert_allclose(queue.T.numpy(), wanted[f"{precision}/queue_after"], rtol=0, atol=2e-7)
            assert after == wanted[f"{precision}/ptr_after"].item()


def _moco_v3(case: Case) -> None:
    query, key, temperature = _named(case, "query", "q"), _named(case, "key", "k"), _temperature(case, 0.2)
    compare(case, [query], lambda x: moco_v3.contrastive(x[query], x[key], temperature))


def _swav(case: Case) -> None:
    """Compare all of VISSL's options.

    Where its exponentials leave the range of its floats, it replaces what overflows and adds a constant to what is 0,
    so that its codes are others; ours, which never leave it, are compared with codes by logarithms there.
    """
    args, wanted, given = case.args, case.expected(), case.inputs()
    config = swav.Config(
        temperature=_temperature(case, 0.1),
        epsilon=option(args, "epsilon", default=0.05),
        iterations=option(args, "num_iters", default=3),
        assign_views=tuple(option(args, "crops_for_assign", default=(0, 1))),
        power_law=option(args, "shk_powerlaw", default=0.0),
        double_precision=option(args, "use_double_precision", default=False),
    )
    crops, update = option(args, "num_crops", default=2), option(args, "_iter", "num_iteration", default=0)
    hard = option(args, "temp_hard_assignment_iters", default=0) > update
    names, queues = numbered(given, "scores"), numbered(given, "queue_scores")
    queue_in_use = bool(queues) and update >= option(args, "start_iter", default=0)
    queue_in_use = queue_in_use and option(args, "local_queue_length", default=1) > 0

    def samples(x: Inputs, head: int) -> Iterable[tuple[Tensor, Tensor | None]]:
        """Scores and queued scores of each assigned view."""
        views = _views(x[names[head]].detach(), crops)
        queued = list(x[queues[head]]) if queue_in_use else [None] * len(config.assign_views)
        return [(views[view], past) for view, past in zip(config.assign_views, queued, strict=True)]

    def codes(x: Inputs, head: int) -> Tensor:
        return torch.stack([swav.assign(scores, past, config, hard=hard) for scores, past in samples(x, head)])

    def loss(x: Inputs) -> Tensor:
        terms = [
            swav.swapped_prediction(_views(x[name], crops), codes(x, head), config.assign_views, config.temperature)
            for head, name in enumerate(names)
        ]
        return torch.stack(terms).mean()

    precision = next(iter(recorded_precisions(case)))
    x = inputs_in(case, "f32")
    ours = [code for head in range(len(names)) for code in codes(x, head)]
    try:
        compare(case, names, loss, f64=2e-6)
        for i, code in enumerate(ours):
            if f"{precision}/assign_full{i}" in wanted:
                close(code.numpy(), wanted[f"{precision}/assign_full{i}"][: len(code)], rtol=1e-4, atol=1e-6)
    except AssertionError:
        pairs = [pair for head in range(len(names)) for pair in samples(x, head)]
        together = [scores.numpy() if past is None else torch.cat([scores, past]).numpy() for scores, past in pairs]
        if all(_within_range(scores / config.epsilon, double=config.double_precision) for scores in together):
            raise
        for code, scores in zip(ours, together, strict=True):
            exact = _exact_codes(scores, config)[: len(code)]
            exact = np.eye(exact.shape[1])[exact.argmax(axis=1)] if hard else exact
            close(code.numpy(), exact, rtol=1e-4, atol=1e-6)
        assert loss(x).isfinite()
    if f"{precision}/queue_emb_after" in wanted:  # VISSL fills its queue once it is in use, ours before
        new = torch.stack([x["emb"].chunk(crops)[view] for view in config.assign_views])
        after = shift_in(x["queue_emb"], new) if queue_in_use else x["queue_emb"]
        np.testing.assert_array_equal(after.numpy(), wanted[f"{precision}/queue_emb_after"])


def _within_range(exponents: np.ndarray, *, double: bool) -> bool:
    """Tell whether VISSL's exponentials are normal numbers; it shifts those of float32 by their largest."""
    if double:
        return bool(np.abs(exponents).max() < 708)
    return bool(exponents.max() - exponents.min() < 87)


def _exact_codes(scores: np.ndarray, config: swav.Config) -> np.ndarray:
    """Sinkhorn-Knopp by logarithms in float64."""
    shares = np.arange(1.0, scores.shape[1] + 1) ** -config.power_law
    log_q = scores.astype(np.float64) / config.epsilon
    for _ in range(config.iterations):
        log_q += np.log(shares / shares.sum()) - logsumexp(log_q, axis=0)
        log_q -= logsumexp(log_q, axis=1, keepdims=True)
    return np.exp(log_q - logsumexp(log_q, axis=1, keepdims=True))


def _lightly_swav(case: Case) -> None:
    args, given = case.args, case.inputs()
    high, low = numbered(given, "high"), numbered(given, "low")
    iterations = option(args, "sinkhorn_iterations", default=3)
    config = swav.Config(epsilon=option(args, "sinkhorn_epsilon", default=0.05), iterations=iterations)
    if not iterations:
        not_offered("codes without any iteration, which do not sum to 1")

    def loss(x: Inputs) -> Tensor:
        codes = [swav.assign(x[name].detach(), x.get(f"queue{i}"), config) for i, name in enumerate(high)]
        views = torch.stack([x[name] for name in (*high, *low)])
        return swav.swapped_prediction(views, torch.stack(codes), range(len(high)), _temperature(case, 0.1))

    compare(case, [*high, *low], loss, f64=2e-6)


def _swav_momentum(case: Case) -> None:
    """The assignments come from a momentum copy's scores; the loss is the same."""
    args, given = case.args, case.inputs()
    config = swav.Config(epsilon=option(args, "epsilon", default=0.05), iterations=option(args, "num_iters", default=3))
    names, teachers = numbered(given, "scores"), numbered(given, "momentum_scores")
    crops, assigned = option(args, "num_crops", default=2), option(args, "crops_for_assign", default=(0, 1))

    def loss(x: Inputs) -> Tensor:
        terms = []
        for name, teacher in zip(names, teachers, strict=True):
            scores = _views(x[name], crops)
            parts = x[teacher].split(scores.shape[1])
            codes = torch.stack([swav.assign(parts[i], None, config) for i in range(len(assigned))])
            terms.append(swav.swapped_prediction(scores, codes, assigned, _temperature(case, 0.1)))
        return torch.stack(terms).mean()

    compare(case, names, loss, f64=2e-6)


def _memory_contrast(case: Case) -> None:
    """VISSL updates the memory within the forward pass; with several embeddings, each may update it before the next.

    Its temperature, momentum and normalisation are float32 numbers. Of an image that occurs twice in a batch VISSL
    keeps one embedding or the other; ours takes their mean.
    """
    args, given, wanted = case.args, case.inputs(), case.expected()
    names, temperature = numbered(given, "emb"), float(np.float32(option(args, "T", "temperature", default=0.07)))
    target = given["target"].reshape(-1)
    valid = torch.from_numpy(target != option(args, "ignore_index", default=-1))
    images = torch.from_numpy(target).long()[valid]
    kind = option(args, "type", "loss_type", default="nce")
    weights = option(args, "w", "loss_weights", default=[1.0] * len(names))
    z, norm = option(args, "Z", "norm_constant", default=-1), option(args, "norm", "norm_embedding", default=True)
    momentum = float(np.float32(option(args, "momentum", default=0.5)))
    every = option(args, "umf", "update_mem_on_forward", default=True)
    only = option(args, "uidx", "update_mem_with_emb_index", default=-100)
    once = (images[:, None] == images).sum(dim=1) == 1
    if len(names) > 1 and not once.all():
        not_offered("the order in which VISSL's memory takes two embeddings of one image")
    banks: dict[str, MemoryBank] = {}

    def loss(x: Inputs) -> Tensor:
        bank = banks[precision_of(x["memory"])] = MemoryBank(*x["memory"].shape).to(x["memory"].dtype)
        bank.vectors.copy_(x["memory"])
        bank.log_z.fill_(np.log(np.float32(z)) if z > 0 else np.inf)
        values = []
        for i, name in enumerate(names):
            embeddings = _unit(x[name][valid]) if norm else x[name][valid]
            logits = bank.logits(embeddings, images, x[f"neg_idx{i}"][:, 1:], temperature)
            values.append(weights[i] * bank.loss(logits, "nce" if kind == "nce" else "info_nce"))
            bank.log_z.copy_(bank.log_z.exp().float().log())
            if every or only == i:
                bank.vectors = bank.vectors.clone()  # the backward pass needs the old ones
                bank.update_(images, embeddings.detach(), momentum)
        return torch.stack(values).sum()

    compare(case, names, loss, f64=1e-6)  # the first batch uses VISSL's normalisation before it is rounded here
    several = images[~once].unique()
    for precision, bank in banks.items():
        if (after := wanted.get(f"{precision}/memory_after")) is not None:
            compared = np.setdiff1d(np.arange(len(after)), several)
            np.testing.assert_allclose(bank.vectors.numpy()[compared], after[compared], rtol=0, atol=1e-6)
        if kind == "nce" and f"{precision}/params_after" in wanted:
            assert bank.log_z.exp().item() == pytest.approx(wanted[f"{precision}/params_after"][2], rel=1e-5)


def _deepclusterv2(case: Case) -> None:
    """VISSL's memory has rows in the order of the batches, and their images; ours the images themselves."""
    args, wanted, given = case.args, case.expected(), case.inputs()
    centroids, iterations = numbered(given, "centroids"), option(args, "kmeans_iters", default=10)

    def loss(x: Inputs) -> Tensor:
        rows, values = _unit(x["emb"]), []
        for name, assignments in zip(centroids, x["assignments"], strict=True):
            labels = assignments[x["idx"]]
            labels = labels.masked_fill(labels == -100, -1)
            values.append(deepclusterv2.centroid_loss(rows, x[name], labels, _temperature(case, 0.1)))
        return torch.stack(values).mean()

    compare(case, ["emb"], loss)
    for precision in recorded_precisions(case):
        if f"{precision}/kmeans_assignments" not in wanted:
            continue
        x = inputs_in(case, precision)  # clustered before the forward pass
        for i, name in enumerate(centroids):
            rows = x["memory"][i % len(x["memory"])]
            first = rows[x[f"init_perm{i}"][: len(x[name])]]
            found, nearest = deepclusterv2.spherical_kmeans(rows, first, iterations)
            recorded = wanted[f"{precision}/kmeans_centroids{i}"]
            np.testing.assert_allclose(found.numpy(), recorded, rtol=0, atol=1e-6)
            ours = np.full(x["assignments"].shape[1], -100)
            ours[x["memory_index"]] = nearest
            np.testing.assert_array_equal(ours, wanted[f"{precision}/kmeans_assignments"][i])


def _cross_entropy(case: Case) -> None:
    """VISSL adds up the losses of several outputs; temperature and normalisation are the caller's here."""
    args, names = case.args, numbered(case.inputs(), "o")
    smoothing, ignored = option(args, "label_smoothing", default=0.0), option(args, "ignore_index", default=-1)
    if option(args, "weight") is not None:
        not_offered("a cross entropy with weights of classes")

    def loss(x: Inputs) -> Tensor:
        outputs = [_unit(x[name]) if option(args, "normalize_output") else x[name] for name in names]
        target = x["target"] if x["target"].dim() > 1 else x["target"].masked_fill(x["target"] == ignored, -1)
        return torch.stack([cross_entropy(y / _temperature(case, 1.0), target, smoothing) for y in outputs]).sum()

    compare(case, names, loss, f64=1e-7 if smoothing else 1e-9)  # VISSL smooths with float32 targets


def _binary_cross_entropy(case: Case) -> None:
    """VISSL adds up the losses of several heads; it can normalise their outputs first."""
    args, names = case.args, numbered(case.inputs(), "o")
    assert option(args, "reduction", default="none") == "none", "VISSL itself fails with any other"

    def outputs(x: Inputs) -> list[Tensor]:
        return [_unit(x[name]) if option(args, "normalize_output") else x[name] for name in names]

    def of_heads(x: Inputs) -> Tensor:
        rows = torch.stack(outputs(x), dim=1)
        return head_losses(rows, x["target"], len(rows), (x["target"] >= 0).sum(0)).sum()

    compare(case, names, of_heads, f64=2e-7)  # the reference adds up in float32
    compare(case, names, lambda x: torch.stack([multi_label_loss(y, x["target"]) for y in outputs(x)]).sum(), f64=2e-7)


def _decoupled(case: Case, *, sigma: float | None = None) -> None:
    names, temperature = numbered(case.inputs(), "z"), _temperature(case, 0.1)
    sigma = option(case.args, "sigma", default=sigma)
    compare(case, names, lambda x: dcl.decoupled(torch.stack([x[name] for name in names]), temperature, sigma))


def _neighbours(case: Case) -> None:
    temperature = _temperature(case, 0.1)
    compare(case, ["nn", "p"], lambda x: nnclr.cross_view_contrast(_unit(x["nn"]), _unit(x["p"]), temperature))


def _neighbours_of_lightly(case: Case) -> None:
    """lightly has the rows of the same side as negatives too: NT-Xent of neighbours and predictions."""
    temperature = _temperature(case, 0.5)

    def loss(x: Inputs) -> Tensor:
        found = [nnclr.nearest(_unit(x[f"z{i}"]), _unit(x["bank"])) for i in range(2)]
        terms = [simclr.nt_xent(torch.stack([found[i], x[f"p{1 - i}"]]), temperature) for i in range(2)]
        return torch.stack(terms).mean()

    compare(case, ["p0", "p1"], loss, f64=SOFTPLUS)
    for precision in recorded_precisions(case):
        x = inputs_in(case, precision)
        for i in range(2):
            if (recorded := case.expected().get(f"{precision}/nn{i}")) is not None:
                found = nnclr.nearest(_unit(x[f"z{i}"]), _unit(x["bank"])).numpy()
                np.testing.assert_allclose(found, _unit(torch.from_numpy(recorded)), rtol=1e-6, atol=1e-7)


def _relations(case: Case) -> None:
    args = case.args
    temperatures = {
        "student_temperature": option(args, "temperature_q", default=0.1),
        "teacher_temperature": option(args, "temperature_k", default=0.04),
    }
    query, key = _named(case, "q", "query"), _named(case, "k", "key")
    compare(case, [query], lambda x: ressl.relation_loss(x[query], x[key], x["queue"], **temperatures))


def _tico(case: Case) -> None:
    """The second call on the same data, so that the covariance is the moving average of two."""
    args, wanted = case.args, case.expected()
    beta, rho = option(args, "beta", default=0.9), option(args, "rho", default=8.0)
    calls = 2 if "2nd call" in case.call or any(key.endswith("/loss_first") for key in wanted) else 1

    def covariances(z: Tensor) -> list[Tensor]:
        covariance = torch.zeros(z.shape[1], z.shape[1], dtype=z.dtype)
        return [covariance := tico.next_covariance(covariance, z, beta) for _ in range(calls)]

    # lightly's gradient reaches both sides; ours only the student's, so its half is compared.
    compare(case, ["z0"], lambda x: tico.tico_loss(x["z0"], x["z1"], covariances(x["z0"].detach())[-1], rho))
    for precision in recorded_precisions(case):
        x, tolerance = inputs_in(case, precision), LOSS_TOLERANCE[precision]
        found = covariances(x["z0"])
        if (first := wanted.get(f"{precision}/loss_first")) is not None:
            value = tico.tico_loss(x["z0"], x["z1"], found[0], rho)
            np.testing.assert_allclose(value.numpy(), first.reshape(()), rtol=tolerance, atol=tolerance)
        if (last := wanted.get(f"{precision}/C")) is not None:
            np.testing.assert_allclose(found[-1].numpy(), last, rtol=tolerance, atol=tolerance)


KINDS: dict[str, Callable[[Case], None]] = {
    r"MultiCropSimclr|multicrop_simclr": _multicrop_simclr,
    r"SimclrInfoNCE|vissl_simclr": _simclr,
    r"simclr_loss_func|solo_simclr|solo_supcon": _rows_with_labels,
    r"SwAVMomentum|swav_momentum": _swav_momentum,
    r"SwaVLoss|lightly_swav": _lightly_swav,
    r"SwAVLoss|^swav_": _swav,
    r"MoCoLoss|vissl_moco": functools.partial(_moco, unit_query=True, unit_key=False, temperature=0.2),
    r"moco\.builder|fb_moco": functools.partial(_moco, unit_query=True, unit_key=True, temperature=0.07),
    r"mocov2plus": functools.partial(_moco, unit_query=False, unit_key=False, temperature=0.1),
    r"mocov3": _moco_v3,
    r"NNMemoryBank|lightly_nnclr": _neighbours_of_lightly,
    r"NTXentLoss|lightly_ntxent|lightly_moco": _nt_xent,
    r"NCELossWithMemory|^nce_": _memory_contrast,
    r"DeepClusterV2|deepclusterv2": _deepclusterv2,
    r"BCELogits|bce_multi": _binary_cross_entropy,
    r"CrossEntropyMultiple|ce_multi": _cross_entropy,
    r"DCLWLoss|dclw": functools.partial(_decoupled, sigma=0.5),
    r"DCLLoss|dcl": _decoupled,
    r"nnclr_loss_func|solo_nnclr": _neighbours,
    r"ressl": _relations,
    r"TiCo|tico": _tico,
}
"""Callable or name of a case of 01_losses (a regular expression; the first counts) -> its runner."""
