"""The request of a bench: models, board and conditions, checked without opening a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from edgevit.agent.power import METERS
from edgevit.agent.runners import has_profiler, option_types, runner_names
from edgevit.agent.runners.onnxruntime import PROVIDERS
from edgevit.errors import OptionError, UnknownNameError
from edgevit.numbers import check_number
from edgevit.records.names import suffix_of
from edgevit.records.precisions import MIXED, PRECISIONS
from edgevit.request import BOARD, JOBS, LOAD, MEASURING, OUTPUT, RUNNER, Nested, Option, assignments

TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {  # of the options of runners, and what one is called
    "bool": (lambda value: type(value) is bool, "True or False"),  # a text would be taken for true
    "int": (lambda value: type(value) is int and 1 <= value <= 1000, "a whole number from 1 to 1000"),
    "float": (lambda value: type(value) in (int, float) and 0 <= value < float("inf"), "a number of at least 0"),
    "str": (lambda value: type(value) is str, "a text"),
}
MOST_IMAGES = 32  # pictures of an end-to-end bench: decoding takes longer for some, and a camera sees many
_LEAST_PERIOD_MS = 0.1  # about as late as `sleep` returns
_THREADS = "[1, 1000]"  # starting many more takes minutes
SECONDS = "[0, 86400]"  # a day
ROUNDS = 10  # of several models in turns; an interval of their ratios needs at least 6

# Options of every command that measures.
AskedBoard = Annotated[
    str | None,
    Option("Jetson to use, as ssh knows it.  [default: this machine]", BOARD, metavar="USER@HOST", common=True),
]
SshConfig = Annotated[Path | None, Option("OpenSSH configuration file.  [default: your own]", BOARD)]
Provider = Annotated[
    str | None, Option("Execution provider of onnxruntime: cpu, cuda or tensorrt.  [default: cpu]", RUNNER)
]
Threads = Annotated[int | None, Option("Number of CPU threads within one operator.  [default: all cores]", RUNNER)]


@dataclass(frozen=True)
class Conditions:
    """The conditions of a measurement.

    By default the runner is `tensorrt` on a board and for an engine, with the engine that `edgevit export --trt` built
    there; else `onnxruntime` with the exported ONNX file of `precision`: fp16 on a GPU and fp32 on the CPU, where fp16
    is slower. `options` are further options of the runner. If power can be read, the window lasts 10 s, and idle power
    is read for as long.
    """

    runner: Annotated[
        str | None,
        Option(
            "Runtime to measure with: tensorrt, onnxruntime or fake.  "
            "[default: tensorrt on a board, onnxruntime elsewhere]",
            RUNNER,
            common=True,
        ),
    ] = None
    batches: Annotated[
        Sequence[int],
        Option("Images per inference; repeatable.  [default: 1]", LOAD, name="--batch", repeated=True, common=True),
    ] = (1,)
    streams: Annotated[
        Sequence[int],
        Option("Number of concurrent inferences; repeatable.  [default: 1]", LOAD, name="--streams", repeated=True),
    ] = (1,)
    precision: Annotated[
        str | None,
        Option(
            "Precision of a model folder's file: fp32, fp16 or int8.  [default: fp16 on a GPU, fp32 on the CPU]",
            RUNNER,
            common=True,
        ),
    ] = None
    provider: Provider = None
    threads: Threads = None
    samples: Annotated[
        int, Option("Number of timed inferences; more if --duration takes longer.", MEASURING, common=True)
    ] = 200
    duration_s: Annotated[
        float | None,
        Option(
            "Length of the timed window in seconds; longer if --samples takes longer.  "
            "[default: 10 where power is read, else 1]",
            MEASURING,
            name="--duration",
            common=True,
        ),
    ] = None
    idle_s: Annotated[
        float | None,
        Option(
            "Seconds to measure the idle power before the first inference.  [default: 10 where power is read]",
            MEASURING,
            name="--idle",
        ),
    ] = None
    warmup: Annotated[int, Option("Number of inferences before timing starts.", MEASURING)] = 10
    warmup_seconds: Annotated[
        float, Option("Length of the warm-up in seconds; longer if --warmup takes longer.", MEASURING)
    ] = 0.5
    power_meter: Annotated[
        str | None,
        Option("Power meter to read: ina3221, tegrastats or jtop.  [default: the first that can be read]", MEASURING),
    ] = None
    power_mode: Annotated[
        str | None,
        Option("Power mode to measure in; the previous mode is restored.", BOARD, common=True),
    ] = None
    lock_clocks: Annotated[bool, Option("Lock the clocks while measuring, then unlock them.", BOARD, common=True)] = (
        False
    )
    cross_check: Annotated[bool, Option("Also measure the engine with trtexec.", MEASURING)] = False
    layers: Annotated[
        bool,
        Option("Also profile each block and module, in separate processes.", MEASURING, common=True),
    ] = False
    period_ms: Annotated[
        float | None,
        Option(
            "Milliseconds between the starts of two inferences, as with a camera: 33 is 30 per second.  "
            "[default: one after another]",
            LOAD,
        ),
    ] = None
    end_to_end: Annotated[
        bool,
        Option("Start from encoded --images, and also time decoding, preprocessing and copies.", LOAD),
    ] = False
    images: Annotated[
        Path | None,
        Option(
            f"Picture or folder of pictures for --end-to-end; up to {MOST_IMAGES} are used.", LOAD, metavar="FOLDER"
        ),
    ] = None
    options: Annotated[
        Mapping[str, Any],
        Option(
            "Option of the runner, such as cuda_graph=False; repeatable.",
            RUNNER,
            name="--option",
            metavar="NAME=VALUE",
            repeated=True,
            read=assignments("--option", "cuda_graph=False"),
        ),
    ] = field(default_factory=dict)

    @property
    def used(self) -> bool:
        """Whether the model is measured with a period or end to end, not one inference after another."""
        return self.period_ms is not None or self.end_to_end

    def runner_options(self, runner: str, streams: int) -> dict[str, Any]:
        """Return the options of the runner; refuse unknown names and values of another type."""
        several = None if streams == 1 else streams  # runners have no option for a single stream
        named = {"provider": self.provider, "threads": self.threads, "streams": several}
        options = {**{name: value for name, value in named.items() if value is not None}, **self.options}
        types = option_types(runner)
        if self.end_to_end and "transfers" in types:
            options = {"transfers": True, **options}
        for name, value in options.items():
            if name not in types:
                raise OptionError(
                    f"the runner {runner!r} has no option {name!r}; its options: {', '.join(types) or 'none'}"
                )
            kind, _, optional = types[name].partition(" | ")
            fits, description = TYPES[kind]
            if not fits(value) and not (optional and value is None):
                raise OptionError(f"--option {name}={value} is not {description}, as the runner {runner!r} takes")
        return options

    def check(self, runner: str, rounds: int) -> None:
        """Raises: UnknownNameError, OptionError."""
        named = (
            ("runner", runner, runner_names()),
            ("provider", self.provider, PROVIDERS),
            ("precision", self.precision, (*PRECISIONS, MIXED)),
            ("power meter", self.power_meter, METERS),
        )
        for kind, name, allowed in named:
            if name is not None and name not in allowed:
                raise UnknownNameError(kind, name, allowed)
        if not self.batches or not self.streams:
            raise OptionError("no batch size or no streams: give at least one --batch, and one --streams if any")
        limits = (
            *(("--batch", batch, "[1, 100000]") for batch in self.batches),
            *(("--streams", count, "[1, 1000]") for count in self.streams),
            ("--repeat", rounds, "[1, 100000]"),
            ("--samples", self.samples, "[1, 1000000]"),
            ("--threads", self.threads, _THREADS),
            ("--duration", self.duration_s, SECONDS),
            ("--idle", self.idle_s, SECONDS),
            ("--warmup", self.warmup, "[0, 1000000]"),
            ("--period-ms", self.period_ms, f"[{_LEAST_PERIOD_MS}, 3600000]"),
            ("--warmup-seconds", self.warmup_seconds, SECONDS),
        )
        for name, value, interval in limits:
            if value is not None:
                check_number(name, value, interval)
        provider = self.runner_options(runner, max(self.streams)).get("provider", "cpu")
        if provider not in PROVIDERS:
            raise UnknownNameError("provider", provider, PROVIDERS)
        self._check_use()
        if self.layers:
            self._check_layers(runner)
        if self.cross_check and runner != "tensorrt":
            raise OptionError(f"--cross-check runs trtexec on an engine, and the runner is {runner!r}")

    def _check_use(self) -> None:
        """Refuse several streams with a period or end to end: there is one camera."""
        named = {"--period-ms": self.period_ms is not None, "--end-to-end": self.end_to_end}
        used = [name for name, present in named.items() if present]
        if used and max(self.streams) > 1:
            raise OptionError(f"{used[0]} is for one stream, and --streams is {max(self.streams)}; leave one out")
        if used and (self.layers or self.cross_check):
            option = "--layers" if self.layers else "--cross-check"
            raise OptionError(f"{option} is for inferences one after another, and not for {used[0]}; leave one out")
        if self.end_to_end != (self.images is not None):
            present, missing = ("--end-to-end", "--images FILE") if self.end_to_end else ("--images", "--end-to-end")
            raise OptionError(f"{present} needs {missing}: pictures as the camera gives them")

    def _check_layers(self, runner: str) -> None:
        if not has_profiler(runner):
            runners = ", ".join(name for name in runner_names() if has_profiler(name))
            raise OptionError(f"--layers needs a runner that can time them: {runners}; this one is {runner!r}")
        if max(self.streams) > 1:
            raise OptionError(f"--layers is for one stream, and --streams is {max(self.streams)}; leave one out")
        if self.provider not in (None, "cpu"):
            raise OptionError(
                f"--layers through onnxruntime is for the CPU, and --provider is {self.provider}, where it sees how "
                "layers are started, not computed; leave one out, or measure an engine"
            )


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """A bench of one model, or of several in turns.

    Each round measures every model once; `seed` draws the order of all rounds but the first.
    """

    models: Annotated[
        Sequence[Path],
        Option(
            "Model folder with an export, ONNX file, or engine; several are measured in turns.", None, repeated=True
        ),
    ]
    labels: Annotated[
        Sequence[str] | None,
        Option(
            "Name of a model in tables, in the order of the models; repeatable.  [default: its folder or file]",
            OUTPUT,
            name="--label",
            repeated=True,
        ),
    ] = None
    board: AskedBoard = None
    ssh_config: SshConfig = None
    profile: Annotated[
        str | None,
        Option("Board profile to require, by name or path; its budgets become gates.", BOARD),
    ] = None
    conditions: Annotated[Conditions, Nested()] = field(default_factory=Conditions)
    repeat: Annotated[
        int | None,
        Option("Number of rounds, each in a new process.  [default: 1; 10 of several models]", MEASURING, common=True),
    ] = None
    seed: Annotated[int, Option("Seed of the order of several models in each round.", MEASURING)] = 0
    alternate: Annotated[
        bool,
        Option(
            "Alternate several models in one process, a few milliseconds each, for sharper ratios on a "
            "machine whose speed varies; without memory and energy.",
            MEASURING,
        ),
    ] = False

    @property
    def rounds(self) -> int:
        usual = 1 if len(self.models) == 1 else ROUNDS
        return usual if self.repeat is None else self.repeat

    @property
    def runner(self) -> str:
        """The runner.

        Raises:
            OptionError: there is no model, or the runner cannot run an engine.
        """
        return self.conditions.runner or _usual_runner(
            [Path(model) for model in self.models], on_board=self.board is not None
        )

    def check(self) -> None:
        """Check the request before anything is started.

        Raises: UnknownNameError, OptionError.
        """
        self.conditions.check(self.runner, self.rounds)
        self._check_alternate()
        if self.labels is not None and len(set(self.labels)) != len(self.models):
            raise OptionError(f"{len(self.models)} models have the labels {', '.join(self.labels)}; give each its own")

    def _check_alternate(self) -> None:
        """Refuse options that do not go with several models in one process."""
        refused = {
            "one model": len(self.models) == 1,
            f"--streams {max(self.conditions.streams)}": max(self.conditions.streams) > 1,
            "--period-ms": self.conditions.period_ms is not None,
            "--end-to-end": self.conditions.end_to_end,
        }
        for name in (name for name, applies in refused.items() if self.alternate and applies):
            raise OptionError(f"--alternate is for several models at full speed, and not for {name}; leave one out")


def _usual_runner(models: Sequence[Path], *, on_board: bool) -> str:
    """Raises: OptionError."""
    if not models:
        raise OptionError("there is no model to measure; give at least one")
    engines = [on_board or suffix_of(model) == ".engine" for model in models]
    if len(set(engines)) > 1:
        first, stranger = models[engines.index(True)], models[engines.index(False)]
        raise OptionError(f"{first.name} is an engine and {stranger} is not; measure engines with engines")
    return "tensorrt" if engines[0] else "onnxruntime"


@dataclass(frozen=True, kw_only=True)
class BoardRequest:
    """The request of `edgevit board`."""

    host: Annotated[
        str | None, Option("Jetson to examine, as ssh knows it.  [default: this machine]", None, metavar="[USER@HOST]")
    ] = None
    profile: Annotated[
        str | None,
        Option("Board profile that must match, by name or path.  [default: the one that does]", BOARD),
    ] = None
    jobs: Annotated[bool, Option("List the jobs on the board instead of examining it.", JOBS)] = False
    cancel: Annotated[bool, Option("Cancel the jobs that you started from this machine.", JOBS)] = False
    cancel_all: Annotated[
        bool, Option("Cancel all jobs of this account on the board, including those of other people.", JOBS)
    ] = False
    ssh_config: SshConfig = None
