"""Open base and images for a derivation or a super-network, keep its unfinished work, and write the model folder."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edgevit.data.assumptions import Assumptions, assumptions
from edgevit.data.classes import imagenet_names, listed, resolve
from edgevit.data.sources import Reference
from edgevit.data.sources.coco import CocoImages
from edgevit.data.splitting import Splitting
from edgevit.data.task import Task, open_unlabelled_task
from edgevit.derivation.allocate.budget import Budget
from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.cache import Cache, derivations_folder
from edgevit.derivation.problem import Problem, Stopwatch
from edgevit.derivation.request import BaseRequest, DeriveRequest, Deriving
from edgevit.derivation.session.imitation import check_enough_images, units_sha256, unlabelled_model, with_units
from edgevit.derivation.solve.head import with_fitted_head
from edgevit.derivation.supernet_request import SupernetRequest
from edgevit.errors import DataError, EdgeVitError, Interrupted, OptionError, TrainingError
from edgevit.network.classifier import with_classes
from edgevit.network.detector import Letterbox, Pyramid
from edgevit.network.folder import save
from edgevit.network.model import Headless, Model, tensors_sha256
from edgevit.network.network import Network
from edgevit.network.output import Levels
from edgevit.network.plain_detector import PlainDetector
from edgevit.progress import Progress
from edgevit.records.derivation import FittedHead
from edgevit.records.model import Head, ModelSpec, TargetClass
from edgevit.records.model_folder import ModelFolder
from edgevit.records.names import HISTORY
from edgevit.records.unfinished import open_partial, partial_folder, remove_cheap
from edgevit.request import plain_request
from edgevit.signals import stop_when_asked
from edgevit.train.compute import Compute, close_compute
from edgevit.train.detections import check_objects
from edgevit.train.history import History
from edgevit.train.passes import Passes, open_passes
from edgevit.train.settings import Training


@dataclass(frozen=True)
class Opened:
    """A base with the requested head, and the images of its task."""

    base_name: str
    base: Model
    fitted: FittedHead | None  # head that was fitted to the base; None: the base had a head of its own
    task: Task
    assumed: Assumptions | None  # what was assumed about classes and preprocessing; None: there are no images
    passes: Passes
    cache: Cache
    head: Head
    network: Network  # the base's network with the requested head

    def resume_key(self, training: Training) -> dict[str, object]:
        """The part of a request that a resumed run must share with the unfinished one."""
        return {
            "base": self.base.spec.base.weights_sha256,
            "data": self.task.content_sha256(),
            "classes": self.task.class_names,
            "preprocessing": self.base.preprocessing,
            "head": self.head,
            "output": self.network.output.kind,
            **({} if self.base.spec.tokens is None else {"tokens": self.base.spec.tokens}),
            **({} if not self.base.spec.depths else {"depths": self.base.spec.depths}),
            **({} if self.base.spec.builder is None else {"builder": asdict(self.base.spec.builder)}),
            **self._objects(),
            "training": {k: v for k, v in asdict(training).items() if k not in ("device", "workers")},
        }

    def _objects(self) -> dict[str, str]:
        """A hash of the objects that a detector learns, as a part of keys."""
        task = self.task
        if task.objects is None:
            return {}
        references = (*task.train.references, *task.validation.references)
        return {"objects": task.objects.sha256(task.train.source, references)}

    def problem(
        self, budget: Budget, policy: Policy, training: Training, base_training: Training, folder: Path
    ) -> Problem:
        """The problem for a method; `folder` keeps what must survive an interruption."""
        return Problem(
            self.network, self.task, budget, policy, training, base_training, self.passes, folder,
            History(folder / HISTORY), Stopwatch(), self.cache, self.identity(),
        )  # fmt: skip

    def identity(self) -> dict[str, object]:
        """Everything that determines the network's outputs to the last bit, for cache keys; hence the batch sizes."""
        spec, network = self.base.spec, self.base
        return {
            "base": [spec.timm_name, spec.timm_args, spec.base.weights_sha256, [asdict(b) for b in spec.blocks]],
            "state": tensors_sha256(network.state_dict()),
            "preprocessing": self.base.preprocessing,
            "head": [self.head, *self.task.base_columns],
            "units": units_sha256(self.network),
            **({} if spec.tokens is None else {"tokens": spec.tokens}),
            **({} if not spec.depths else {"depths": spec.depths}),
            **({} if spec.builder is None else {"map": [self.network.output.kind, asdict(spec.builder)]}),
            **self._objects(),
            "device": self.passes.compute.device.type,
            "batches": [self.passes.batch_size(network, gradients=gradients) for gradients in (False, True)],
        }


