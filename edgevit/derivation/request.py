"""The requests of `derive` and `base`: frozen records that the command line, files and Python all build.

`check` refuses, before torch is imported, what names, numbers, paths and listings show to be wrong. What needs the base
or the images, such as whether a method can meet a budget, is refused where they are opened: `session.derive`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from edgevit.data.request import (
    BaseClasses,
    Classes,
    GroupBy,
    HeadBlocks,
    NewHead,
    OptionalData,
    SkipBadImages,
    check_data,
    check_pictures,
)
from edgevit.derivation.allocate.budget import MEASURED_BUDGETS, MeasuredBudget, make_budget
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.methods import baseline_names, method_names, own_method_names
from edgevit.derivation.options import SUPERNET, describe, parse_assignments, read_options
from edgevit.errors import OptionError, UnknownNameError
from edgevit.network.request import BASE, BaseOptions
from edgevit.numbers import check_number
from edgevit.records.model import BlockDims, Head, TokenOutput
from edgevit.records.model_folder import ModelFolder
from edgevit.records.unfinished import partial_folder, refuse_unfinished
from edgevit.records.writing import refuse_existing
from edgevit.request import BUDGET, COMPUTING, DATA, OUTPUT, SHAPE, TRAINING, Nested, Option, plain_request
from edgevit.train.settings import Training

D = TypeVar("D", bound="Deriving")

_HEADS = ("subset", "full")
_STARTS = ("base", "finetuned", "better")
_BUDGETS_OF = ("pyramid", "whole")
_TOKEN_OUTPUTS: Mapping[str, TokenOutput] = {
    "features:class": "class", "features:patches": "patches", "features:class,patches": "class,patches",
}  # fmt: skip
OUTPUTS = ("classes", "features", *_TOKEN_OUTPUTS, "map", "map:foreground", "map:classes", "boxes")
BUDGET_NAMES = ("rate", "macs", "params", *MEASURED_BUDGETS)
NO_LIMIT = 2**62  # MACs and parameters of a base that is not open yet: a budget is below them


METHOD = f"{', '.join(own_method_names())}, or a baseline: {', '.join(baseline_names())}; see edgevit methods."
OUT = Option("Model folder to write. It must not exist yet.", OUTPUT, metavar="FOLDER", common=True)
OVERWRITE = Option("Replace the folder of --out once the new model is complete.", OUTPUT)
_ValidationFraction = Annotated[
    float,
    Option("Share of the training images to hold out for validation, where the data has no validation part.", DATA),
]
Cache = Annotated[bool | Path, Option("Reuse cached statistics and data; `edgevit cache` lists them.", COMPUTING)]
DeriveFrom = Annotated[
    str,
    Option("Network to prune: base, finetuned, or better (the one with the lower validation loss).", TRAINING),
]
_AcceptWeakBase = Annotated[
    bool,
    Option(
        "Continue although the base's accuracy is near chance, or several classes do not match their outputs.", DATA
    ),
]
_AcceptPreprocessing = Annotated[
    bool,
    Option("Continue with the current preprocessing although the base is more accurate with another.", DATA),
]
RESUME = "Continue an interrupted {} from its last saved step."
BASE_TRAINING = ("steps", "batch_size", "lr", "precision", "augment", "device", "workers", "seed")
BASE_STEPS = (
    "Number of optimiser steps that train the base on the classes; the result is kept if its validation loss is lower."
)


OutputOption = Annotated[
    str,
    Option(
        "Output of the model: classes; features (pooled; of tokens features:class, features:patches or "
        "features:class,patches; after some blocks features:class@9,12, or features@9); the map of your own head: map "
        "(values), map:foreground or map:classes (logits); or boxes of your own detector. Only classes need labels.",
        DATA,
        common=True,
    ),
]


def method_options(help: str, metavar: str = "METHOD.OPTION=VALUE") -> Option:
    """The option --set, for the method of the request, or for the super-network."""

    def read(texts: Sequence[str], options: Mapping[str, Any]) -> dict[str, str]:
        return parse_assignments(options.get("method") or SUPERNET, texts)

    return Option(help, SHAPE, name="--set", metavar=metavar, repeated=True, read=read)


def check_output(output: str) -> None:
    """Refuse an output that there is not.

    Raises:
        UnknownNameError, OptionError
    """
    if output not in OUTPUTS and depths_of(output) == ():
        raise UnknownNameError("output", str(output), OUTPUTS)


def puts_out_features(output: str) -> bool:
    return str(output).partition("@")[0] in ("features", *_TOKEN_OUTPUTS)


def tokens_of_output(output: str) -> TokenOutput | None:
    """The tokens whose features an output is; None: pooled ones, or no features."""
    return _TOKEN_OUTPUTS.get(str(output).partition("@")[0])


def depths_of(output: str) -> tuple[int, ...]:
    """The blocks, from 1, after which an output has its features: `features:patches@3,12`; empty: it names none.

    Raises:
        OptionError: they are no ascending numbers, or several for pooled features.
    """
    kind, at, numbers = str(output).partition("@")
    if not at or kind not in ("features", *_TOKEN_OUTPUTS):
        return ()
    depths = tuple(int(number) for number in numbers.split(",")) if re.fullmatch(r"\d{1,4}(,\d{1,4})*", numbers) else ()
    if not depths or depths[0] < 1 or sorted({*depths}) != list(depths):
        raise OptionError(
            f"--output {output}: expected the numbers of blocks in ascending order, from 1; try "
            f"{'features@9' if kind == 'features' else f'{kind}@3,6,9,12'}"
        )
    if kind == "features" and len(depths) > 1:
        raise OptionError(
            f"--output {output}: pooled features are those after one block; try features:class@{numbers} or "
            f"features:patches@{numbers}"
        )
    return depths


def check_head_blocks(blocks: int) -> None:
    """Raise OptionError for a number of blocks that there cannot be."""
    check_number("--head-blocks", blocks, "[1, 2**10)", "try 4, or 1 for a head of the last block")


def refuse_classes(output: str, options: Mapping[str, bool]) -> None:
    """Refuse, for a model that puts out no classes, the options of classes that are given."""
    if refused := [option for option, is_given in options.items() if is_given]:
        raise OptionError(f"{refused[0]} is for classes, and the output is {output}; leave it out")


def _one_rate(text: str, _: Mapping[str, Any]) -> float:
    """One number; several are another command's."""
    try:
        return float(text)
    except ValueError:
        if re.fullmatch(r"0?,\d+", text):  # a decimal comma: 0 is no rate
            raise OptionError(f"--rate {text} is not a number; try {text.replace(',', '.')}") from None
        if "," in text:
            raise OptionError(f"--rate {text}: several rates: edgevit sweep --rates {text} ...") from None
        raise OptionError(f"--rate {text} is not a number; try 0.6") from None


