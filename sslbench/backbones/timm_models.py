"""Models of timm by name, with random weights; nothing is downloaded."""

import ast
import logging
import math
import re
from collections.abc import Mapping
from types import NoneType
from typing import Any

from torch import nn

from sslbench.backbones.backbone import Backbone, Kind
from sslbench.backbones.vit_recognise import UNKNOWN, recognise_vit
from sslbench.errors import UsageError
from sslbench.names import did_you_mean
from sslbench.preprocessing import Preprocessing
from sslbench.weights.formats.schema import InputImages

log = logging.getLogger("sslbench")

# Images that self-supervised vision transformers are trained on; timm's default belongs to its own AugReg weights.
_VIT_INPUT = InputImages("RGB", resize=256, interpolation="bicubic")


def is_timm_name(name: str) -> bool:
    """Return whether timm has this architecture; a tag (after a dot) and options (after commas) may follow."""
    import timm

    return bool(timm.is_model(name.partition(",")[0].partition(".")[0]))


def no_such_option(name: str, has: str) -> UsageError:
    """Return the error for an option after the comma that sslbench's own network lacks; timm may have it."""
    base, _, options = name.partition(",")
    timms = f" The options of timm's: timm:{name}." if is_timm_name(base) else ""
    return UsageError(f"'{options}' is not an option of {base}", f"It has {has}.{timms}")


def build_timm(name: str) -> Backbone:
    """Return a timm model without its classifier, initialised by timm from the global random state."""
    import timm

    name, options = parse_options(name)
    if not isinstance(options.get("in_chans", 3), int) or options.get("in_chans", 3) < 1:
        raise UsageError(
            f"in_chans={options['in_chans']} is not a number of channels", f"Write timm:{name},in_chans=4."
        )
    if missing := [key for key, value in options.items() if value == UNKNOWN]:
        raise UsageError(f"timm:{name}: {missing[0]}={UNKNOWN} is a place for a number", "Write that of its training.")
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise UsageError(f"timm has no model '{architecture}'", did_you_mean(architecture, timm.list_models()))
    if tag:
        tags = {known.partition(".")[2] for known in list_pretrained(architecture)}
        if tag not in tags:
            raise UsageError(f"timm's {architecture} has no tag '{tag}'", did_you_mean(tag, tags))
    eps = {key: options.pop(key) for key in _EPS if key in options}
    if wrong := [key for key, value in eps.items() if not isinstance(value, float | int) or not 0 < value < 1]:
        raise UsageError(f"{wrong[0]}={eps[wrong[0]]} is not a small number", f"Write timm:{name},{wrong[0]}=1e-6.")
    bare = architecture.startswith("beit") and options.pop("final_norm", True) is False
    try:
        module = timm.create_model(name, pretrained=False, num_classes=0, **options)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        if not options:
            raise
        given = ",".join(f"{key}={_written(value)}" for key, value in options.items())
        raise UsageError(f"timm cannot build {name} with {given}: {error}") from error
    for key, value in eps.items():
        _set_eps(module, _EPS[key], value, name)
    if bare:  # an option of timm's other vision transformers
        module.norm, module.fc_norm = nn.Identity(), nn.Identity()
    options |= {**eps, **({"final_norm": False} if bare else {})}
    shapes = {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}
    return Backbone(
        name=",".join((f"timm:{name}", *(f"{key}={_written(value)}" for key, value in options.items()))),
        kind=Kind(options=frozenset({"in_chans", "img_size"}), tags=True),
        module=module,
        preprocessing=timm_preprocessing(module, channels=options.get("in_chans")),
        aliases=_aliases(module),
        default_layer="features",
        versions={"timm": timm.__version__},
        classifiers=_recorded_paths(module, "classifier"),
        stems=_recorded_paths(module, "first_conv"),
        usual_input=_VIT_INPUT if recognise_vit(shapes) is not None else None,
    )


# Options that timm's constructors do not take: the number added to variances in all LayerNorms, or in this one.
_EPS = {"norm_eps": "", "head_norm_eps": "head.norm"}


def _set_eps(module: nn.Module, path: str, value: float, name: str) -> None:
    """Set the number that LayerNorms in a network add to the variance."""
    from timm.layers.norm import RmsNorm

    norms = [
        part
        for where, part in module.named_modules()
        if (not path or where == path) and isinstance(part, nn.LayerNorm | RmsNorm)
    ]
    if not norms:
        raise UsageError(f"timm's {name} has no LayerNorm" + (f" '{path}'" if path else ""), "Leave the option out.")
    for norm in norms:
        norm.eps = float(value)


