"""Create timm networks by name and arguments, and check that they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from http.client import HTTPException
from math import prod
from ssl import SSLError
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import timm
import torch
from torch import nn

from edgevit.errors import CheckpointError, OptionError, UnknownNameError
from edgevit.network.arguments import check_arguments
from edgevit.network.copies import shape_copy
from edgevit.network.families import family_like, family_names, load_family
from edgevit.network.network import Network
from edgevit.network.torchvision_weights import TORCHVISION_NAMES
from edgevit.network.weights import FOREIGN, first_line

# Most pixels of an image, and most parameters, of a network that runs fast.
_QUICK_PIXELS, _QUICK_PARAMS = 256**2, 30_000_000
_HUB_S = 5  # timeout of the hub


def check_timm_name(name: str) -> None:
    """Raise UnknownNameError if timm has no such model; torchvision's names are suggested, too."""
    for family in family_names():
        load_family(family)  # which may add networks to timm's
    if not timm.is_model(name):
        raise UnknownNameError("timm model or model folder", name, [*timm.list_models(), *TORCHVISION_NAMES])


def create_timm_network(
    name: str, args: Mapping[str, Any], *, pretrained: bool = False, prefix: str = "--model-arg "
) -> nn.Module:
    """Create a timm model, converted by its family; `prefix` precedes its arguments in messages.

    Raises:
        UnknownNameError: timm has no such model.
        UnsupportedModelError: no family matches.
        OptionError: an argument is unknown, or timm refuses it.
        CheckpointError: pretrained weights are not available.
    """
    check_timm_name(name)
    check_arguments(args, prefix)
    try:
        with _quick_hub() if pretrained else nullcontext() as silent:
            network: nn.Module = _created(name, pretrained, dict(args))
    except FOREIGN as error:
        # huggingface_hub raises OSError and ValueError, timm RuntimeError where it has no weights.
        if pretrained and isinstance(error, (OSError, RuntimeError, ValueError)):
            raise CheckpointError(
                f"no pretrained weights for {name}: {silent or first_line(error, 100)}; is there a network? Otherwise "
                "download the file elsewhere and give it with --checkpoint"
            ) from error
        shown = ", ".join(f"{k}={v}" for k, v in args.items()) or "no arguments"
        raise OptionError(
            f"timm cannot make {name} with {shown}: {first_line(error, 120)}; check --model-arg"
        ) from error
    return family_like(network).interchange.adopted(network)


def _created(name: str, pretrained: bool, args: dict[str, Any]) -> Any:
    """Create a timm model; `norm_eps`, of which timm's own have no argument, is set in it."""
    is_own = timm.models.model_entrypoint(name).__module__.startswith("timm.")
    eps = args.pop("norm_eps", None) if is_own else None
    network = timm.create_model(name, pretrained=pretrained, **args)
    if eps is not None:
        network.norm_eps = eps
        for norm in network.modules():
            if isinstance(norm, nn.LayerNorm):
                norm.eps = eps
    return network


def norm_eps(network: nn.Module) -> set[float]:
    """What the LayerNorms of a network add to a variance."""
    return {norm.eps for norm in network.modules() if isinstance(norm, nn.LayerNorm)}


@contextmanager
def _quick_hub() -> Iterator[str | None]:
    """Use only the cache if the hub does not answer, as its client would try for a minute.

    Yields the problem; None: the hub answers, or is disabled.
    """
    from huggingface_hub import constants

    offline, silent = constants.HF_HUB_OFFLINE, None
    if not offline:
        try:
            urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=_HUB_S).close()
        except (OSError, HTTPException) as error:
            refused = isinstance(error, HTTPError) or isinstance(getattr(error, "reason", None), SSLError)
            if not refused:  # a token or other certificates may help
                silent = f"{constants.ENDPOINT} does not answer, and no copy is in the cache"
    constants.HF_HUB_OFFLINE = offline or silent is not None
    try:
        yield silent
    finally:
        constants.HF_HUB_OFFLINE = offline


def try_once(network: Network, name: str) -> None:
    """Check that a network runs: on one image, or by shapes only if that is slow.

    Raises:
        OptionError: it does not.
    """
    try:
        size = network.input_size
        quick = prod(size[-2:]) <= _QUICK_PIXELS and sum(p.numel() for p in network.parameters()) <= _QUICK_PARAMS
        with torch.inference_mode():
            if quick:
                network(torch.zeros(1, *size))
            else:  # slower for small networks, as kernels of the meta device are Python code
                shape_copy(network)(torch.empty(1, *size, device="meta"))
    except FOREIGN as error:
        raise OptionError(
            f"{name} cannot run with its arguments: {first_line(error, 120)}; check --model-arg"
        ) from error
