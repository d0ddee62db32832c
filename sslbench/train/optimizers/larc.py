"""SGD with layer-wise adaptive rates as NVIDIA's apex has it: LARS with `denominator="separate"`."""

from typing import Any

from torch.optim.optimizer import ParamsT

from sslbench.train.optimizers.lars import LARS
from sslbench.train.optimizers.lars import OPTIMIZER as OF_LARS
from sslbench.train.optimizers.optimizer import OptimizerKind


class LARC(LARS):
    """`LARS` with `denominator="separate"`."""

    def __init__(self, params: ParamsT, lr: float, **options: Any) -> None:
        """Set the options; see `LARS`."""
        super().__init__(params, lr, **{"denominator": "separate", **options})


OPTIMIZER = OptimizerKind(LARC, uses={**OF_LARS.uses, "eps": "eps", "clip": "clip"})