@dataclass(frozen=True, kw_only=True)
class BaseRequest(BaseOptions):
    """The request of `edgevit.base`."""

    name: Annotated[str | Path, replace(BASE, also="base")]
    out: Annotated[Path, OUT]
    data: OptionalData = None
    classes: Annotated[
        str | Path | Sequence[str | int] | None,
        Option(
            "Classes whose outputs are kept: names or indices, separated by commas, or a file of them.  [default: all]",
            DATA,
            metavar="NAMES",
            common=True,
        ),
    ] = None
    base_classes: BaseClasses = None
    new_head: NewHead = False
    head_blocks: HeadBlocks = 1
    output: OutputOption = OUTPUTS[0]
    # How images are split and read, for the check of the base and for a head that is fitted.
    validation_fraction: _ValidationFraction = 0.1
    group_by: GroupBy = None
    skip_bad_images: SkipBadImages = False
    accept_weak_base: _AcceptWeakBase = False
    accept_preprocessing: _AcceptPreprocessing = False
    training: Annotated[Training, Nested(only=BASE_TRAINING, help={"steps": BASE_STEPS})] = field(
        default_factory=lambda: Training(steps=0)
    )
    cache: Cache = True
    resume: Annotated[bool, Option(RESUME.format("training"), OUTPUT)] = False
    overwrite: Annotated[bool, OVERWRITE] = False
    checked: bool = False  # a derivation with these options has checked the base

    @property
    def base(self) -> str | Path:
        """The base, by its name in other requests."""
        return self.name

    def check(self) -> None:
        """Refuse a request that cannot be carried out; `edgevit.base` lists the errors."""
        refuse_existing(self.out, overwrite=self.overwrite)
        refuse_unfinished(partial_folder(self.out), self.resume)
        self.training.check()
        if self.training.steps and (self.data is None or self.output != OUTPUTS[0]):
            raise OptionError("--steps trains the base on classes; give --data, images of them, and no --output")
        check_number("--validation-fraction", self.validation_fraction, "(0, 1)", "try 0.1")
        check_head_blocks(self.head_blocks)
        self.check_base(self.name)
        check_output(self.output)
        if self.output != OUTPUTS[0]:
            refuse_classes(
                self.output,
                {
                    "--classes": self.classes is not None,
                    "--base-classes": self.base_classes is not None,
                    "--new-head": self.new_head,
                    f"--head-blocks {self.head_blocks}": self.head_blocks != 1,
                },
            )
        elif self.data is not None:
            check_data(self.data, self.classes, self.base_classes)


