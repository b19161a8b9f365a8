"""Where and how models are measured: the conditions that must be equal for two figures to be comparable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from edgevit.agent.environment import usable_cpus
from edgevit.board.fingerprint import fingerprint
from edgevit.board.request import AskedBoard, Conditions, Provider, SshConfig, Threads
from edgevit.errors import OptionError, UnknownNameError
from edgevit.progress import Progress
from edgevit.records.precisions import PRECISIONS, usual_precision
from edgevit.request import BOARD, LOAD, RUNNER, Option
from edgevit.version import processor, written_by

if TYPE_CHECKING:
    from edgevit.board.bench import Setting
    from edgevit.derivation.allocate.cost_table import Origin

# Size of one run. A stack has many runs, each in turns with the base, so few samples are enough for their ratios.
SAMPLES, WARMUP_S = 40, 0.2
WINDOW_S, POWER_WINDOW_S = 0.4, 3.0  # the rails' sensors average over 0.43 s


@dataclass(frozen=True, kw_only=True)
class MeasurementTarget:
    """A board or this machine, and how models run there."""

    board: AskedBoard = None
    ssh_config: SshConfig = None
    profile: Annotated[
        str | None, Option("Board profile to require, by name or path.  [default: the board's own]", BOARD)
    ] = None
    power_mode: Annotated[str | None, Option("Power mode to measure in; the previous mode is restored.", BOARD)] = None
    lock_clocks: Annotated[bool, Option("Lock the clocks while measuring, then unlock them.", BOARD)] = False
    runner: Annotated[
        str | None,
        Option(
            "Runtime to measure with: tensorrt or onnxruntime.  [default: tensorrt on a board, else onnxruntime]",
            RUNNER,
        ),
    ] = None
    precision: Annotated[
        str | None,
        Option("Precision of measured models: fp32, fp16 or int8.  [default: fp16 on a GPU, fp32 on the CPU]", RUNNER),
    ] = None
    provider: Provider = None
    threads: Threads = None
    batch: Annotated[int, Option("Images per inference.", LOAD)] = 1

    @property
    def runs_on(self) -> str:
        """Name of the runner of the models."""
        return self.runner or ("tensorrt" if self.board is not None else "onnxruntime")

    @property
    def builds(self) -> bool:
        """Whether models run as engines, which are built first."""
        return self.runs_on == "tensorrt"

    @property
    def computes_in(self) -> str:
        """The precision of the models."""
        on_cpu = not self.builds and self.provider in (None, "cpu")
        return self.precision or usual_precision(on_cpu=on_cpu)

    def conditions(self) -> Conditions:
        """Return the conditions of each measurement."""
        return Conditions(
            runner=self.runs_on,
            batches=(self.batch,),
            precision=self.computes_in,
            provider=self.provider,
            threads=self.threads,
            samples=SAMPLES,
            warmup_seconds=WARMUP_S,
            idle_s=0.0,
            power_mode=self.power_mode,
            lock_clocks=self.lock_clocks,
        )

    def check(self) -> None:
        """Refuse invalid options before anything is started.

        Raises:
            UnknownNameError, OptionError: an option is invalid.
        """
        if self.computes_in not in PRECISIONS:
            raise UnknownNameError("precision", self.computes_in, PRECISIONS, owner="a table")
        if PRECISIONS[self.computes_in].calibrated and not self.builds and self.provider not in (None, "cpu"):
            raise OptionError(
                f"models in {self.computes_in} are measured as engines or on the CPU, and not with the provider "
                f"{self.provider}: leave --provider out, or give fp16"
            )
        self.conditions().check(self.runs_on, 1)

    def runtime(self, setting: Setting) -> str | None:
        """Return the version of ONNX Runtime and its GPU: figures of another runtime are not reused.

        None for an engine, whose runtime is part of the board's fingerprint.
        """
        onnxruntime = setting.facts.onnxruntime
        if self.runs_on != "onnxruntime" or onnxruntime is None:
            return None
        gpu = None if self.provider in (None, "cpu") else setting.facts.cuda.device
        return onnxruntime.version if gpu is None else f"{onnxruntime.version}, {gpu}"

    def origin(self, setting: Setting) -> Origin:
        """Return what a cost table records of this target, from the facts that the agent returned."""
        from edgevit.derivation.allocate.cost_table import Origin

        facts = setting.facts
        is_board = self.builds or facts.module.part is not None
        on_cpu = not self.builds and self.provider in (None, "cpu")
        machine = processor() if self.board is None else f"{facts.machine} of {facts.hostname}"
        return Origin(
            board=fingerprint(facts) if is_board else None,
            processor=None if is_board else machine,
            power_mode=self.power_mode or (facts.power_mode.name if facts.power_mode else None),
            clocks_locked=True if self.lock_clocks else facts.clocks_locked,
            runner=self.runs_on,
            provider=None if self.builds else self.provider or "cpu",
            threads=self.threads or (len(usable_cpus()) if on_cpu and self.board is None else None),
            precision=self.computes_in,
            batch=self.batch,
            edgevit=written_by(),
        )


def probe(target: MeasurementTarget, progress: Progress) -> Origin:
    """Connect to a target, and return what a cost table records of it.

    Raises:
        UnfitBoardError, ProfileError, BoardError: as their names say.
    """
    from edgevit.board.bench import look
    from edgevit.board.connection import open_board
    from edgevit.board.profiles import load_profile

    profile = None if target.profile is None else load_profile(target.profile)
    with open_board(target.board, ssh_config=target.ssh_config) as board:
        return target.origin(look(board, profile, target.conditions(), progress))
