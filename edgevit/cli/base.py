from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from edgevit.cli.command import asks
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag
from edgevit.imports import importing

if TYPE_CHECKING:
    from edgevit.derivation.request import BaseRequest


@asks(request="edgevit.derivation.request:BaseRequest")
def main(
    request: BaseRequest, *, json: JsonFlag = False, quiet: QuietFlag = False, verbose: VerboseFlag = False
) -> None:
    """Write an unpruned base as a model folder, to export, measure and compare it like a derived model.

    --data names the outputs, and its images check the base as in `edgevit derive`. A base without a classifier gets a
    linear head, which is fitted to these images; without --data it stays without.
    """
    from dataclasses import asdict

    from edgevit.text import format_count

    console = Console(json=json, quiet=quiet, verbose=verbose)
    request.check()  # before torch is imported

    with importing():
        from edgevit.derivation.session.base import base

    spec = base(request, console.progress).spec
    named = f": {', '.join(spec.class_names)}" if len(spec.classes) <= 20 else ""
    if not spec.classes:
        named = ", whose names are not known (--base-classes FILE gives them)"
    outputs = f"{spec.outputs} of {spec.base.outputs} outputs{named}"
    if spec.output_kind == "features":
        outputs = f"{spec.outputs or spec.embed} {spec.output_text}"
    elif spec.builder is not None:
        outputs = spec.output_text
    images = f" --data {shlex.quote(str(request.data))}" if request.data else ""
    if images and request.skip_bad_images:
        images += " --skip-bad-images"
    out = request.out
    console.show(
        f"wrote {out}: {spec.timm_name}, {outputs}; "
        f"{format_count(spec.macs)} MACs, {format_count(spec.params)} parameters. "
        f"Next: edgevit export {shlex.quote(str(out))}{images}"
    )
    console.result({"folder": str(out), **asdict(spec)})
