"""Search for one object per image in the maps of a frozen network, without torch before it runs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from sslbench.errors import UsageError
from sslbench.protocols._parts.untrained import MapRun, SearchSettings
from sslbench.protocols.protocol import Cost, Part, Shapes

if TYPE_CHECKING:
    from sslbench.backbones.backbone import Backbone
    from sslbench.backbones.dense import DenseInput
    from sslbench.backbones.layers import Layer

S = TypeVar("S", bound=SearchSettings)


class ObjectSearch(MapRun[S]):
    """Run that searches an object in every image."""

    @classmethod
    def check_settings(cls, settings: S) -> None:
        """Refuse settings that cannot work, or that the method does not use.

        Raises:
            UsageError: a number is out of its range, or belongs to another method.
        """
        if settings.method == "dino_seg" and settings.features != "auto":
            raise UsageError(f"{cls.name}: dino_seg takes the attention, so features has no effect on it")
        if settings.longest_side < 0:
            raise UsageError(f"{cls.name}: longest_side must not be negative, not {settings.longest_side}")
        own = {
            "lost": ("k", "ties"),
            "tokencut": ("threshold", "epsilon", "weighted"),
            "dino_seg": ("head", "mass"),
        }
        values, defaults = vars(settings), vars(SearchSettings())
        for method, names in own.items():
            for name in names:
                if method != settings.method and values[name] != defaults[name]:
                    raise UsageError(
                        f"{cls.name}: {name} has no effect on method={settings.method}", f"Give method={method}."
                    )
        if settings.k < 1 or settings.head < 0:
            raise UsageError(
                f"{cls.name}: k must be at least 1 and head at least 0, not {settings.k} and {settings.head}"
            )
        if not -1 <= settings.threshold < 1 or not settings.epsilon > 0 or not 0 < settings.mass <= 1:
            raise UsageError(
                f"{cls.name}: threshold must be a cosine, epsilon positive and mass a share, not "
                f"{settings.threshold:g}, {settings.epsilon:g} and {settings.mass:g}"
            )

    @classmethod
    def maps(
        cls, backbone: "Backbone", layers: "Sequence[Layer]", settings: S
    ) -> "Mapping[str, tuple[DenseInput, ...]]":
        """Return the rows of results, 'blocks.11@key', with the maps of each; see `objects.searched_maps`."""
        from sslbench.protocols._parts.objects import searched_maps

        return {each.name: each.inputs for each in searched_maps(backbone, layers, settings)}

    @classmethod
    def part(cls, settings: S) -> Part:
        """Return the part of the data that is searched."""
        return settings.part


def cost(settings: SearchSettings, shapes: Shapes) -> Cost:
    """Return one pass per image."""
    return Cost(images=shapes.test, rest="the search for regions in the maps")
