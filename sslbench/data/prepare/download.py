"""Download of data sets by torchvision, Hugging Face, TFDS and from official archives, and their state on disk."""

import dataclasses
import datetime
import importlib.util
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sslbench import paths
from sslbench.config import build, read_yaml
from sslbench.data import prepare
from sslbench.data.formats import torchvision as torchvision_sets
from sslbench.data.formats.hf import files as hub
from sslbench.data.open import open_data
from sslbench.data.wording import one_line
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.paths import temporary_beside

_FILE = "_downloads.yaml"
_MARKS = ".verified"
_TORCHVISION = "torchvision:"
log = logging.getLogger("sslbench")


@dataclasses.dataclass(frozen=True)
class Download:
    """Data set that can be downloaded, or whose files the user has to get.

    Attributes:
        name: as in benchmarks/data.
        data: data location that the files then have; empty for archives.
        calls: arguments of each call of torchvision's class.
        archives: name of an archive -> its address.
        md5: name of an archive -> its checksum, where no layout of `data prepare` knows it.
        folder: place of data without a source of their own below the user's data folder, a folder or a manifest.
        files: archives and layout, for the user to fetch and unpack; empty: a command does it.
        megabytes: size of the transfer, rounded; 0: not known.
        licence: of the data; empty where its page has to be read.
        page: web page of the data.
    """

    name: str
    data: str = ""
    calls: tuple[dict[str, Any], ...] = ({},)
    archives: dict[str, str] = dataclasses.field(default_factory=dict)
    md5: dict[str, str] = dataclasses.field(default_factory=dict)
    folder: str = ""
    files: str = ""
    megabytes: int = 0
    licence: str = ""
    page: str = ""

    @property
    def by_hand(self) -> bool:
        """Return whether no command fetches the files."""
        return bool(self.files) or not (self.data or self.archives)

    def terms(self) -> str:
        """Return size, licence and page in one line."""
        size = f"about {self.megabytes:,} MB" if self.megabytes else "of unknown size"
        licence = f"licence: {self.licence}" if self.licence else "for its licence see the page"
        return f"{self.name}: {size}, {licence}, {self.page}"


def downloads() -> dict[str, Download]:
    """Return name -> download; files of the user's below $SSLBENCH_PATH have precedence."""
    found: dict[str, Download] = {}
    # The last one read wins, and the first of the path has precedence.
    for root in reversed(paths.search_path("benchmarks")):
        file = root / _FILE
        for name, content in read_yaml(file).items() if file.is_file() else ():
            found[name] = build(Download, {**content, "name": name}, f"{file}: {name}")
    return found


def find_download(name: str) -> Download:
    """Return the download of a name, of `torchvision:NAME`, `hf:OWNER/NAME` or `tfds:NAME`."""
    known = downloads()
    scheme, _, rest = name.partition(":")
    if scheme == "hf" and rest:
        return _of_hub(name, rest)
    if scheme == "tfds" and rest:
        return Download(name, data=name, page=f"https://www.tensorflow.org/datasets/catalog/{rest.partition('/')[0]}")
    found = known.get(name) or next((each for each in known.values() if each.data == name), None)
    if found is None:
        remedy = f"{did_you_mean(name, known)} Also torchvision:NAME, hf:OWNER/NAME and tfds:NAME."
        if name in prepare.MAKERS:
            remedy = f"Its authors hand out its archives: get them, then sslbench data prepare {name}."
        raise UsageError(f"there is no download called '{name}'", remedy)
    if found.by_hand and not found.files:
        listed = ", ".join(archive.name for archive in prepare.archives_of(found.name))
        raise UsageError(
            f"{found.name} has to be fetched by hand: {listed}",
            f"Get them at {found.page}, then: sslbench data prepare {found.name} --archive FOLDER",
        )
    if found.files:
        place = place_of(found, paths.data_dir())
        raise UsageError(
            f"{found.name} has to be fetched by hand, and is looked for as {place}",
            f"Get its files at {found.page} and put them below {paths.data_dir()}: {found.files}.",
        )
    if found.page or not found.data.startswith(_TORCHVISION):
        return found
    return dataclasses.replace(found, page=torchvision_sets.page(found.data.removeprefix(_TORCHVISION)))