def open_for(
    base: Model | Headless,
    request: Deriving | SupernetRequest | BaseRequest,
    head: Head,
    task: Task,
    progress: Progress,
) -> Opened:
    """Give the base the requested head, fitted to the task's images where it has none, and report the assumptions.

    Raises:
        DataError: no head can be fitted to these images.
    """
    assert request.base is not None
    passes = open_passes(request.training, progress)
    cache = _cache(request, task, passes)
    blocks = 1 if isinstance(request, SupernetRequest) else request.head_blocks
    model, fitted = with_fitted_head(base, task, passes, cache, blocks)
    assumed = _assumed(base, request, task, progress, fitted=fitted is not None)
    of_task = Network.with_columns if head == "full" else with_classes
    network = of_task(model, task.base_columns)
    return Opened(str(request.base), model, fitted, task, assumed, passes, cache, head, network)


def open_without_labels(base: Model | Headless, request: Deriving, progress: Progress) -> Opened:
    """Open a base, which is to put out features, a map or boxes, and images without labels.

    Raises:
        OptionError: the base has another output.
        DataError: there are no images or too few, or the outputs are not finite, or the same for all images.
    """
    base = unlabelled_model(base, request.output, progress)
    assert request.data is not None, "else the method would slice a super-network, which has a head"
    task = open_unlabelled_task(
        request.data,
        preprocessing=base.preprocessing,
        outputs=max(base.spec.outputs, 1),  # a map has one
        validation_fraction=request.validation_fraction,
        seed=request.training.seed,
        group_by=request.group_by,
        skip_bad_images=request.skip_bad_images,
        unlabelled=request.unlabelled,
        showing=request.classes,
        by_class=request.by_class,
        progress=progress,
    )
    if not isinstance(base.output, Levels):  # a level of a pyramid has one unit for the thousands of its values
        check_enough_images(base, task, progress)
    if isinstance(base.output, Levels) and isinstance(task.test.source, CocoImages):
        check_objects(base, task.test, task.test.source.chosen(request.classes), progress)
    if isinstance(base.output, Levels):
        size = " x ".join(map(str, base.input_size[1:]))
        assert isinstance(base.module, Pyramid)
        detector = base.module.detector
        if isinstance(detector, PlainDetector):
            progress.note(
                f"the levels of this {type(detector.module).__name__} are what its {detector.place} gives; pictures "
                f"are squashed to {size}, and boxes are judged in the pixels of the picture"
            )
        if isinstance(detector.transform, Letterbox):
            progress.note(
                f"the detector takes images of several sizes, and its network of {size}: each is scaled to fit into it "
                "and padded; padding counts little, and boxes are judged in the pixels of the image"
            )
        progress.note(
            f"MACs and milliseconds are of the detector's backbone and pyramid, for one image of {size}; parameters "
            "are of the whole detector"
        )
    passes = open_passes(request.training, progress)
    cache = _cache(request, task, passes)
    assumed = _assumed(base, request, task, progress)
    opened = Opened(str(request.base), base, None, task, assumed, passes, cache, "full", base)
    return replace(opened, network=with_units(base, task, passes, cache, opened.identity()))


def _assumed(
    base: Model | Headless,
    request: Deriving | SupernetRequest | BaseRequest,
    task: Task,
    progress: Progress,
    *,
    fitted: bool = False,
) -> Assumptions | None:
    """Gather and report what is assumed of a base on a task; None: there are no images."""
    if not task.has_images:
        return None
    assert request.base is not None
    assumed = assumptions(
        request.base, task, pretrained=request.pretrained, base_classes=request.base_classes,
        overridden=request.preprocessing, fitted=fitted, release=base.release,
    )  # fmt: skip
    for line in assumed.lines():
        progress.note(line)
    if (warning := _leak_warning(request.base, task)) is not None:
        progress.warn(warning)
    return assumed


