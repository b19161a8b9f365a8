from __future__ import annotations

from typing import TYPE_CHECKING

from edgevit.cli.command import asks
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag

if TYPE_CHECKING:
    from edgevit.serving.request import PackageRequest


@asks(request="edgevit.serving.request:PackageRequest")
def main(
    request: PackageRequest, *, json: JsonFlag = False, quiet: QuietFlag = False, verbose: VerboseFlag = False
) -> None:
    """Write a folder that Triton, DeepStream or a small program serves a model from.

    Give one of --triton, --deepstream, --python and --cpp. The folder's README says how to run it and what it was made
    from. A model folder's ONNX file is packaged. An engine runs on one kind of board only: give its path.
    """
    console = Console(json=json, quiet=quiet, verbose=verbose)
    request.check()  # before onnx is imported

    from edgevit.serving.package import README, package

    folder = package(request)
    files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    console.show(f"wrote {folder}: {', '.join(files)}. {folder / README} says how to run it")
    console.result({"folder": str(folder), "files": files})