def _of_hub(name: str, repo: str) -> Download:
    """Return the size and licence that the Hub states."""
    import huggingface_hub

    page = f"https://huggingface.co/datasets/{repo}"
    try:
        info = huggingface_hub.HfApi().dataset_info(repo, files_metadata=True)
    except Exception as error:  # of whichever HTTP library huggingface_hub uses
        raise hub.not_reached(f"{name} cannot be found", error) from error
    size = sum(file.size or 0 for file in info.siblings or ())
    licence = info.card_data.get("license", "") if info.card_data is not None else ""
    # Rounded up, as 0 stands for an unknown size.
    return Download(name, data=name, megabytes=-(-size // 10**6), licence=str(licence or ""), page=page)


def download(wanted: Download, root: Path) -> str:
    """Fetch a data set, verify it where checksums are published, and return the location for --data.

    `root`: the data folder; data sets of the Hub and of TFDS lie in their own caches.
    """
    if wanted.archives:
        return _archives(wanted, root)
    scheme, _, name = wanted.data.partition(":")
    if scheme == "torchvision":
        return _torchvision(wanted, root)
    if scheme == "tfds":
        builder = _tfds_builder(wanted.data)
        if builder.MANUAL_DOWNLOAD_INSTRUCTIONS:
            raise UsageError(f"{wanted.data} has to be fetched by hand", _by_hand(wanted.data, builder))
        _prepare_tfds(wanted, builder)
    else:
        hub.find_files(f"{wanted.data}?download=1", f"{name}?download=1")
    return wanted.data


def _torchvision(wanted: Download, root: Path) -> str:
    import torchvision.datasets

    name = wanted.data.removeprefix(_TORCHVISION)
    kind = getattr(torchvision.datasets, name.partition("[")[0])
    root.mkdir(parents=True, exist_ok=True)
    try:
        for arguments in wanted.calls:
            kind(str(root), **arguments, download=True)  # compares the checksums that torchvision knows
    except (OSError, RuntimeError, ValueError) as error:
        raise _unreachable(wanted, torchvision_sets.place(name, root), error) from error
    # The numbers of images are those of the data set's file in benchmarks/data.
    expected = prepare.samples_of(wanted.name)
    for split, source in open_data(f"{wanted.data}@{root}").items():
        if expected.get(split, len(source)) != len(source):
            raise DataError(
                f"{wanted.name} in {root.absolute()} is not the official one: {split} has {len(source):,} images, "
                f"expected are {expected[split]:,}",
                "Remove it and download it again.",
            )
    _mark(wanted.name, root)
    return f"{wanted.data}@{root}"


def _archives(wanted: Download, root: Path) -> str:
    """Fetch archives and lay them out; a file that is used as it is goes to its place at once."""
    from torchvision.datasets.utils import download_url

    laid_out = () if wanted.folder else prepare.archives_of(wanted.name)
    checksums = {each.name: each.md5 for each in laid_out} | wanted.md5
    folder = (root / wanted.folder).parent if wanted.folder else root / "archives"
    folder.mkdir(parents=True, exist_ok=True)
    for name, url in wanted.archives.items():
        try:
            # None, not '', which torchvision would compare.
            download_url(url, folder, name, checksums.get(name) or None)
        except (OSError, RuntimeError, ValueError) as error:
            if wanted.folder:  # a damaged file would be taken for the data
                (folder / name).unlink(missing_ok=True)
            raise _unreachable(wanted, folder, error) from error
    place = root / wanted.folder if wanted.folder else prepare.prepare(wanted.name, [folder], root=root)
    _mark(wanted.name, root)
    if not wanted.folder:
        log.info(f"the archives in {folder} are not needed any more")
    return str(place)


def prepare_tfds(data: str, archives: Sequence[Path]) -> str:
    """Prepare a data set of TFDS whose archives the user got by hand, and return the location for --data.

    Args:
        data: `tfds:NAME`.
        archives: the folder with the archives, which TFDS calls its manual directory; exactly one.

    Raises:
        UsageError: TFDS downloads this data set itself, or there is no such folder; the message says what to do.
        DataError: TFDS cannot prepare it.
    """
    builder = _tfds_builder(data)
    if not builder.MANUAL_DOWNLOAD_INSTRUCTIONS:
        raise UsageError(
            f"{data} is fetched by TFDS itself, and `data prepare` downloads nothing",
            f"sslbench data download {data}: downloads and prepares it",
        )
    if len(archives) != 1 or not archives[0].is_dir():
        raise UsageError(f"{data} needs the folder with its archives", _by_hand(data, builder))
    import tensorflow_datasets as tfds

    _prepare_tfds(find_download(data), builder, tfds.download.DownloadConfig(manual_dir=str(archives[0])))
    return data


def _by_hand(data: str, builder: Any) -> str:
    words = " ".join(str(builder.MANUAL_DOWNLOAD_INSTRUCTIONS).split())
    return f"{words} Then: sslbench data prepare {data} --archive FOLDER"


def _tfds_builder(data: str) -> Any:
    """Return the builder of a data set of TFDS."""
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise UsageError(
            f"preparing {data} needs the package tensorflow-datasets", "pip install 'sslbench[tfds]'"
        ) from error
    # Without TensorFlow only ArrayRecord can be written.
    form = {} if importlib.util.find_spec("tensorflow") else {"file_format": "array_record"}
    name = data.partition(":")[2]
    try:
        return tfds.builder(name, **form)
    except tfds.core.DatasetNotFoundError as error:
        # Those of communities would be looked up on the network, by TensorFlow.
        known = tfds.list_builders(with_community_datasets=False)
        raise UsageError(f"TFDS has no data set called '{name}'", did_you_mean(name, known)) from error


def _prepare_tfds(wanted: Download, builder: Any, config: Any = None) -> None:
    try:
        builder.download_and_prepare(download_config=config)
    except Exception as error:  # of its downloads, parsers and writers
        if "No module named 'tensorflow'" in str(error):
            raise UsageError(
                f"preparing {wanted.data} needs TensorFlow, since TFDS encodes its images anew; reading it does not",
                "pip install tensorflow, and the same command again",
            ) from error
        raise _unreachable(wanted, Path(str(builder.data_dir)), error) from error


def _unreachable(wanted: Download, place: Path, error: Exception) -> DataError:
    return DataError(
        f"{wanted.name} cannot be downloaded: {one_line(error)}",
        f"Without a network: get the files of {wanted.page} elsewhere and put them into {place.absolute()}",
    )


def _mark(name: str, root: Path) -> None:
    """Record that a data set was compared with its checksums or counts."""
    mark = root / _MARKS / name
    mark.parent.mkdir(parents=True, exist_ok=True)
    with temporary_beside(mark) as temporary:
        temporary.write_text(datetime.datetime.now(datetime.UTC).date().isoformat() + "\n", encoding="utf-8")
        temporary.replace(mark)


def place_of(known: Download, root: Path) -> Path:
    """Return the place of a data set below the data folder."""
    if known.data:
        return torchvision_sets.place(known.data.removeprefix(_TORCHVISION), root)
    return root / known.folder if known.folder else prepare.place_of(known.name, root)


def states(root: Path) -> list[tuple[str, str, str, str]]:
    """Return (name, state, way, place) of every data set of benchmarks that is not drawn or bundled.

    States: 'absent'; 'present'; 'verified DATE', if `data download` compared it with its checksums or counts. Ways:
    'download', 'prepare', or 'by hand', which `data download NAME` then describes.
    """
    known = downloads()
    ways = dict.fromkeys(prepare.MAKERS, "prepare")
    ways |= {
        name: "by hand" if each.files else "download" for name, each in known.items() if each.files or not each.by_hand
    }
    rows = []
    for name, way in sorted(ways.items()):
        place = place_of(known[name], root) if name in known else prepare.place_of(name, root)
        mark = root / _MARKS / name
        state = "present" if place.exists() else "absent"
        if place.exists() and mark.is_file():
            state = f"verified {mark.read_text(encoding='utf-8').strip()}"
        rows.append((name, state, way, str(place)))
    return rows
