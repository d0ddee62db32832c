"""Weights by name or address: Hugging Face Hub, timm, VISSL's model zoo, http(s). Nothing else is ever downloaded."""

import dataclasses
import difflib
import functools
import glob
import hashlib
import logging
import re
from pathlib import Path

from sslbench import paths
from sslbench.backbones.architectures import refuse_unknown_backbone, timm_names
from sslbench.config import read_yaml
from sslbench.data import remote
from sslbench.errors import DataError, UnreachableError, UsageError, WeightsError
from sslbench.names import did_you_mean
from sslbench.text import without_secrets
from sslbench.weights.reading import folders

_SCHEMES = ("hf", "timm", "vissl")
_HUB = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?(:(?P<file>[\w./-]+))?")
_ZOO = "_vissl_zoo.yaml"
_SHA256 = re.compile(r"[0-9a-f]{64}")
log = logging.getLogger("sslbench")


@dataclasses.dataclass(frozen=True)
class FetchedWeights:
    """Local file of weights that were given by name.

    Attributes:
        source: address of the file, with the Hub's commit.
        backbone: architecture that the name determines; None where it is read from the file.
    """

    path: Path
    source: str
    backbone: str | None = None


def is_named(weights: str) -> bool:
    """Return whether --weights is a name or address, not a path.

    >>> is_named("hf:facebook/dinov2-small"), is_named("runs/a/weights.torch")
    (True, False)
    """
    named = weights.partition(":")[0] in _SCHEMES and ":" in weights
    return (named or remote.is_url(weights.partition("#")[0])) and not Path(weights).exists()


def weights_name(weights: str) -> str:
    """Return the name of weights in records: of a file, the file's; of a model, its address; of a URL, the last part.

    >>> weights_name("runs/a/weights.torch"), weights_name("https://example.org/r50.pth#sha256=00")
    ('weights.torch', 'r50.pth')
    """
    if not is_named(weights) or _hub_folder(weights) is not None:
        return Path(weights.removeprefix("hf:")).resolve().name
    address = weights.partition("#")[0]
    return address.rpartition("/")[2].partition("?")[0] if remote.is_url(address) else address


def random_backbone(backbone: str | None) -> str:
    """Return the backbone of `--weights random`."""
    if backbone is None:
        raise UsageError("--weights random needs --backbone", "Name it: --backbone resnet50.")
    return backbone


def is_pixels(weights: str) -> bool:
    """Return whether --weights is the word 'pixels', perhaps with a size, and not a file of that name."""
    return weights.partition(":")[0] == "pixels" and not Path(weights).exists()


def pixels_backbone(weights: str, backbone: str | None) -> str:
    """Return the backbone of `--weights pixels`, that word itself."""
    if backbone not in (None, weights):
        raise UsageError(f"--weights {weights} fixes the backbone, but --backbone is {backbone}")
    return weights


def backbone_of(weights: str, backbone: str | None) -> str | None:
    """Return --backbone; without it, the architecture that a name of weights determines."""
    return backbone or (local(weights).backbone if is_named(weights) else None)


def local(weights: str) -> FetchedWeights:
    """Return the folder that `hf:FOLDER` means now, from the working directory; of other names see `fetch`."""
    address, _, fragment = weights.partition("#")
    folder = _hub_folder(address) if address.startswith("hf:") else None
    if folder is None:
        return fetch(weights)
    if fragment:
        raise UsageError(f"--weights {weights}: a folder has no SHA-256", f"Leave out '#{fragment}'.")
    return FetchedWeights(folder, str(folder))


@functools.cache
def fetch(weights: str) -> FetchedWeights:
    """Return the local copy of weights given by name; downloaded when it is not there yet."""
    address, _, fragment = weights.partition("#")
    key, _, digest = fragment.partition("=")
    sha256 = digest.lower()
    if fragment and (key != "sha256" or not _SHA256.fullmatch(sha256)):
        raise UsageError(f"--weights {weights}: behind '#' should stand sha256= and 64 hex digits")
    scheme = address.partition(":")[0]
    if scheme == "timm":
        found = _from_timm(address)
    elif scheme == "hf":
        found = _from_hub(address)
    elif (path := paths.file_url_path(address)) is not None:
        found = FetchedWeights(path, str(path))
    elif scheme == "vissl":
        found = _from_url(_of_zoo(address))
    else:
        found = _from_url(address)
    if sha256:
        _verify(found, sha256)
    return found


