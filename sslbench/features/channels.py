"""Early check of the images' channels against the backbone's, with the remedy."""

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.stems import with_channels
from sslbench.data.loading.loader import PictureBatch
from sslbench.errors import UsageError


def check_first(batch: PictureBatch, backbone: Backbone) -> None:
    """Raise if no image of the first batch is readable and some have other channels than the backbone takes.

    The extraction counts single images with other channels as unreadable.

    Raises:
        UsageError: names an image, its channels, and a backbone for them.
    """
    if len(batch.indices) or batch.other_channels is None:
        return
    path, channels = batch.other_channels
    takes = backbone.preprocessing.channels
    remedy = "convert the channels by your own --decoder my_module.my_function."
    if channels > takes or (channels, takes) == (2, 3):  # one alone is grey
        some = "|".join(str(number + 1) for number in range(takes if channels > takes else 1))
        remedy = f"take some of them by --data 'PLACE?channels={some}', or {remedy}"
    if ":" not in backbone.name.removeprefix("timm:"):
        network = with_channels(backbone.name, channels)
        remedy = f"--backbone {network} takes them (--stem maps weights for other channels), or {remedy}"
    raise UsageError(
        f"{path} has {channels} channel{'' if channels == 1 else 's'}, and {backbone.name} takes {takes}",
        remedy[0].upper() + remedy[1:] if not remedy.startswith("-") else remedy,
    )