@dataclass(frozen=True, kw_only=True)
class Request(BaseOptions):
    """What `edgevit.derive`, `edgevit.supernet` and `edgevit.sweep` are all asked."""

    base: Annotated[str | Path | None, BASE]
    data: OptionalData
    out: Annotated[Path, OUT]
    classes: Classes = None
    base_classes: BaseClasses = None
    new_head: NewHead = False
    validation_fraction: _ValidationFraction = 0.1
    group_by: GroupBy = None
    skip_bad_images: SkipBadImages = False
    accept_weak_base: _AcceptWeakBase = False
    accept_preprocessing: _AcceptPreprocessing = False
    shape: Annotated[
        str,
        Option(
            "Widths that blocks may have: fused (multiples of 8 that TensorRT fuses), fused4 (multiples of "
            "4), paper (as in Vulcan's released code) or free.",
            SHAPE,
        ),
    ] = "fused"
    ffn_multiple: Annotated[
        int | None,
        Option("Multiple that FFN widths are rounded to: 1, 8, 16, 32 or 64.  [default: the shape's own]", SHAPE),
    ] = None
    embed_multiple: Annotated[
        int | None,
        Option(
            "Multiple that the embedding width is rounded to: 1, 8, 16, 32 or 64.  "
            "[default: 16 for fused and fused4, 8 for paper, 1 for free]",
            SHAPE,
        ),
    ] = None
    training: Annotated[Training, Nested()] = field(default_factory=Training)

    def _check(
        self, base: str | Path, method: str, options: Mapping[str, Any], unlabelled: str | Path | None = None
    ) -> None:
        read_options(method, options)
        make_policy(self.shape, self.ffn_multiple, self.embed_multiple)
        self.training.check()
        check_number("--validation-fraction", self.validation_fraction, "(0, 1)", "try 0.1")
        self.check_base(base)
        if self.data is not None:
            self._check_images(self.data, unlabelled)

    def _check_images(self, data: str | Path, unlabelled: str | Path | None) -> None:
        check_data(data, self.classes, self.base_classes, unlabelled=unlabelled)

    def plain(self) -> dict[str, Any]:
        """The whole request as plain JSON values."""
        return plain_request(self)

    def _check_out(self, *, resume: bool, overwrite: bool | None) -> None:
        refuse_existing(self.out, overwrite=overwrite)
        refuse_unfinished(partial_folder(self.out), resume)


MS = (
    "Latency budget in milliseconds (p50), measured here or on --board, or predicted from --cost-table. Several, such "
    "as 4,6,8, give one model each."
)
MJ = "Energy budget in millijoules per image, measured on --board or predicted from --cost-table."
FPS = "Throughput budget in images per second, one inference at a time; the same budget as --ms."
Rate = Annotated[
    float | None,
    Option(
        "Share of the base's MACs to remove: 0.6 leaves 40 %.", BUDGET, metavar="NUMBER", read=_one_rate, common=True
    ),
]
Macs = Annotated[
    str | float | None,
    Option("Multiply-accumulates per image to keep, such as 6.8G.", BUDGET, metavar="NUMBER", common=True),
]
Params = Annotated[
    str | float | None, Option("Parameters to keep, such as 34M.", BUDGET, metavar="NUMBER", common=True)
]
CostTableFile = Annotated[
    Path | str | None,
    Option(
        "Table of measured costs from `edgevit cost`, for --ms, --mj and --fps. Models are measured as "
        "well if a board is given.",
        BUDGET,
    ),
]


