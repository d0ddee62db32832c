"""A protocol of your own, beside a built-in one, without installing anything: `python examples/my_protocol.py`.

`my_protocols/nearest_mean.py` has it. On the command line, from this folder: `sslbench eval my_protocols.nearest_mean`.
"""

import sslbench

results = sslbench.evaluate(
    "pixels",
    "sklearn:digits",
    protocols=["my_protocols.nearest_mean", "knn"],
    settings={"my_protocols.nearest_mean": {"normalise": False}},
    limit=600,
    device="cpu",
    out=None,
)
for result in results:
    top1 = result.metrics["top1"]
    print(f"{result.protocol.name}: {top1.value:.1f} ({top1.low:.1f} to {top1.high:.1f})")