def _leak_warning(base: str | Path, task: Task) -> str | None:
    """Warn where the base was trained on images that are now held out; None: it was not."""
    folder = ModelFolder(Path(base))
    record = folder.supernet() if folder.is_supernet else folder.derivation()
    data = record.data if record else None
    if data is None or data.data != task.arguments["data"]:
        return None
    splitting = Splitting(task.test.source, data.validation_fraction, data.seed, data.group_by)
    trained: set[Reference] = set()
    for name in {label.name for label in data.classes} & {*task.class_names}:
        with suppress(DataError):  # a class that has lost images since
            trained.update(splitting.parts(name)["train"])
    held_out = (*task.validation.references, *task.test.references)
    if not (count := len(trained.intersection(held_out))):
        return None
    return (
        f"{base} was made with {count} of the {len(held_out)} images that are now held out for validation and test, so "
        f"that accuracies will be too high; give --seed {data.seed} --validation-fraction {data.validation_fraction:g}"
        f"{f' --group-by {shlex.quote(data.group_by)}' if data.group_by else ''}, by which it was made"
    )


def _cache(request: Deriving | SupernetRequest | BaseRequest, task: Task, passes: Passes) -> Cache:
    """The cache of a request. Several processes would have to agree on its content, so they use none."""
    alone = passes.compute.accelerator.num_processes == 1 and task.has_images
    keeping = request.cache if alone and not isinstance(request, SupernetRequest) else False
    names = task.class_names
    more = f", ... ({len(names)} classes)" if len(names) > 4 else ""
    weights = "" if request.checkpoint is None else f", {Path(request.checkpoint).name}"
    return Cache(
        derivations_folder() if keeping is True else keeping or None, passes.progress,
        base=f"{request.base}{weights}", task=f"{request.data}: {', '.join(names[:4]) or 'no classes'}{more}",
    )  # fmt: skip


def known_classes(
    folder: str | Path, spec: ModelSpec, classes: str | Path | Sequence[str | int] | None
) -> tuple[TargetClass, ...]:
    """Resolve the requested classes of a model folder; None means all of its classes.

    Raises:
        OptionError: the folder was made for other classes.
        DataError: as `edgevit.data.classes.resolve` says.
    """
    order = dict(zip(spec.class_names, spec.class_columns, strict=True))
    if spec.head == "full":
        order = {**imagenet_names(spec.outputs), **order}
    entries = listed(classes, order)
    indices = {str(index) for index in order.values()}
    if unknown := [entry for entry in entries or () if entry not in order and entry not in indices]:
        names = f"{', '.join(spec.class_names[:8])}{', ...' if len(spec.classes) > 8 else ''}"
        raise OptionError(
            f"{folder} was made for {len(spec.classes)} classes ({names}), and {unknown[0]!r} is none of "
            f"them; choose among them, or make a super-network for others"
        )
    return resolve(entries, spec.class_names, order)


@contextmanager
def unfinished(
    request: DeriveRequest | SupernetRequest | BaseRequest, resume_key: dict[str, object], compute: Compute
) -> Iterator[Path]:
    """Hold the folder of a request's unfinished work; `resume_key` is what a resumed run must share.

    Raises:
        OutputError, OptionError, UnfinishedError: as `open_partial` says.
    """
    holding = open_partial(
        request.out, resume_key, request.resume, request=plain_request(request), overwrite=request.overwrite
    )
    folder = partial_folder(request.out)
    with holding if compute.is_main else nullcontext():
        compute.wait()
        yield folder
        compute.wait()
    close_compute()


def write_model(model: Model, request: DeriveRequest | SupernetRequest, problem: Problem, **papers: Any) -> None:
    """Write the model folder, in one process, and remove the unfinished one; `papers` as for `save`."""
    if problem.compute.is_main:
        with stop_when_asked():  # too late to stop: a finished model has no unfinished folder
            save(model, request.out, overwrite=request.overwrite, **papers)
            shutil.rmtree(problem.folder, ignore_errors=True)


@contextmanager
def resumable(folder: Path, *, is_main: bool) -> Iterator[None]:
    """On an interruption, say how to resume; on an error before any work, remove the unfinished folder.

    Raises:
        Interrupted: Ctrl-C.
        TrainingError: with the folder that blocks other options, if it exists: the same ones would fail again.
    """
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as stop:
        reason = str(stop) or "stopped"
        raise Interrupted(f"{reason}; the same command with --resume goes on from {folder}") from stop
    except EdgeVitError as error:
        if is_main:
            remove_cheap(folder)
        if isinstance(error, TrainingError) and folder.exists():
            hint = f"{folder} keeps what was done before, by these options: remove it, or choose another --out"
            raise TrainingError(f"{error}; {hint}") from error
        raise