@dataclass(frozen=True, kw_only=True)
class Deriving(Request):
    """What `edgevit.derive` and `edgevit.meet` are asked beside the budget."""

    base: Annotated[str | Path | None, BASE] = None
    data: OptionalData = None
    method: Annotated[str, Option(f"Pruning method: {METHOD}", SHAPE, common=True)] = "forge"
    options: Annotated[
        Mapping[str, Any],
        method_options(
            "Option of the method, such as forge.cut_tokens=never; edgevit methods METHOD lists all; repeatable."
        ),
    ] = field(default_factory=dict)
    supernet: Annotated[
        Path | str | None,
        Option("Super-network to cut a slice from, in place of BASE, for --method skd.", SHAPE, metavar="FOLDER"),
    ] = None
    output: OutputOption = OUTPUTS[0]
    head_blocks: HeadBlocks = 1
    head: Annotated[
        Head, Option("Outputs of the model: subset (only the target classes) or full (all outputs of the base).", SHAPE)
    ] = "subset"
    remove_blocks: Annotated[
        int,
        Option(
            "Number of whole blocks to remove after the method, each the one that costs least accuracy on training "
            "images; the rest is trained once more.",
            SHAPE,
        ),
    ] = 0
    finetune_base: Annotated[bool, Option("Also train the base on the classes, as a third baseline.", TRAINING)] = False
    derive_from: DeriveFrom = "base"
    base_steps: Annotated[
        int | None,
        Option(
            "Number of optimiser steps for training the base.  [default: as many as the model; with --derive-from, "
            "--steps or 10 passes over the training images]",
            TRAINING,
        ),
    ] = None
    unlabelled: Annotated[
        Path | str | None,
        Option(
            "Folder of more images of any class, for distillation and for forge's calibration.", DATA, metavar="FOLDER"
        ),
    ] = None
    budget_of: Annotated[
        str,
        Option(
            "What --rate and --macs count of a detector: pyramid (backbone and pyramid, which are cut) or whole (with "
            "the most proposals that it takes).",
            SHAPE,
        ),
    ] = _BUDGETS_OF[0]
    rest_rate: Annotated[
        float,
        Option(
            "Share of the MACs behind the backbone to remove, too, beside the budget: of the head of your own, or of "
            "what reads the pyramid of a detector. 0 leaves it as it is.",
            SHAPE,
        ),
    ] = 0.0
    reject: Annotated[
        float | None,
        Option("False-rejection rate used to calibrate the `other` threshold.  [default: no threshold]", DATA),
    ] = None
    cache: Cache = True
    resume: Annotated[bool, Option(RESUME.format("derivation"), OUTPUT, common=True)] = False
    overwrite: Annotated[bool, OVERWRITE] = False
    by_class: bool = False  # images for features are split class by class, as a sweep's probes will read their labels

    @property
    def finetunes_base(self) -> bool:
        """Whether the base itself is trained, too: as a baseline, or to be cut."""
        return self.finetune_base or self.derive_from != "base"

    def _check_head_blocks(self) -> None:
        """Refuse a head of several blocks where these or their tokens may go, or a cost table does not know it."""
        check_head_blocks(self.head_blocks)
        method = describe(self.method)
        others = {
            "--remove-blocks": self.remove_blocks > 0,
            f"--method {self.method}": method.slices or method.drops_tokens,
            f"--{self.quantity}": self.quantity is not None,
        }
        if self.head_blocks > 1 and (conflicting := [option for option, is_given in others.items() if is_given]):
            raise OptionError(
                f"--head-blocks {self.head_blocks} keeps all blocks and their tokens for the head, which "
                f"{conflicting[0]} cannot; leave one of the two out"
            )

    def _check_output(self) -> None:
        """Refuse options of classes, and methods that read labels, for a model that puts out no classes."""
        check_output(self.output)
        if self.puts_out_classes:
            return
        boxes, weight = self.output == "boxes", self.training.teacher_weight
        if describe(self.method).needs_labels:
            able = ", ".join(name for name in method_names() if not describe(name).needs_labels)
            reason = "is for detectors" if boxes else "is for images without labels"
            raise OptionError(f"--output {self.output} {reason}, and {self.method} reads labels of classes; try {able}")
        of_classes = {
            "--classes": self.classes is not None and not boxes,
            f"--head-blocks {self.head_blocks}": self.head_blocks != 1,
            "--base-classes": self.base_classes is not None,
            "--new-head": self.new_head,
            "--remove-blocks": self.remove_blocks > 0,
            "--augment deit": self.training.augment == "deit",
            "--reject": self.reject is not None,
            "--finetune-base": self.finetune_base and not boxes,
            "--derive-from": self.derive_from != _STARTS[0] and not boxes,
            "--head full": self.head != _HEADS[0],
            f"--teacher {self.training.teacher}": self.training.teacher not in (None, "restricted") and not boxes,
            f"--teacher-weight {weight}": weight not in (None, 1) and not boxes,
        }
        refuse_classes(self.output, of_classes)
        if boxes and self.training.augment == "views":
            raise OptionError("--augment views would crop objects away; a detector learns from crop, flip or none")

    def budget(self) -> dict[str, Any]:
        """The budgets by name; exactly one is not None."""
        return {name: getattr(self, name) for name in BUDGET_NAMES}

    @property
    def quantity(self) -> MeasuredBudget | None:
        """The name of the budget, if it is one that is measured, or counted by a cost table."""
        return next((name for name in MEASURED_BUDGETS if getattr(self, name) is not None), None)

    @property
    def puts_out_classes(self) -> bool:
        return self.output == OUTPUTS[0]

    def _check_images(self, data: str | Path, unlabelled: str | Path | None) -> None:
        if self.puts_out_classes:
            super()._check_images(data, unlabelled)
        else:
            check_pictures(data, unlabelled)

    def supernet_folder(self) -> Path | None:
        """The super-network that is sliced; None where the method works on a base.

        Raises:
            OptionError: another method is given one, this one is given none, or there is a base, too.
            CheckpointError: the folder has none.
        """
        folder_option = self.supernet or self.options.get("supernet")
        if not describe(self.method).slices:
            if folder_option is not None:
                able = " or ".join(name for name in method_names() if describe(name).slices)
                raise OptionError(
                    f"--supernet {folder_option} is for --method {able}, and the method is {self.method!r}"
                )
            return None
        if folder_option is None and (self.base is None or not ModelFolder(Path(self.base)).is_supernet):
            raise OptionError(
                f"--method {self.method} slices a super-network: give it with --supernet NET; "
                "edgevit supernet makes one"
            )
        if folder_option is not None and self.base is not None and Path(self.base) != Path(folder_option):
            raise OptionError(f"--supernet {folder_option} is the base itself; leave {self.base} out")
        folder = Path(folder_option or str(self.base))
        ModelFolder(folder).refuse_no_supernet()
        return folder

    def on_its_base(self: D) -> D:
        """Put the super-network of a method that slices one in place of the base, and among its options."""
        if (folder := self.supernet_folder()) is None:
            return self
        return replace(self, base=folder, options={**self.options, "supernet": str(folder)})


