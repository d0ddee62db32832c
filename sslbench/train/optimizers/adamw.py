"""Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv 1711.05101)."""

from sslbench.train.optimizers.optimizer import OptimizerKind

OPTIMIZER = OptimizerKind("torch.optim:AdamW", uses={"betas": "betas", "eps": "eps"}, fused=True, finetune_lr=0.0005)
