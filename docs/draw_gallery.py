"""Pictures of docs/gallery.md: runs its commands in a folder, in order, and copies what they draw to docs/gallery/.

    python docs/draw_gallery.py FOLDER

Needs sslbench[umap], and Chromium for the picture of the page. Minutes on two cores.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).resolve().parent
WIDTH = 900  # of the largest picture, in pixels
ROWS_SHOWN = {
    "detection": 1 / 3
}  # share of the picture from the top: the others are alike, and noise makes large files
DRAWN = {
    "curves": "curves.png",
    "confusion": "sslbench-demo/results/linear/weights.torch-*.confusion.png",
    "worst": "sslbench-demo/show-images/worst.png",
    "patches": "patches/pca.png",
    "umap": "umap/scatter-res5avg.png",
    "detection": "results/detection/resnet18-untrained-*.png",
}
"""Name of a picture -> the file that a command draws."""


def commands() -> list[list[str]]:
    """Return the words of the commands in the code blocks of the gallery, in order."""
    blocks = re.findall(r"^```\n(.*?)^```", (DOCS / "gallery.md").read_text(encoding="utf-8"), re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("sslbench ")]


def photograph(page: Path, picture: Path) -> None:
    """Draw a web page as Chromium shows it."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        sys.exit("no chromium is installed, in which the page could be looked at")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1100,760"]
    profile = f"--user-data-dir={picture.parent.resolve()}/profile"
    subprocess.run([found, *flags, profile, f"--screenshot={picture.resolve()}", page.resolve().as_uri()], check=True)


def copy(drawn: Path, name: str) -> None:
    """Write a picture to the gallery: at most `WIDTH` wide, 128 colours, which keeps it below 100 kB."""
    with Image.open(drawn) as image:
        small = image.convert("RGB").crop((0, 0, image.width, round(image.height * ROWS_SHOWN.get(name, 1))))
    small.thumbnail((WIDTH, 10 * WIDTH))
    small.quantize(128).save(DOCS / "gallery" / f"{name}.png", optimize=True)


def main(folder: Path) -> None:
    """Run the commands of the gallery in a folder, and copy the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    for words in commands():
        subprocess.run([sys.executable, "-m", "sslbench", *words], cwd=folder, check=True)
    photograph(folder / "sslbench-demo" / "leaderboard.html", folder / "leaderboard.png")
    for name, pattern in {"leaderboard": "leaderboard.png", **DRAWN}.items():
        (drawn,) = folder.glob(pattern)
        copy(drawn, name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
