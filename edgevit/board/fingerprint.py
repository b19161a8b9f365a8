"""The properties of a board that must be equal for an engine of one board to run on another."""

from __future__ import annotations

import re

from edgevit.board.facts import BoardFacts
from edgevit.board.profiles import match


def fingerprint(facts: BoardFacts) -> str:
    """Name module, L4T, TensorRT and streaming multiprocessors: `orin-nx-16gb-l4t36.4.3-trt10.3.0-8sm`.

    Multiprocessors are part of it, because a power mode may switch some off, and an engine is tuned for their number.
    What cannot be read is omitted: a workstation has no L4T.
    """
    l4t, tensorrt, sms = facts.l4t, facts.tensorrt.version, facts.cuda.sms
    parts = [_module_name(facts), l4t and f"l4t{l4t}", tensorrt and f"trt{tensorrt}", sms and f"{sms}sm"]
    return "-".join(part for part in parts if part)


def _module_name(facts: BoardFacts) -> str:
    """The name of the module's profile, or else the GPU's name, as a valid name of a folder."""
    if profile := match(facts):
        return profile.name
    name = facts.module.model or facts.cuda.device or "unknown"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
