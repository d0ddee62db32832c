"""SimCLR, MoCo, MoCo v3, SwAV and cross entropy as VISSL, lightly, solo-learn and MoCo's own code compute them."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from golden_cases import Case
from torch import Tensor
from torch.nn import functional

from sslbench.methods import dcl, deepclusterv2, moco, moco_v3, nnclr, ressl, simclr, supcon, swav, tico
from sslbench.methods._parts.classification import cross_entropy
from sslbench.methods._parts.memory_bank import MemoryBank
from sslbench.methods._parts.queue import enqueue_, shift_in

Inputs = Mapping[str, Tensor]

PRECISIONS = {"f32": torch.float32, "f64": torch.float64}
LOSS_TOLERANCE = {"f32": 2e-6, "f64": 1e-9}
GRADIENT_TOLERANCE = {"f32": 1e-5, "f64": 1e-9}


def compare(case: Case, names: Sequence[str], loss: Callable[[Inputs], Tensor], *, f64: float = 1e-9) -> None:
    """Compare loss and gradients with respect to the inputs `names`, in float32 and float64.

    Where the reference's float32 value is no number, ours is compared with its float64 value; where that is none
    either, any finite value is right.

    Args:
        case: a case of the topic of losses.
        names: inputs that get a gradient.
        loss: of the inputs.
        f64: tolerance in float64, larger where the reference rounds to float32 inside.
    """
    given, wanted = case.inputs(), case.expected()
    for precision, dtype in PRECISIONS.items():
        inputs = {k: torch.from_numpy(v).to(dtype if v.dtype.kind == "f" else torch.int64) for k, v in given.items()}
        for name in names:
            inputs[name].requires_grad_()
        value = loss(inputs)
        value.backward()
        recorded = precision if np.isfinite(wanted[f"{precision}/loss"]).all() else "f64"
        rtol = LOSS_TOLERANCE["f32"] if precision == "f32" else f64
        close(value.detach().numpy(), wanted[f"{recorded}/loss"].reshape(()), rtol=rtol, atol=1e-6 * (rtol > 1e-7))
        for name in names:
            gradient = wanted[f"{recorded}/grad_{name}"]
            share = GRADIENT_TOLERANCE["f32"] if precision == "f32" else max(f64, GRADIENT_TOLERANCE["f64"])
            largest = np.abs(gradient[np.isfinite(gradient)]).max(initial=0.0)
            close(inputs[name].grad.numpy(), gradient, rtol=0, atol=share * largest + 1e-8 * (share > 1e-7))


def close(ours: np.ndarray, recorded: np.ndarray, *, rtol: float, atol: float) -> None:
    """Assert that ours are the recorded values, and finite where the reference has no number."""
    known = np.isfinite(recorded)
    assert np.isfinite(ours).all()
    np.testing.assert_allclose(ours[known], recorded[known], rtol=rtol, atol=atol)


def value_of(args: Mapping[str, Any], *names: str, default: Any = None) -> Any:
    """Return the first of these arguments that a case has, whatever its reference calls it."""
    found = next((args[name] for name in names if name in args), default)
    assert found is not None, f"the case says none of {', '.join(names)}; it says {', '.join(args)}"
    return found


def temperature_of(case: Case) -> float:
    """Return the temperature of a case."""
    return float(value_of(case.meta["args"], "temperature", "T", "tau"))


def numbered(inputs: Mapping[str, Any], prefix: str) -> list[str]:
    """Return the names of inputs that are `prefix` and a number, by number."""
    found = [name for name in inputs if re.fullmatch(rf"{prefix}\d+", name)]
    return sorted(found, key=lambda name: int(name.removeprefix(prefix)))


def _views(rows: Tensor, count: int) -> Tensor:
    """View-major rows (count * B, d) as (count, B, d)."""
    return rows.unflatten(0, (count, -1))


def _unit(rows: Tensor) -> Tensor:
    return functional.normalize(rows, dim=1)


def _simclr(case: Case) -> None:
    """VISSL's exponentials overflow in float32 at a low temperature; ours give what it gets in float64 there too."""
    temperature, views = temperature_of(case), case.meta["args"].get("num_crops", 2)
    compare(case, ["embedding"], lambda x: simclr.nt_xent(_views(x["embedding"], views), temperature))


def _two_views(case: Case) -> None:
    names, temperature = numbered(case.inputs(), "z"), temperature_of(case)
    compare(case, names, lambda x: simclr.nt_xent(torch.stack([x[name] for name in names]), temperature))


