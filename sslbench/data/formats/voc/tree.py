"""Folders and lists of Pascal VOC trees, shared by the readers of images, objects and label maps."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from sslbench.data.containers.listed import check_some
from sslbench.data.containers.sniff import read_text
from sslbench.data.images import Files
from sslbench.data.maps.layout import Pairs, by_key, walk
from sslbench.data.regular import matching
from sslbench.data.wording import repeated, some
from sslbench.errors import DataError
from sslbench.text import printable

MAIN_LISTS = Path("ImageSets") / "Main"
SEGMENTATION_LISTS = Path("ImageSets") / "Segmentation"
IMAGES, ANNOTATIONS = "JPEGImages", "Annotations"
SPLITS = ("train", "val", "trainval", "test")


def find_years(root: Path, *parts: str | Path) -> list[Path]:
    """Return the folders of years that hold all `parts`: the root itself, else VOC*/ in it and in its VOCdevkit/."""

    def complete(year: Path) -> bool:
        return all((year / part).is_dir() for part in parts)

    if not root.is_dir():
        return []
    if complete(root):
        return [root]
    return sorted(year for folder in (root, root / "VOCdevkit") for year in matching(folder, "VOC*") if complete(year))


def one_year(spec: str, years: list[Path], *, joinable: bool = False) -> Path:
    """Return the only year of a tree; `joinable`: several can be named with '+'."""
    if not years:
        raise DataError(
            f"{spec} is not a Pascal VOC tree", "It should hold ImageSets/Main, Annotations and JPEGImages."
        )
    if len(years) > 1:
        together = f", or several: {'+'.join(map(str, years))}" if joinable else ""
        raise DataError(
            f"{spec} holds several years: {some(sorted(year.name for year in years))}",
            f"Name one: {years[0]}{together}",
        )
    return years[0]


def image_files(year: Path) -> dict[str, str]:
    """Return stem -> file name of the images of a year."""
    folder = year / IMAGES
    if not folder.is_dir():
        raise DataError(f"{folder} is missing", "It should hold the images that the lists in ImageSets name.")
    return by_key(folder, walk(folder))


def read_lines(path: Path) -> list[str]:
    """Return the lines of a list, with empty ones."""
    return read_text(path)[0].splitlines()


def read_stems(path: Path) -> list[str]:
    """Return the sorted stems of a list with one image per line."""
    stems = [line.strip() for line in read_lines(path) if line.strip()]
    if twice := repeated(stems):
        raise DataError(f"{path} lists an image twice: {some(twice)}")
    if outside := [stem for stem in stems if ".." in Path(stem).parts or Path(stem).is_absolute()]:
        raise DataError(f"{path} lists images outside of the tree: {some(outside)}")
    return sorted(stems)


def map_lists(root: Path, folder: Path) -> dict[str, tuple[Path, list[str]]]:
    """Return split -> list and its stems: train, val and test where there are such lists, else one list as all."""
    files = {path.stem: path for path in matching(root / folder, "*.txt")}
    chosen: dict[str, Path] = {name: files[name] for name in ("train", "val", "test") if name in files}
    if not chosen:
        others = sorted(files, key=lambda name: (name != "trainval", name))
        if not others:
            raise DataError(f"{root / folder} holds no list of images")
        chosen = {"all": files[others[0]]}
    found = {name: (path, stems) for name, path in chosen.items() if (stems := read_stems(path))}
    if not found:
        raise DataError(f"the lists in {root / folder} are empty")
    return found


def listed_pairs(
    root: Path, file: Path, stems: Sequence[str], images: Mapping[str, str], folder: str, maps: Mapping[str, str]
) -> Pairs:
    """Return the images of a list that have a map, and their maps; `images`, `maps`: stem -> path in the folder."""
    files = [images.get(stem, f"{stem}.jpg") for stem in stems]
    check_some(str(file), files, root / IMAGES, f"Looked for them in {root / IMAGES}.")
    without = [stem for stem in stems if stem not in maps]
    if len(without) == len(stems):
        raise DataError(f"{file}: none of its images has a map in {root / folder}: {some(without)}")
    kept = [stem for stem in stems if stem in maps]
    chosen = tuple(images[stem] for stem in kept)
    return Pairs(
        Files(chosen, str(root / IMAGES)),
        Files(tuple(maps[stem] for stem in kept), str(root / folder)),
        tuple(map(printable, chosen)),
        tuple(printable(str(root / IMAGES / images[stem])) for stem in without),
    )