def _verify(found: FetchedWeights, sha256: str) -> None:
    with found.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise WeightsError(
            f"{found.path} is not the expected file: its SHA-256 is {digest}, expected is {sha256}",
            f"It was fetched from {found.source}. Remove it if it is damaged; otherwise the address has changed.",
        )


def _placed(*parts: str) -> Path:
    """Return the path where a user may put a file by hand, for machines without a network."""
    return paths.cache_dir().joinpath("weights", *(re.sub(r"[^\w.-]+", "-", part) for part in parts))


def _from_url(url: str) -> FetchedWeights:
    host, _, path = without_secrets(url).partition("://")[2].partition("/")
    by_hand = _placed(host.rpartition("@")[2], *path.partition("?")[0].split("/"))
    if by_hand.is_file():
        return FetchedWeights(by_hand, url)
    if not remote.was_fetched(url):
        log.info(f"{url}: fetching from {host}")
    try:
        (copy,) = remote.local_copies([url])
    except UnreachableError as error:
        remedy = f"Without a network: download it elsewhere and put it at {by_hand}"
        raise WeightsError(error.message, remedy) from error
    return FetchedWeights(copy, url)


def refuse_unknown(weights: str) -> None:
    """Refuse a name of VISSL's model zoo or of the Hub that cannot exist, without asking the network."""
    if not is_named(weights):
        return
    address, scheme = weights.partition("#")[0], weights.partition(":")[0]
    if scheme == "vissl":
        _of_zoo(address)
    if scheme == "hf" and _hub_folder(address) is None:
        _hub_parts(address)
    if scheme == "timm":
        refuse_unknown_backbone(address)


def download_hint(name: str) -> str:
    """Return the names of downloads that someone may mean by a word that is no path; '' for a path.

    >>> download_hint("vit_small_patch14_dinov2"), download_hint("w.pth")
    ('To download weights, write timm:vit_small_patch14_dinov2.', '')
    """
    if Path(name).suffix or Path(name).name != name or any(Path().glob(f"{glob.escape(name)}.*")):
        return ""
    known = {each: f"timm:{each}" for each in timm_names()} | {each: f"vissl:{each}" for each in _zoo()}
    near = [name] if name in known else difflib.get_close_matches(name, known, n=3, cutoff=0.8)
    return f"To download weights, write {' or '.join(known[each] for each in near)}." if near else ""


def _of_zoo(address: str) -> str:
    """Return the URL of a name of VISSL's model zoo."""
    name, zoo = address.partition(":")[2], _zoo()
    if name not in zoo:
        raise UsageError(f"VISSL's model zoo has no '{name}' here", did_you_mean(name, zoo))
    return zoo[name]


def _zoo() -> dict[str, str]:
    """Return name -> URL of VISSL's model zoo and of the user's own lists."""
    zoo: dict[str, str] = {}
    for root in reversed(paths.search_path("model_converters")):
        if (root / _ZOO).is_file():
            zoo |= read_yaml(root / _ZOO)
    return zoo


def _from_timm(address: str) -> FetchedWeights:
    import timm

    name = address.partition(":")[2].partition(",")[0]
    if not timm.is_model(name.partition(".")[0]):
        raise UsageError(f"timm has no model '{name}'", did_you_mean(name, timm.list_models()))
    cfg = timm.get_pretrained_cfg(name)
    tagged = f"{cfg.architecture}.{cfg.tag}" if cfg is not None and cfg.tag else name
    if cfg is None or (name.partition(".")[2] and tagged != name) or not (cfg.hf_hub_id or cfg.url):
        known = timm.list_pretrained(f"{name.partition('.')[0]}*")
        raise UsageError(f"timm has no pretrained weights '{name}'", did_you_mean(name, known))
    found = _from_hub(f"hf:{cfg.hf_hub_id}") if cfg.hf_hub_id else _from_url(str(cfg.url))
    options = address.partition(",")
    return dataclasses.replace(found, backbone=f"timm:{tagged}{options[1]}{options[2]}")


