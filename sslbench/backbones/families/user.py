"""Networks of the user's own: module:callable."""

import dataclasses
import traceback

from torch import nn

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.build import Family
from sslbench.backbones.in_memory import from_module, users_preprocessing
from sslbench.errors import BackboneError, UsageError
from sslbench.names import find_object


def _build(spec: str) -> Backbone:
    target = find_object(spec)
    if not callable(target):
        raise UsageError(f"'{spec}' is a {type(target).__name__}, not a function that builds a backbone")
    if isinstance(target, nn.Module):
        raise UsageError(
            f"'{spec}' is a module, not a function that builds one",
            f"Give a function that returns it: lambda: {spec.split(':')[1]}",
        )
    try:
        module = target()
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error}"
        raise BackboneError(f"calling '{spec}()' failed at {frame.filename}, line {frame.lineno}: {reason}") from error
    if not isinstance(module, nn.Module):
        raise BackboneError(f"'{spec}()' returned a {type(module).__name__}, not a torch.nn.Module")
    backbone = from_module(spec, module, users_preprocessing(spec, module))
    kind = dataclasses.replace(backbone.kind, in_memory=False)
    return dataclasses.replace(backbone, kind=kind, in_process="", builder=(target,))


def _check_recorded(name: str, where: str) -> None:
    raise BackboneError(
        f"{where} names the Python code '{name}'; code named in a file is not run",
        f"If you trust it, give it on the command line: --backbone {name}",
    )


FAMILY = Family(lambda name: ":" in name, _build, check_recorded=_check_recorded, last_resort=True, users=True)
