"""What must be the same of two boards for an engine of one to run on the other."""

from __future__ import annotations

import re

from edgevit.board.facts import BoardFacts
from edgevit.board.profiles import match


def fingerprint(facts: BoardFacts) -> str:
    """Name module, L4T, TensorRT and streaming multiprocessors: `orin-nx-16gb-l4t36.4.3-trt10.3.0-8sm`.

    Multiprocessors, because a power mode may gate some of them, and an engine is tuned for those it saw. What cannot be
    read is left out: a workstation has no L4T.
    """
    l4t, tensorrt, sms = facts.l4t, facts.tensorrt.version, facts.cuda.sms
    parts = [_module_name(facts), l4t and f"l4t{l4t}", tensorrt and f"trt{tensorrt}", sms and f"{sms}sm"]
    return "-".join(part for part in parts if part)


def _module_name(facts: BoardFacts) -> str:
    """The profile of the module that was found; elsewhere the GPU's own name, as text that a folder may have."""
    if profile := match(facts):
        return profile.name
    name = facts.module.model or facts.cuda.device or "unknown"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
