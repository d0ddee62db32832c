"""SimCLR with lightly's parts, as its documentation puts them together; prints images per second after two batches."""

import json
import sys
import time

import torch
import torchvision
from lightly.data import LightlyDataset
from lightly.loss import NTXentLoss
from lightly.models.modules import SimCLRProjectionHead
from lightly.transforms import SimCLRTransform


def main():
    """One epoch over a folder: `python lightly_simclr.py FOLDER SIZE WORKERS BATCH DEVICE`."""
    folder, device = sys.argv[1], sys.argv[5]
    size, workers, size_of_batch = map(int, sys.argv[2:5])
    torch.manual_seed(0)
    backbone = torchvision.models.resnet18()
    backbone.fc = torch.nn.Identity()
    head = SimCLRProjectionHead(512, 512, 128).to(device)
    backbone.to(device)
    criterion = NTXentLoss(temperature=0.1)
    parameters = [*backbone.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)
    data = LightlyDataset(folder, transform=SimCLRTransform(input_size=size))
    loader = torch.utils.data.DataLoader(
        data, batch_size=size_of_batch, shuffle=True, drop_last=True, num_workers=workers
    )
    images = 0
    for number, batch in enumerate(loader):
        if number == 2:
            began = time.perf_counter()
        first, second = batch[0]
        loss = criterion(head(backbone(first.to(device))), head(backbone(second.to(device))))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        images += len(first) if number >= 2 else 0
    print(json.dumps({"images_per_second": images / (time.perf_counter() - began)}))


if __name__ == "__main__":
    main()
