"""Images with other channels than the backbone takes: said at once, and with what can be done about it."""

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.stems import with_channels
from sslbench.data.loading.loader import Batch
from sslbench.errors import UsageError


def check_first(batch: Batch, backbone: Backbone) -> None:
    """Raise when the first batch has no image that the backbone can take, and there are some of other channels.

    Single images with other channels are left to the extraction, which counts them as unreadable.

    Raises:
        UsageError: names one image, its channels, and a backbone for them.
    """
    if len(batch.indices) or batch.other_channels is None:
        return
    path, channels = batch.other_channels
    remedy = "a function of yours makes other channels of them: --decoder my_module.my_function."
    if ":" not in backbone.name.removeprefix("timm:"):
        network = with_channels(backbone.name, channels)
        remedy = f"--backbone {network} takes them (--stem maps weights for other channels), or {remedy}"
    takes = backbone.preprocessing.channels
    raise UsageError(
        f"{path} has {channels} channel{'' if channels == 1 else 's'}, and {backbone.name} takes {takes}",
        remedy[0].upper() + remedy[1:] if not remedy.startswith("-") else remedy,
    )