def _moco(case: Case) -> None:
    """`queue` is (d, K) in the references, ours holds rows; and ours takes what VISSL and MoCo normalise inside."""
    args, meta = case.meta["args"], case.meta
    ready_query, ready_key = "solo" in meta["repo"][0], "facebookresearch/moco" not in meta["repo"][0]
    query, key = ("query", "key") if "query" in case.inputs() else ("q", "k")
    temperature = temperature_of(case)

    def loss(x: Inputs) -> Tensor:
        q, k = x[query] if ready_query else _unit(x[query]), x[key] if ready_key else _unit(x[key])
        return moco.info_nce(q, k, x["queue"].T, temperature)

    compare(case, [query], loss)
    pointer = args.get("queue_ptr", args.get("ptr"))
    wanted = case.expected()
    for precision, dtype in PRECISIONS.items():
        if f"{precision}/queue_after" in wanted:
            x = {name: torch.from_numpy(value).to(dtype) for name, value in case.inputs().items()}
            queue = x["queue"].T.clone()
            after = enqueue_(queue, _unit(x[key]), pointer)
            np.testing.assert_allclose(queue.T.numpy(), wanted[f"{precision}/queue_after"], rtol=0, atol=2e-7)
            assert after == wanted[f"{precision}/ptr_after"].item()


def _memory_bank(case: Case) -> None:
    """lightly drops keys where its bank is not a multiple of the batch; we refuse such a queue when it is made."""
    temperature = temperature_of(case)
    compare(case, ["q"], lambda x: moco.info_nce(_unit(x["q"]), _unit(x["k"]), x["bank"], temperature))


def _moco_v3(case: Case) -> None:
    temperature = temperature_of(case)
    compare(case, ["query"], lambda x: moco_v3.contrastive(x["query"], x["key"], temperature))


def _swav(case: Case) -> None:
    """All of VISSL's options. In `swav_double_inf` it replaces an overflow; ours never overflows."""
    args, wanted = case.meta["args"], case.expected()
    config = swav.Config(
        temperature=args["temperature"],
        epsilon=args["epsilon"],
        iterations=args["num_iters"],
        assign_views=tuple(args["crops_for_assign"]),
        power_law=args["shk_powerlaw"],
        double_precision=args["use_double_precision"],
    )
    hard = args["temp_hard_assignment_iters"] > args.get("_iter", 0)
    queue_in_use = args.get("_iter", 0) >= args["queue"]["start_iter"]
    heads = len(args["num_prototypes"])

    def codes(x: Inputs, head: int) -> Tensor:
        views = _views(x[f"scores{head}"].detach(), args["num_crops"])
        queue = x.get(f"queue_scores{head}") if queue_in_use else None
        queued = [None] * len(config.assign_views) if queue is None else list(queue)
        numbered = zip(config.assign_views, queued, strict=True)
        return torch.stack([swav.assign(views[view], past, config, hard=hard) for view, past in numbered])

    def loss(x: Inputs) -> Tensor:
        terms = [
            swav.swapped_prediction(
                _views(x[f"scores{h}"], args["num_crops"]), codes(x, h), config.assign_views, args["temperature"]
            )
            for h in range(heads)
        ]
        return torch.stack(terms).mean()

    compare(case, [f"scores{head}" for head in range(heads)], loss, f64=2e-6)
    x = {name: torch.from_numpy(value) for name, value in case.inputs().items()}
    ours = [code for head in range(heads) for code in codes(x, head)]
    for i, code in enumerate(ours):
        recorded = wanted[f"f32/assign_full{i}"][: len(code)]
        close(code.numpy(), recorded, rtol=1e-4, atol=1e-6)
    if "f32/queue_emb_after" in wanted:
        new = torch.stack([x["emb"].chunk(args["num_crops"])[view] for view in config.assign_views])
        np.testing.assert_array_equal(shift_in(x["queue_emb"], new).numpy(), wanted["f32/queue_emb_after"])


def _lightly_swav(case: Case) -> None:
    args, large = case.meta["args"], len(numbered(case.inputs(), "high"))
    names = [*numbered(case.inputs(), "high"), *numbered(case.inputs(), "low")]
    config = swav.Config(epsilon=args["sinkhorn_epsilon"], iterations=args["sinkhorn_iterations"])

    def loss(x: Inputs) -> Tensor:
        codes = [swav.assign(x[f"high{i}"].detach(), x.get(f"queue{i}"), config) for i in range(large)]
        views = torch.stack([x[name] for name in names])
        return swav.swapped_prediction(views, torch.stack(codes), range(large), args["temperature"])

    compare(case, names, loss, f64=2e-6)


