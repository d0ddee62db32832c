"""COCO-Stuff 164k: images/{train2017,val2017}/ with stuffthingmaps_trainval2017/{train2017,val2017}/ (or annotations/).

Caesar et al., CVPR 2018: 80 classes of things and 91 of stuff. Published maps hold the id of the class less one, 0 to
181, and 255 where nothing is labelled, which does not count. The ids of 11 things have no pixels. Files with the ending
_labelTrainIds, as MMSegmentation writes them, number the same classes from 0 to 170.
"""

from pathlib import Path

from sslbench.data.format import SourceFormat
from sslbench.data.maps.classes import LabelMapOptions, names_folders, with_ignored
from sslbench.data.maps.files import ValueMaps
from sslbench.data.maps.foreground import map_readers
from sslbench.data.maps.layout import by_key, pair, source_of, walk
from sslbench.data.maps.types import Coding
from sslbench.data.source import Source

_SPLITS = ("train2017", "val2017")
_MAPS = ("stuffthingmaps_trainval2017", "annotations")
_TRAIN_IDS = "_labelTrainIds"
_LISTS = ("classes.txt", "classes.json")
_UNLABELLED = 255
# Ids of street sign, hat, shoe, eye glasses, plate, mirror, window, desk, door, blender and hair brush
_UNUSED = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83, 91)

NAMES = (
    *("person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light"),
    *("fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant"),
    *("bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard"),
    *("sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle"),
    *("wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange", "broccoli"),
    *("carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed", "dining table", "toilet"),
    *("tv", "laptop", "mouse", "remote", "keyboard", "cell phone", "microwave", "oven", "toaster", "sink"),
    *("refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush", "banner"),
    *("blanket", "branch", "bridge", "building-other", "bush", "cabinet", "cage", "cardboard", "carpet"),
    *("ceiling-other", "ceiling-tile", "cloth", "clothes", "clouds", "counter", "cupboard", "curtain", "desk-stuff"),
    *("dirt", "door-stuff", "fence", "floor-marble", "floor-other", "floor-stone", "floor-tile", "floor-wood"),
    *("flower", "fog", "food-other", "fruit", "furniture-other", "grass", "gravel", "ground-other", "hill", "house"),
    *("leaves", "light", "mat", "metal", "mirror-stuff", "moss", "mountain", "mud", "napkin", "net", "paper"),
    *("pavement", "pillow", "plant-other", "plastic", "platform", "playingfield", "railing", "railroad", "river"),
    *("road", "rock", "roof", "rug", "salad", "sand", "sea", "shelf", "sky-other", "skyscraper", "snow", "solid-other"),
    *("stairs", "stone", "straw", "structural-other", "table", "tent", "textile-other", "towel", "tree", "vegetable"),
    *("wall-brick", "wall-concrete", "wall-other", "wall-panel", "wall-stone", "wall-tile", "wall-wood"),
    *("water-other", "waterdrops", "window-blind", "window-other", "wood"),
)
"""Classes in order of their ids."""

VALUES = tuple(number - 1 for number in range(1, 183) if number not in _UNUSED)
"""Value of each class in the published maps."""


def recognises(spec: str) -> bool:
    """Return whether images and maps of train2017 or val2017 lie in the folders of the publication.

    Without classes.txt, which names the classes of maps of one's own in such folders.
    """
    root = Path(spec)
    return bool(_splits(root)) and not any((root / name).is_file() for name in _LISTS)


def _splits(root: Path) -> dict[str, tuple[Path, Path]]:
    """Split -> folders of its images and of its maps."""
    maps = next((root / name for name in _MAPS if any((root / name / split).is_dir() for split in _SPLITS)), None)
    images = root / "images" if (root / "images").is_dir() else root
    if maps is None:
        return {}
    found = {split.removesuffix("2017"): (images / split, maps / split) for split in _SPLITS}
    return {split: folders for split, folders in found.items() if all(folder.is_dir() for folder in folders)}


def open_maps(spec: str, options: LabelMapOptions) -> dict[str, Source]:
    """Return the label maps of COCO-Stuff; see `sslbench.data.open.open_as`."""
    sources = {}
    for split, (photos, folder) in _splits(Path(spec)).items():
        files = walk(folder)
        published = [path for path in files if not Path(path).stem.endswith(_TRAIN_IDS)]
        values = VALUES if published else tuple(range(len(NAMES)))
        coding = with_ignored(spec, Coding(values, NAMES, (_UNLABELLED,)), options.ignore)
        maps = by_key(folder, published) if published else by_key(folder, files, _TRAIN_IDS)
        pairs = pair(by_key(photos, walk(photos)), maps, photos, folder)
        sources[split] = source_of(spec, split, pairs, ValueMaps(pairs.maps), coding)
    return sources


FORMAT = SourceFormat(
    __doc__,
    readers=map_readers(
        lambda spec, options: not names_folders(options) and "classes" not in options and recognises(spec),
        open_maps,
        LabelMapOptions,
        alone=recognises,
    ),
)
