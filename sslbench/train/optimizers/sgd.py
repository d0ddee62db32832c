"""Stochastic gradient descent with momentum."""

from sslbench.train.optimizers.optimizer import OptimizerKind

OPTIMIZER = OptimizerKind(
    "torch.optim:SGD",
    uses={"momentum": "momentum", "nesterov": "nesterov"},
    fused=True,
    finetune_lr=0.05,
    finetune_head_factor=10.0,
)