def parse_options(name: str) -> tuple[str, dict[str, Any]]:
    """Split 'vit_small_patch16_224,img_size=384' into the name and {'img_size': 384}."""
    name, *parts = name.split(",")
    options: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not key.isidentifier() or not equals or not value or key in options:
            raise UsageError(f"'{part}' is not an option of {name}", f"Write for example timm:{name},img_size=384.")
        try:
            options[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            # A comma ends an option: the blocks of a ConvNeXt's stages are written 3-3-9-3.
            options[key] = tuple(map(int, value.split("-"))) if _NUMBERS.fullmatch(value) else value
    return name, options


_NUMBERS = re.compile(r"\d+(?:-\d+)+")


def _written(value: Any) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


def list_pretrained(architecture: str) -> list[str]:
    """Return the names, with tags, of timm's pretrained weights of an architecture."""
    import timm

    return [known for known in timm.list_pretrained(architecture + "*") if known.partition(".")[0] == architecture]


# Options accepted from a weights file: sizes and switches, never paths, downloads or names of modules.
_RECORDED_OPTIONS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("embed_dim", "depth", "patch_size", "reg_tokens", "in_chans", "frames"), int),
    **dict.fromkeys(("num_reg_tokens", "ref_feat_shape", "swiglu_align_to"), int),
    **dict.fromkeys(("w0", "group_size", "stem_width"), int),
    **dict.fromkeys(("wa", "wm", "bottle_ratio", "se_ratio", "bn_eps"), (int, float)),
    **dict.fromkeys(("depths", "dims", "pretrained_window_sizes"), tuple),
    **dict.fromkeys(("num_heads", "img_size", "window_size"), (int, tuple)),
    **dict.fromkeys(_EPS, (int, float)),
    **dict.fromkeys(("mlp_ratio", "drop_rate", "drop_path_rate", "proj_drop_rate", "attn_drop_rate"), (int, float)),
    **dict.fromkeys(
        ("no_embed_class", "class_token", "fc_norm", "final_norm", "pre_norm", "qkv_bias", "proj_bias", "qk_norm"), bool
    ),
    **dict.fromkeys(("use_abs_pos_emb", "use_rel_pos_bias", "use_shared_rel_pos_bias", "dynamic_img_size"), bool),
    **dict.fromkeys(("conv_mlp", "use_grn"), bool),
    **dict.fromkeys(("init_values", "ls_init_value"), (int, float, NoneType)),
    **dict.fromkeys(("rope_grid_offset", "rope_temperature"), (int, float)),
    **dict.fromkeys(("global_pool", "act_layer"), str),
}
_MOST = {"embed_dim": 16_384, "depth": 200, "reg_tokens": 1024, "mlp_ratio": 64, "rope_temperature": 10_000_000}


def check_recorded_options(name: str, where: str) -> None:
    """Refuse options in a timm name read from a file that are not mere sizes or switches."""
    name, options = parse_options(name)
    for key, value in options.items():
        kinds = _RECORDED_OPTIONS.get(key)
        fits = kinds is not None and isinstance(value, kinds) and (kinds is bool or not isinstance(value, bool))
        if not fits or (isinstance(value, str) and not value.isidentifier()):
            raise UsageError(
                f"timm's option {key}={value} is not taken from a file",
                f"If you trust it, give it on the command line: --backbone timm:{name},{key}={value}",
            )
        numbers = value if isinstance(value, tuple) else (value,) if isinstance(value, int | float) else ()
        if len(numbers) > 4 or not all(0 <= number <= _MOST.get(key, 4096) for number in numbers):
            raise UsageError(f"{key}={value} is larger than in any network")


def _recorded_paths(module: nn.Module, key: str) -> tuple[str, ...]:
    """Return module paths that timm records under a key of its configuration; () where it does not."""
    names = (getattr(module, "pretrained_cfg", None) or {}).get(key) or ()
    return (names,) if isinstance(names, str) else tuple(names)


def timm_preprocessing(module: nn.Module, *, channels: int | None = None) -> Preprocessing:
    """Return the evaluation transform that timm records with the weights (untagged: with the architecture).

    channels: of its images, where it was built for another number than timm records; None: as recorded.
    """
    from timm.data.config import resolve_model_data_config

    cfg: dict[str, Any] = resolve_model_data_config(module)  # type: ignore[no-untyped-call]
    recorded = getattr(module, "pretrained_cfg", None) or {}
    recorded_channels, height, width = cfg["input_size"]
    if size := getattr(getattr(module, "patch_embed", None), "img_size", None):  # of vision transformers: as built
        height, width = size
    channels = channels or getattr(module, "in_chans", recorded_channels)
    origin = "timm " + str(recorded.get("architecture", "default"))
    origin += f".{recorded['tag']}" if recorded.get("tag") else ""
    scaled = (math.floor(height / cfg["crop_pct"]), math.floor(width / cfg["crop_pct"]))
    exact = cfg["crop_mode"] == "squash"
    if not exact and (cfg["crop_mode"] != "center" or height != width):
        exact = True
        log.warning(
            f"{origin} wants the crop mode '{cfg['crop_mode']}' at {height}x{width}; images are squashed instead"
        )
        origin += ", squashed"
    used = Preprocessing(
        resize=scaled if exact else scaled[0],
        crop=(height, width),
        interpolation=cfg["interpolation"],
        mean=tuple(cfg["mean"]),
        std=tuple(cfg["std"]),
        origin=origin,
    )
    return used.for_channels(channels)


def _aliases(module: nn.Module) -> dict[str, str]:
    """Name the layers: `features` (pooled), `features.0`, `features.1`, ... (stages), `last` (last stage, unpooled)."""
    modules = {path for path, _ in module.named_modules() if path}
    if "incre_modules" in modules:  # HRNet: the stages that timm names return a list, a map for each resolution
        stages = ["act1", *(f"incre_modules.{index}" for index in range(4))]
        return {"features": "", "last": "final_layer"} | {f"features.{i}": path for i, path in enumerate(stages)}
    info = getattr(module, "feature_info", None) or []
    stages = [entry["module"] for entry in info if isinstance(entry, dict) and entry.get("module") in modules]
    aliases = {"features": ""} | {f"features.{index}": path for index, path in enumerate(stages)}
    if "norm" in modules:
        return aliases | {"last": "norm"}
    return aliases | ({"last": stages[-1]} if stages else {})