@dataclass(frozen=True, kw_only=True)
class DeriveRequest(Deriving):
    """The request of `edgevit.derive`."""

    rate: Rate = None
    macs: Macs = None
    params: Params = None
    ms: Annotated[float | None, Option(MS, BUDGET, metavar="NUMBER", common=True)] = None
    mj: Annotated[float | None, Option(MJ, BUDGET, metavar="NUMBER", common=True)] = None
    fps: Annotated[float | None, Option(FPS, BUDGET, metavar="NUMBER", common=True)] = None
    cost_table: CostTableFile = None
    # The minimum sizes of the remaining blocks, by number; all other blocks are removed.
    at_least: Mapping[int, BlockDims] | None = None
    at_least_embed: int = 0  # the minimum width of the embedding; 0: any
    job: str | None = None  # hash of the job in a jobs file, for derivation.json

    def check(self) -> None:
        """Refuse a request that cannot be carried out; `edgevit.derive` lists the errors."""
        if self.method not in method_names():
            raise UnknownNameError("method", self.method, method_names())
        base = self.supernet_folder() or self.base
        if base is None:
            weights = "" if self.checkpoint is None else f", such as {self.checkpoint} itself, without --checkpoint"
            raise OptionError(f"nothing to derive from: give a BASE, a timm name, a model folder or weights{weights}")
        self.check_choices()
        if self.data is None and self.needs_images():
            raise OptionError("--data is missing; only a slice of a super-network that is not trained needs no images")
        self.check_budget()
        # A jobs file has no key for overwriting, so that its jobs cannot ask for it.
        self._check_out(resume=self.resume, overwrite=None if self.job else self.overwrite)
        self._check(base, self.method, self.options, self.unlabelled)

    def check_choices(self) -> None:
        """Refuse a wrong name or number, whatever base, images and budget there are."""
        self._check_start()
        check_number("--remove-blocks", self.remove_blocks, "[0, 2**10)", "try 3")
        self._check_head_blocks()
        if self.head not in _HEADS:
            raise UnknownNameError("head", self.head, _HEADS)
        if self.reject is not None:
            check_number("--reject", self.reject, "(0, 1)", "try 0.05")
        self._check_output()
        self._check_rest_rate()
        if self.budget_of not in _BUDGETS_OF:
            raise UnknownNameError("part of a detector", self.budget_of, _BUDGETS_OF)
        if self.budget_of == "whole" and self.output != "boxes":
            raise OptionError(f"--budget-of whole is for detectors, and --output is {self.output}; leave it out")
        if self.budget_of == "whole" and self.rate is None and self.macs is None:
            raise OptionError("--budget-of whole is for --rate and --macs; leave it out")

    def _check_rest_rate(self) -> None:
        """Refuse a share of what is behind the backbone where nothing is, or where another budget counts it."""
        check_number("--rest-rate", self.rest_rate, "[0, 1)", "try 0.5")
        if not self.rest_rate:
            return
        if self.puts_out_classes or puts_out_features(self.output):
            raise OptionError(
                f"--rest-rate is for a head of your own (--output map or boxes), and --output is {self.output}: "
                "nothing is behind its backbone; leave it out"
            )
        if self.budget_of == "whole":
            raise OptionError("--rest-rate and --budget-of whole both count what reads the pyramid; give one of them")
        if self.quantity is not None:
            raise OptionError(
                f"--rest-rate removes more than --{self.quantity} measures; give --rate, --macs or --params with it"
            )

    def _check_start(self) -> None:
        """Refuse a wrong choice of the network to cut."""
        if self.derive_from not in _STARTS:
            raise UnknownNameError("network to derive from", self.derive_from, _STARTS)
        if self.derive_from != "base" and describe(self.method).slices:
            raise OptionError(
                f"--derive-from {self.derive_from} trains a base, and --method {self.method} slices a super-network; "
                "leave it out"
            )
        if self.base_steps is not None:
            check_number("--base-steps", self.base_steps, "[1, 2**31)")
            if not self.finetunes_base and self.training.teacher != "finetuned":
                raise OptionError(
                    "--base-steps is for a base that is trained; give --finetune-base or --derive-from, too"
                )

    def needs_images(self) -> bool:
        """Whether anything is trained or measured: anything but an untrained slice."""
        training = (self.training.steps, self.finetunes_base, self.unlabelled)
        asks = (*training, self.reject is not None, self.new_head, self.remove_blocks)
        return describe(self.method).needs_images or any(asks)

    def check_budget(self) -> None:
        """Refuse a budget that no base could have.

        Raises:
            OptionError: none or several are given, or one is out of range.
            CostTableError: the table cannot be read.
        """
        table = None
        if self.quantity is not None or self.cost_table is not None:
            from edgevit.derivation.allocate.cost_table import load_cost_table  # numpy and pydantic: a quarter second

            table = None if self.cost_table is None else load_cost_table(self.cost_table)
        make_budget(NO_LIMIT, NO_LIMIT, **self.budget(), table=table)