def _from_hub(address: str) -> FetchedWeights:
    """Return a file of a model on the Hugging Face Hub, from its own cache where it is there already."""
    match = _hub_parts(address)
    repo, revision = match["repo"], match["revision"] or "main"
    names = (match["file"],) if match["file"] else (*folders.WEIGHTS, *folders.INDEXES)
    for name in names:
        if (path := _placed_or_fetched(repo, revision, name)) is not None:
            for shard in folders.shard_names(path) if folders.is_index(path) else ():
                _placed_or_fetched(repo, revision, str(Path(name).with_name(shard)))
            for config in folders.CONFIGS if path.name in (*folders.WEIGHTS, *folders.INDEXES) else ():
                try:
                    _placed_or_fetched(repo, revision, str(Path(name).with_name(config)))
                except WeightsError as error:
                    log.warning(f"{error.message}: what only it says of {name} is unknown")
            # The Hub's cache has a file at .../snapshots/COMMIT/FILE.
            parts = path.parts
            commit = parts[parts.index("snapshots") + 1] if "snapshots" in parts else revision
            return FetchedWeights(path, f"hf:{repo}@{commit}:{name}")
    raise WeightsError(
        f"hf:{repo} (revision {revision}) has none of the files {', '.join(names)}",
        f"Name the file: --weights hf:{repo}:FILE",
    )


def _placed_or_fetched(repo: str, revision: str, name: str) -> Path | None:
    """Return a file of a model on the Hub, put there by hand or fetched; None if the model has no such file."""
    by_hand = _placed("hf", repo, revision, name)
    if by_hand.is_file():
        return by_hand
    if by_hand.parent.is_dir() and Path(name).name in folders.CONFIGS:
        return None  # the weights were put there by hand, for want of a network
    path = _hub_file(repo, revision, name, by_hand)
    if path is not None:
        # The name of a large file's blob in the Hub's cache is its hash.
        blob = path.resolve()
        if _SHA256.fullmatch(blob.name):
            _verify(FetchedWeights(blob, str(path)), blob.name)
    return path


def _hub_folder(address: str) -> Path | None:
    """Return the folder in 'hf:FOLDER', as `save_pretrained` writes it; None for a model on the Hub."""
    text = address.removeprefix("hf:")
    folder = Path(text).expanduser()
    if text == address or folder.is_dir():
        return folder.resolve() if text != address else None
    if text.startswith((".", "/", "~")):
        raise UsageError(
            f"--weights {address}: there is no folder {folder}", "Write hf:OWNER/MODEL for one on the Hub."
        )
    return None


def _hub_parts(address: str) -> re.Match[str]:
    """Return the parts of a name of a model on the Hub."""
    match = _HUB.fullmatch(address)
    if match is None:
        raise UsageError(
            f"--weights {address} is not a model on the Hub", "Write hf:OWNER/MODEL, hf:OWNER/MODEL@REVISION:FILE."
        )
    return match


def _hub_file(repo: str, revision: str, name: str, by_hand: Path) -> Path | None:
    """Return the path of a file in the Hub's cache, fetched if it is missing; None if the model has no such file."""
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    offline = WeightsError(
        f"hf:{repo}: {name} cannot be fetched" + (", as HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else ""),
        f"Without a network: copy {constants.HF_HUB_CACHE} from a machine that has it, or put the file at {by_hand}",
    )
    cached = isinstance(try_to_load_from_cache(repo, name, revision=revision), str)
    if not cached and not constants.HF_HUB_OFFLINE:
        log.info(f"hf:{repo}: fetching {name} from the Hugging Face Hub ({constants.ENDPOINT})")
        try:  # huggingface_hub would retry for half a minute
            remote.refuse_unreachable(constants.ENDPOINT)
        except DataError as error:
            raise WeightsError(f"hf:{repo}: {name} cannot be fetched: {error.message}", offline.remedy) from error
    hub_log = logging.getLogger("huggingface_hub")
    before = hub_log.level
    hub_log.setLevel(logging.ERROR)  # it would print every failed try; the error below says the same once
    try:
        return Path(hf_hub_download(repo, name, revision=revision))
    except LocalEntryNotFoundError as error:
        raise offline from error
    except EntryNotFoundError:
        return None
    except RepositoryNotFoundError as error:
        raise UsageError(f"the Hub has no model '{repo}', or it is private", "Log in with: hf auth login") from error
    except RevisionNotFoundError as error:
        raise UsageError(f"hf:{repo} has no revision '{revision}'") from error
    except (HfHubHTTPError, OSError) as error:
        if isinstance(error, OSError) and error.errno in paths.FULL:
            cache = Path(constants.HF_HUB_CACHE)
            raise WeightsError(paths.not_written(cache, error), "Free some, or set $HF_HOME.") from error
        raise offline from error
    finally:
        hub_log.setLevel(before)
