"""Search for one object per image in the maps of a frozen network."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from sslbench.protocols._parts.untrained import MapRun, SearchSettings
from sslbench.protocols.protocol import Cost, Part, Shapes

if TYPE_CHECKING:
    from sslbench.backbones.backbone import Backbone
    from sslbench.backbones.dense import DenseInput
    from sslbench.backbones.layers import Layer


T = TypeVar("T", bound=SearchSettings)


class ObjectSearch(MapRun[T]):
    """Run that searches an object in every image."""

    @classmethod
    def maps(
        cls, backbone: "Backbone", layers: "Sequence[Layer]", settings: T
    ) -> "Mapping[str, tuple[DenseInput, ...]]":
        """Return the rows of results, 'blocks.11@key', with the maps of each; see `objects.searched_maps`."""
        from sslbench.protocols._parts.objects import searched_maps

        return {each.name: each.inputs for each in searched_maps(backbone, layers, settings)}

    @classmethod
    def part(cls, settings: T) -> Part:
        """Return the part of the data that is searched."""
        return settings.part


def cost(settings: SearchSettings, shapes: Shapes) -> Cost:
    """Return one pass per image."""
    return Cost(images=shapes.test, rest="the search for regions in the maps")