def _swav_momentum(case: Case) -> None:
    """The assignments come from a momentum copy's scores; the loss is the same."""
    args = case.meta["args"]
    config = swav.Config(epsilon=args["epsilon"], iterations=args["num_iters"])

    def loss(x: Inputs) -> Tensor:
        teacher = x["momentum_scores"].chunk(len(x["momentum_scores"]) * args["num_crops"] // len(x["scores"]))
        assigned = args["crops_for_assign"]
        codes = torch.stack([swav.assign(teacher[i], None, config) for i in range(len(assigned))])
        return swav.swapped_prediction(_views(x["scores"], args["num_crops"]), codes, assigned, args["temperature"])

    compare(case, ["scores"], loss, f64=2e-6)


def _memory_contrast(case: Case) -> None:
    """VISSL updates the memory within the forward pass; with several embeddings, each may update it before the next.

    Its temperature, momentum and normalisation are float32 numbers.
    """
    args, given, wanted = case.meta["args"], case.inputs(), case.expected()
    names, temperature = numbered(given, "emb"), float(np.float32(args["T"]))
    valid = torch.from_numpy(given["target"]) != -1
    banks: list[MemoryBank] = []

    def loss(x: Inputs) -> Tensor:
        bank = MemoryBank(*x["memory"].shape).to(x["memory"].dtype)
        bank.vectors.copy_(x["memory"])
        banks.append(bank)
        bank.log_z.fill_(np.log(np.float32(args["Z"])) if args["Z"] > 0 else np.inf)
        images, values = x["target"][valid], []
        for i, name in enumerate(names):
            embeddings = _unit(x[name][valid]) if args["norm"] else x[name][valid]
            logits = bank.logits(embeddings, images, x[f"neg_idx{i}"][:, 1:], temperature)
            values.append(args["w"][i] * bank.loss(logits, "nce" if args["type"] == "nce" else "info_nce"))
            bank.log_z.copy_(bank.log_z.exp().float().log())
            if args["umf"] or args["uidx"] == i:
                bank.vectors = bank.vectors.clone()  # the backward pass needs the old ones
                bank.update_(images, embeddings.detach(), float(np.float32(args["momentum"])))
        return torch.stack(values).sum()

    compare(case, names, loss, f64=1e-6)  # the first batch uses VISSL's normalisation before it is rounded here
    for precision, bank in zip(PRECISIONS, banks, strict=True):
        np.testing.assert_allclose(bank.vectors.numpy(), wanted[f"{precision}/memory_after"], rtol=0, atol=1e-6)
        if args["type"] == "nce":
            assert bank.log_z.exp().item() == pytest.approx(wanted[f"{precision}/params_after"][2], rel=1e-5)


def _deepclusterv2(case: Case) -> None:
    """VISSL's memory has rows in the order of the batches, and their images; ours the images themselves."""
    args, wanted = case.meta["args"], case.expected()
    heads = range(len(args["num_clusters"]))

    def loss(x: Inputs) -> Tensor:
        rows, values = _unit(x["emb"]), []
        for i in heads:
            labels = x["assignments"][i][x["idx"]]
            labels = labels.masked_fill(labels == -100, -1)
            values.append(deepclusterv2.centroid_loss(rows, x[f"centroids{i}"], labels, args["temperature"]))
        return torch.stack(values).mean()

    compare(case, ["emb"], loss)
    x = {name: torch.from_numpy(value) for name, value in case.inputs().items()}  # clustered before the forward pass
    for i, count in enumerate(args["num_clusters"]):
        rows = x["memory"][i % len(x["memory"])]
        found, nearest = deepclusterv2.spherical_kmeans(rows, rows[x[f"init_perm{i}"][:count]], args["kmeans_iters"])
        np.testing.assert_allclose(found.numpy(), wanted[f"f32/kmeans_centroids{i}"], rtol=0, atol=1e-6)
        ours = np.full(x["assignments"].shape[1], -100)
        ours[x["memory_index"]] = nearest
        np.testing.assert_array_equal(ours, wanted["f32/kmeans_assignments"][i])


def _cross_entropy(case: Case) -> None:
    """VISSL adds up the losses of several outputs; temperature and normalisation are the caller's here."""
    args, names = case.meta["args"], numbered(case.inputs(), "o")

    def loss(x: Inputs) -> Tensor:
        outputs = [_unit(x[name]) if args.get("normalize_output") else x[name] for name in names]
        smoothing, temperature = args.get("label_smoothing", 0.0), args.get("temperature", 1.0)
        target = x["target"].masked_fill(x["target"] == args.get("ignore_index", -1), -1)  # ours is always -1
        return sum(cross_entropy(output / temperature, target, smoothing) for output in outputs)

    # VISSL smooths with float32 targets.
    compare(case, names, loss, f64=1e-7 if "label_smoothing" in args else 1e-9)


def _decoupled(case: Case) -> None:
    args, names = case.meta["args"], numbered(case.inputs(), "z")

    def loss(x: Inputs) -> Tensor:
        return dcl.decoupled(torch.stack([x[name] for name in names]), args["temperature"], args.get("sigma"))

    compare(case, names, loss)


def _supervised_contrastive(case: Case) -> None:
    """solo-learn sums the positives inside the logarithm (eq. 3) without dividing by their number."""
    names, temperature = numbered(case.inputs(), "z"), temperature_of(case)
    labels = case.inputs()["indexes"]
    positives = (labels[:, None] == labels).sum(axis=1) - 1

    def loss(x: Inputs) -> Tensor:
        views = torch.stack([x[name] for name in names])
        own = x["indexes"][: views.shape[1]]
        return supcon.supervised_contrastive(views, own, temperature, "inside") - float(np.log(positives).mean())

    compare(case, names, loss)


def _neighbours(case: Case) -> None:
    temperature = temperature_of(case)
    compare(case, ["nn", "p"], lambda x: nnclr.neighbour_contrast(_unit(x["nn"]), _unit(x["p"]), temperature))


def _neighbours_of_lightly(case: Case) -> None:
    """lightly has the rows of the same side as negatives too: NT-Xent of neighbours and predictions."""
    temperature = temperature_of(case)

    def loss(x: Inputs) -> Tensor:
        found = [nnclr.nearest(_unit(x[f"z{i}"]), _unit(x["bank"])) for i in range(2)]
        terms = [simclr.nt_xent(torch.stack([found[i], x[f"p{1 - i}"]]), temperature) for i in range(2)]
        return sum(terms) / 2

    compare(case, ["p0", "p1"], loss)
    x = {name: torch.from_numpy(value).double() for name, value in case.inputs().items()}
    for i in range(2):
        found = nnclr.nearest(_unit(x[f"z{i}"]), _unit(x["bank"])).numpy()
        np.testing.assert_allclose(found, _unit(torch.from_numpy(case.expected()[f"f64/nn{i}"])), rtol=1e-6)


def _relations(case: Case) -> None:
    args = case.meta["args"]
    temperatures = {"student_temperature": args["temperature_q"], "teacher_temperature": args["temperature_k"]}
    compare(case, ["q"], lambda x: ressl.relation_loss(x["q"], x["k"], x["queue"], **temperatures))


def _tico(case: Case) -> None:
    """The second call on the same data, so that the covariance is the moving average of two."""
    args = case.meta["args"]

    def loss(x: Inputs) -> Tensor:
        z = x["z0"].detach()
        covariance = torch.zeros(z.shape[1], z.shape[1], dtype=z.dtype)
        for _ in range(2):
            covariance = tico.next_covariance(covariance, z, args["beta"])
        # lightly's gradient reaches both sides; ours only the student's, so its half is compared.
        return tico.tico_loss(x["z0"], x["z1"], covariance, args["rho"])

    compare(case, ["z0"], loss)


PATTERNS: dict[str, Callable[[Case], None]] = {
    "vissl_simclr_*": _simclr,
    "vissl_multicrop_simclr_*": _simclr,
    "lightly_ntxent_*": _two_views,
    "solo_simclr_*": _two_views,
    "vissl_moco_*": _moco,
    "fb_moco_*": _moco,
    "solo_mocov2plus_*": _moco,
    "lightly_moco_ntxent_*": _memory_bank,
    "solo_mocov3_*": _moco_v3,
    "swav_*": _swav,
    "lightly_swav_*": _lightly_swav,
    "vissl_swav_momentum_*": _swav_momentum,
    "nce_*": _memory_contrast,
    "vissl_deepclusterv2_*": _deepclusterv2,
    "vissl_ce_multi_*": _cross_entropy,
    "lightly_dcl_*": _decoupled,
    "lightly_dclw_*": _decoupled,
    "solo_supcon_like_*": _supervised_contrastive,
    "solo_nnclr_*": _neighbours,
    "lightly_nnclr_*": _neighbours_of_lightly,
    "solo_ressl_*": _relations,
    "lightly_tico_*": _tico,
}
"""Name of a case of 01_losses (a pattern) -> what runs it."""
