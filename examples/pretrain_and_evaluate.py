"""A network trained without labels, then scored beside its untrained self: `python examples/pretrain_and_evaluate.py`.

SimCLR on digits of scikit-learn, for one short epoch. Real runs have a folder of images in place of `sklearn:digits`, a
larger backbone and more epochs.
"""

import sslbench

outcome = sslbench.pretrain(
    "simclr",
    "sklearn:digits",
    "runs/example",
    settings={
        "backbone": "resnet18w0.25",
        "augment": "digits",
        "epochs": 1,
        "batch_size": 64,
        "schedule.warmup_epochs": 0,
        "device": "cpu",
    },
    limit=256,
)
print("weights:", outcome.weights)

(result,) = sslbench.evaluate(str(outcome.weights), "sklearn:digits", protocols="knn", limit=300, device="cpu")
score = result.metrics["top1"]
print(f"top-1 after one epoch: {score.value:.1f} ({score.low:.1f} to {score.high:.1f})")
for name in ("pixels", "untrained"):
    print(f"  {name}: {result.floors[name]['top1']:.1f}")
