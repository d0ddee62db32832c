"""Feature maps of convolutional backbones."""

from torch import Tensor

from sslbench.backbones.resnet import ResNet


def feature_map(resnet: ResNet, images: Tensor) -> Tensor:
    """Return the last feature map of a ResNet, whose mean over the places is the backbone's output.

    Args:
        resnet: the network.
        images: (B, C, H, W).

    Returns:
        (B, D, h, w).
    """
    x = resnet.maxpool(resnet.relu(resnet.bn1(resnet.conv1(images))))
    maps: Tensor = resnet.layer4(resnet.layer3(resnet.layer2(resnet.layer1(x))))
    return maps
