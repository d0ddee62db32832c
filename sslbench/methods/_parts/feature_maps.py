"""Feature maps of convolutional backbones."""

from torch import Tensor

from sslbench.backbones.alexnet import AlexNet
from sslbench.backbones.resnet import ResNet


def feature_map(network: ResNet | AlexNet, images: Tensor) -> Tensor:
    """Return the last feature map before the pooling that gives the backbone's output.

    Args:
        network: of a ResNet, the mean of the map over the places is the output.
        images: (B, C, H, W).

    Returns:
        (B, D, h, w).
    """
    if isinstance(network, AlexNet):
        convolved: Tensor = network.features[:-1](network.input(images))
        return convolved
    x = network.maxpool(network.relu(network.bn1(network.conv1(images))))
    maps: Tensor = network.layer4(network.layer3(network.layer2(network.layer1(x))))
    return maps
