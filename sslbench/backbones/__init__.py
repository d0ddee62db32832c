"""Backbones: torchvision-named ResNets of any width, all timm models, a user's own module; layers, pools, loading."""
