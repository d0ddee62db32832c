"""Settings of a run, apart from what runs: commands declare their flags by them, without NumPy and torch."""

import dataclasses
from typing import Any, Literal

from sslbench.config import refuse_outside, setting
from sslbench.data.decode.reading import check_decoder
from sslbench.errors import UsageError
from sslbench.preprocessing import MAX_PIXELS
from sslbench.runtime.resources import EncodingPrecision, StartMethod, refuse_unknown_device


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """Settings of a run (configs/eval.yaml holds the same keys)."""

    device: str = setting("auto", "device: auto, cpu, cuda, cuda:1, mps", flag=True)
    precision: EncodingPrecision = setting(
        "fp32", "precision of the forward pass: fp32, bf16, fp16, int8 (features, on a processor)", flag=True
    )
    feature_dtype: Literal["float32", "float16"] = setting(
        "float32", "dtype of stored features: float32, float16", flag=True
    )
    batch_size: int = setting(64, "number of images per forward pass", within="[1, inf)", flag=True)
    workers: int | Literal["auto"] = setting(
        "auto", "processes that decode images; 0: the main process does", within="[0, inf)", flag="by the cores"
    )
    seed: int = setting(
        0, "seed of splits, hold-outs, untrained weights and bootstrap", within="[0, 4294967295]", flag=True
    )
    seeds: int = setting(
        1,
        "number of trainings, with the seeds seed, seed + 1, ...: protocols that train a network or heads by "
        "stochastic gradient descent",
        within="[1, inf)",
    )
    only_seed: int | None = setting(
        None,
        "make only the training with this seed of those that `seeds` names; the others may run beside it",
        changes_result=False,
    )
    test_fraction: float = setting(0.2, "share of the data used as test split if the data has none", within="(0, 1)")
    on_error: Literal["stop", "skip"] = setting(
        "stop", "unreadable images: stop (list them all) or skip (leave them out)", flag=True
    )
    decoder: tuple[str, ...] = setting(
        ("reference",),
        "decoder: reference; fast (large JPEGs at reduced size); my_module.my_function (tried first)",
        flag=True,
    )
    max_pixels: int = setting(
        MAX_PIXELS, "largest image that is decoded, in pixels", unit="pixels", within="[1, inf)", flag=True
    )
    start_method: StartMethod = setting(
        "auto", "start of the decoding processes: auto, fork, spawn, forkserver", flag=True
    )
    floors: bool = setting(True, "also score chance, the majority class, pixels and the untrained backbone")
    overlaps: bool = setting(True, "search test images that also occur in train, and also score without them")
    estimate: bool = setting(
        True, "estimate time, memory and disk before long work, and refuse what does not fit", changes_result=False
    )
    on_the_fly: bool = setting(False, "grids of features: compute them when they are read, and store none")
    baseline: bool = setting(
        False, "protocols that train on images or score many sets: also run the untrained backbone; twice the time"
    )

    def check(self) -> None:
        """Refuse values out of their range; this machine may still lack the device."""
        refuse_unknown_device(self.device)
        refuse_outside(self, "run")
        # The last one, seed + seeds - 1, has to be a seed, too.
        if self.seed + self.seeds > 2**32:
            raise UsageError(f"seeds should be at most {2**32 - self.seed} with seed={self.seed}, not {self.seeds}")
        if self.only_seed is not None and not self.seed <= self.only_seed < self.seed + self.seeds:
            raise UsageError(
                f"only_seed={self.only_seed} is none of the trainings, whose seeds are {self.seed} to "
                f"{self.seed + self.seeds - 1}"
            )
        check_decoder(self.decoder)
        from sslbench.results import sinks  # loads NumPy

        sinks.requested()

    def each_seed(self) -> "list[RunSettings]":
        """Return the settings of each training, of one seed; with `only_seed` those of that one."""
        seeds = range(self.seed, self.seed + self.seeds) if self.only_seed is None else (self.only_seed,)
        return [dataclasses.replace(self, seed=seed, seeds=1, only_seed=None) for seed in seeds]

    def decoding(self) -> dict[str, Any]:
        """Return the values of the preprocessing that `decoder` and `max_pixels` change."""
        changed: dict[str, Any] = {} if self.max_pixels == MAX_PIXELS else {"max_pixels": self.max_pixels}
        return changed if self.decoder == ("reference",) else {**changed, "decoder": self.decoder}
