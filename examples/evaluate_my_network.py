"""Any network of PyTorch, on images in memory: `python examples/evaluate_my_network.py`.

Digits of scikit-learn are scored by the nearest neighbours and by a linear classifier on the network's features. The
network is not trained, so the verdict should be that it is no better than chance or pixels; put your own in its place.
"""

import torch
from sklearn.datasets import load_digits

import sslbench

digits = load_digits()
images = (digits.images * 15).astype("uint8")  # (1797, 8, 8), grey

torch.manual_seed(0)
network = torch.nn.Sequential(
    torch.nn.Conv2d(3, 32, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(2),
    torch.nn.Flatten(),
)

results = sslbench.evaluate(
    network,
    (images, digits.target),  # a fifth is split off for the test; or name a folder, a table, a Dataset
    protocols=["knn", "linear"],
    name="random convolution",
    resize=8,
    crop=8,
    device="cpu",
    out=None,  # or a folder for the records
)
print(results)
for result in results:
    score, pixels = result.metrics["top1"].value, result.floors["pixels"]["top1"]
    print(f"{result.protocol.name}: {score:.1f}; raw pixels have {pixels:.1f}")
