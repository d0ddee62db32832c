"""Several networks, several protocols, one table with a verdict: `python examples/many_weights.py [WEIGHTS...]`.

Names of files are weights in any known format. Without any, pixels and two untrained networks are compared.
"""

import sys

import sslbench

DATA, OUT = "sklearn:digits", "results/example"
COMMON = {
    "protocols": ["knn", "lsr"],
    "out": OUT,
    "device": "cpu",
    "resize": 32,  # the digits have 8 x 8 pixels; leave it out for photographs
    "crop": 32,
    "limit": 300,
    "floors": False,  # True in earnest: pixels and the untrained network beside every number
}

files = sys.argv[1:]
for file in files:
    sslbench.evaluate(file, DATA, **COMMON)
if not files:
    sslbench.evaluate("pixels", DATA, **COMMON)
    for backbone in ("resnet18w0.25", "resnet18w0.5"):
        sslbench.evaluate("random", DATA, backbone=backbone, **COMMON)

print(sslbench.make_leaderboard(OUT))
