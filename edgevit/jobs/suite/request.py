"""The options of `edgevit characterize`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from edgevit.board.request import SshConfig
from edgevit.errors import CheckpointError, OptionError, UnknownNameError
from edgevit.jobs.suite.plan import shipped_plan
from edgevit.numbers import check_number
from edgevit.records.writing import refuse_unwritable
from edgevit.request import MEASURING, MODEL, OUTPUT, RUNNER, Option

SIZES = {size: f"deit_{size}_patch16_224" for size in ("tiny", "small", "base")}
BATCHES, QUICK_BATCHES = (1, 8), (1,)


def read_names(text: str, _: Mapping[str, Any]) -> tuple[str, ...]:
    """Read names that are separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


@dataclass(frozen=True, kw_only=True)
class CharacterizeRequest:
    """What `edgevit.characterize` measures, and where."""

    board: Annotated[
        str | None,
        Option(
            "Jetson to measure, as ssh knows it, such as jetson@orin-nx.  [default: this machine, ONNX Runtime]", None
        ),
    ] = None
    ssh_config: SshConfig = None
    sizes: Annotated[
        tuple[str, ...],
        Option(
            "Sizes of DeiT: tiny, small, base; other shapes are cut from the largest.",
            MEASURING,
            read=read_names,
            metavar="NAMES",
        ),
    ] = tuple(SIZES)
    checkpoint: Annotated[
        Path | None,
        Option(
            "Weights of the largest size and of the shapes cut from it: safetensors or a PyTorch state dict. "
            " "
            "[default: random]",
            MODEL,
        ),
    ] = None
    quick: Annotated[
        bool, Option("Measure only the most informative networks, at batch 1, within 5 minutes.", MEASURING)
    ] = False
    minutes: Annotated[
        float | None,
        Option(
            "Time limit in minutes. Networks that do not fit into it are left out and listed.  "
            "[default: 35; 5 if --quick]",
            MEASURING,
        ),
    ] = None
    rounds: Annotated[
        int,
        Option("Number of measurements of each network, in turns; half or a third for coarse questions.", MEASURING),
    ] = 6
    threads: Annotated[
        int | None, Option("Number of CPU threads within one operator.  [default: all cores]", RUNNER)
    ] = None
    output: Annotated[
        Path, Option("JSON file for all figures and raw runs; an unfinished one is continued.", OUTPUT)
    ] = Path("characterize.json")

    @property
    def most_minutes(self) -> float:
        """The time limit in minutes."""
        if self.minutes is not None:
            return self.minutes
        plan = shipped_plan()
        return plan.quick_minutes if self.quick else plan.minutes

    @property
    def batches(self) -> tuple[int, ...]:
        return QUICK_BATCHES if self.quick else BATCHES

    def check(self) -> None:
        """Refuse what cannot be done before anything is started.

        Raises:
            UnknownNameError, OptionError, CheckpointError, OutputError: why.
        """
        if not self.sizes:
            raise OptionError("no sizes; try --sizes tiny,small,base")
        for size in self.sizes:
            if size not in SIZES:
                raise UnknownNameError("size", size, list(SIZES))
        if len(set(self.sizes)) < len(self.sizes):
            raise OptionError(f"--sizes {','.join(self.sizes)} has a size twice; give each once")
        check_number("--minutes", self.most_minutes, "(0, 1000)", "try 35")
        check_number("--rounds", self.rounds, "[1, 1000]", "try 6, which an interval needs")
        if self.threads is not None:
            check_number("--threads", self.threads, "[1, 1000]", "try 1")
        if self.checkpoint is not None and not self.checkpoint.is_file():
            raise CheckpointError(f"--checkpoint {self.checkpoint} does not exist, or is no file; check the path")
        refuse_unwritable(self.output)
