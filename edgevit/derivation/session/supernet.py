"""`edgevit.supernet`: train one network from which slices of every size are cut (SKD super-network).

1. WPAC puts what the network knows into the first dimensions of every module; its function stays.
2. PIAD trains it while dropping the least important dimensions: the slices are trained, and the order is found.
3. Some slices are measured on the validation part; nothing is ever chosen or measured on the test part.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from functools import partial
from math import ceil
from typing import Any

import torch

from edgevit.data.neighbours import hint_in
from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.embedding import candidate_widths, narrowest, why_it_stays
from edgevit.derivation.allocate.policy import Policy, make_policy
from edgevit.derivation.compatibility import missing_site
from edgevit.derivation.feasibility import SearchSpace, Target, check_reachable
from edgevit.derivation.methods.skd.dropout import RATES, Dropout, rival_of
from edgevit.derivation.methods.skd.piad import DropoutSchedule, ProgressiveDropout, make_units
from edgevit.derivation.methods.skd.slices import SuperNet, cut_slice, read_supernet
from edgevit.derivation.methods.skd.wpac import concentrate, concentrate_embedding
from edgevit.derivation.options import SUPERNET, make_config
from edgevit.derivation.plan import EmbedPlan
from edgevit.derivation.problem import Problem, distillation_for, train_for
from edgevit.derivation.session.base_check import ask, judge_base
from edgevit.derivation.session.in_memory import IN_MEMORY, as_files
from edgevit.derivation.session.opening import Opened, open_for, resumable, unfinished, write_model
from edgevit.derivation.session.resolved import shape_record, versions
from edgevit.derivation.solve.head import open_task_for
from edgevit.derivation.supernet_request import SupernetRequest
from edgevit.errors import OptionError, UnsupportedModelError
from edgevit.network.anatomy import check_all_pass
from edgevit.network.model import Model, derived_spec
from edgevit.network.network import Network
from edgevit.network.opening import open_network
from edgevit.numbers import COUNT, check_number
from edgevit.progress import Progress, Silent
from edgevit.records.derivation import BaseCheckRecord, TrainingRecord
from edgevit.records.model import Head, ModelSpec
from edgevit.records.supernet import SettingsRecord, SlicePoint, SupernetRecord, Unit
from edgevit.request import takes_options
from edgevit.text import format_count
from edgevit.train.passes import accuracy_of
from edgevit.train.settings import Training, fill


@dataclass(frozen=True)
class Config:
    """How a super-network is made. The paper: 1024 proxy images, 50 of 150 or more epochs of growth."""

    # Whether attention is rotated into the principal components of queries with keys and of values, as published, in
    # place of the factors of their products (WPAC).
    as_published: bool = False
    # The number of units that each attention is divided into; fewer where the shape policy allows no more.
    attention_groups: int = 8
    ffn_groups: int = 32  # The number of units that each FFN is divided into.
    # Whether channels of the embedding are among the units: its largest directions are put into the first ones.
    cut_embedding: bool = False
    # What a training step drops: the units that are listed as least important (piad), or, to compare with, channels at
    # random (channel), channels by how weakly they are activated (weighted), whole blocks (layer), or nothing (none).
    # Slices are cut by PIAD's order of units in any case; channels of the embedding are dropped by piad alone.
    dropout: Dropout = "piad"
    # The share that is dropped, with dropout=channel, weighted or layer; 0: 0.5 of the channels by channel, 0.2 by
    # weighted, and 0.2 of the blocks.
    dropout_rate: float = 0.0
    updates: int = 8  # How often the list of units to drop grows.
    growth: float = 1 / 3  # The share of the steps during which it grows.
    proxy_images: int = 128  # The number of training images from which the importance of units is taken.
    epochs: int = 30  # The number of passes over the training images, where --steps gives none.
    points: int = 10  # The number of slices whose accuracy is measured.

    def __post_init__(self) -> None:
        for name in ("attention_groups", "ffn_groups", "updates", "proxy_images", "epochs"):
            check_number(f"supernet.{name}", getattr(self, name), COUNT)
        if not 0 <= self.growth <= 1:
            raise OptionError(f"supernet.growth={self.growth:g} is not in [0, 1]; the paper's is about 1/3")
        if not 0 <= self.dropout_rate < 1:
            raise OptionError(f"supernet.dropout_rate={self.dropout_rate:g} is not in [0, 1); 0.2 drops a fifth")
        if self.dropout_rate and self.dropout not in RATES:
            raise OptionError(
                f"supernet.dropout_rate={self.dropout_rate:g} is not for dropout={self.dropout}; add --set "
                f"supernet.dropout={' or '.join(RATES)}"
            )
        if self.points < 2:
            raise OptionError(f"supernet.points={self.points} is less than 2: the whole network and the smallest slice")


def _search_space(network: Network, policy: Policy, config: Config) -> SearchSpace:
    """The search space of the smallest slice."""
    narrows = config.cut_embedding and network.geometry.fixed_channels is None
    embed = narrowest(network, policy) if narrows else 0
    return SearchSpace(embed=embed, images=config.proxy_images, more={"cut_embedding": True})


@dataclass(frozen=True)
class _ResolvedSupernet:
    """A request with its names looked up, its defaults filled in, and its base and images open."""

    request: SupernetRequest
    opened: Opened
    config: Config
    policy: Policy
    training: Training

    def settings(self) -> dict[str, Any]:
        """Everything that determines the super-network: a resumed run must have the same."""
        settings = {
            **self.opened.resume_key(self.training),
            "columns": list(self.opened.network.columns),
            "rate": self.request.rate,
            "options": asdict(self.config),
            "shape": asdict(self.policy),
        }
        return dict(json.loads(json.dumps(settings)))  # as it will be read back

    def record(self, problem: Problem, checked: BaseCheckRecord, **results: Any) -> SupernetRecord:
        """The record in supernet.json: the request, and `results` by their names there."""
        settings, assumed = self.settings(), self.opened.assumed
        shape, training = shape_record(self.policy), settings.pop("training")
        del settings["shape"]
        return SupernetRecord(
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            base=self.opened.base_name,
            assumptions=None if assumed is None else assumed.record(checked),
            settings=SettingsRecord(
                shape, TrainingRecord(training.pop("seed"), training.pop("steps"), training), settings
            ),
            data=problem.task.record(),
            fitted_head=self.opened.fitted,
            versions=versions(),
            processes=problem.compute.accelerator.num_processes,
            seconds=problem.stopwatch.seconds,
            **results,
        )


@takes_options(SupernetRequest, "base", prepare=as_files, also=IN_MEMORY)
def supernet(request: SupernetRequest, progress: Progress | None = None) -> SuperNet:
    """Train a super-network from a base and write it to a folder: a model folder with `supernet.json`.

    Without `classes` every output of the base is kept, so that slices for any of them can be cut. A slice may ask for
    another policy than `shape`.

    Raises:
        OptionError: also of an option that there is not.
        EdgeVitError: whatever is wrong, in one line; nothing that was there is touched.
        Interrupted: Ctrl-C; the same call with `resume` goes on and ends in the same weights.
    """
    request.check()
    progress, training = progress or Silent(), request.training
    config = make_config(SUPERNET, Config, request.options)
    policy = make_policy(request.shape, request.ffn_multiple, request.embed_multiple)
    base = open_network(request.base, **request.opening(), progress=progress)
    head: Head = "full" if request.classes is None else "subset"
    opened = open_for(base, request, head, open_task_for(base, request, progress), progress)
    task, spec, compute = opened.task, opened.base.spec, opened.passes.compute
    budget = make_budget(spec.macs, spec.params, rate=request.rate)
    blocks = opened.network.read()
    check_all_pass(blocks, "a super-network")
    if missing := missing_site(blocks):
        raise UnsupportedModelError(
            f"a super-network is of a model whose blocks have both attention and FFN, and {missing}; give the model "
            "that it came from"
        )
    target = Target(opened.network, budget, policy, len(task.train))
    check_reachable(target, SUPERNET, partial(_search_space, opened.network, policy), config)
    images = min(config.proxy_images, len(task.train))
    reason = opened.network.geometry.fixed_channels or why_it_stays(opened.network, budget, images)
    if config.cut_embedding and reason is not None:
        raise OptionError(f"supernet.cut_embedding=true: the embedding cannot be narrowed: {reason}")
    if training.steps is None:
        training = replace(training, steps=ceil(config.epochs * len(task.train) / training.batch))
    # Nothing ends it early: that would wait for the accuracies of whole network and smallest slice to become equal.
    training = fill(replace(training, early_stop=False), gentle=False)
    resolved = _ResolvedSupernet(request, opened, config, policy, training)
    with unfinished(request, resolved.settings(), compute) as folder:
        _carry_out(resolved, opened.problem(budget, policy, training, training, folder))
    return replace(read_supernet(request.out), is_main=compute.is_main)


def _carry_out(resolved: _ResolvedSupernet, problem: Problem) -> None:
    """Train, measure slices, and write the model folder."""
    opened = resolved.opened
    torch.manual_seed(problem.training.seed)
    with resumable(problem.folder, is_main=problem.compute.is_main):
        checked = _check_base(resolved, problem)
        torch.manual_seed(problem.training.seed)
        network, order = _train(resolved, problem)
        spec = derived_spec(opened.base.spec, network, opened.head, opened.task.classes)
        curve = _curve(resolved, problem, order, network, spec)
        with problem.stopwatch.stage("evaluation"):
            base_top1 = _top1(opened.base.with_columns(problem.task.base_columns), problem)
    record = resolved.record(problem, checked, base_top1=base_top1, order=tuple(order), curve=tuple(curve))
    card, model = _card(resolved.request.out.name, spec, record), Model(network.cpu().eval(), spec)
    write_model(model, resolved.request, problem, card=card, supernet=record, history=problem.history.lines)


def _top1(network: Network, problem: Problem) -> float:
    """Accuracy on the validation part."""
    return accuracy_of(network, problem.task.validation, problem.task.class_names, problem.passes).top1


def _check_base(resolved: _ResolvedSupernet, problem: Problem) -> BaseCheckRecord:
    """Check the base on the validation part.

    Raises:
        DataError: it is near chance, or better with other preprocessing, and the request does not accept that.
    """
    with problem.stopwatch.stage("check"):
        answers = ask(resolved.opened)
    assert resolved.opened.assumed is not None, "there are images"
    return judge_base(
        answers, answers.sureness(problem.task), problem.task, problem.progress, resolved.request,
        assumed=resolved.opened.assumed,
    )  # fmt: skip


def _train(resolved: _ResolvedSupernet, problem: Problem) -> tuple[Network, list[Unit]]:
    """Concentrate and train; return the network and its units in the order in which they are dropped."""
    config, passes, training = resolved.config, problem.passes, problem.training
    assert training.steps is not None
    proxy, encode = problem.task.train.subset(config.proxy_images), None
    with problem.stopwatch.stage("wpac"):
        network = concentrate(problem.network, proxy, passes, as_published=config.as_published)
        if config.cut_embedding:
            network, encode = concentrate_embedding(network, proxy, passes, training.seed)
    dims, geometry = list(network.dims), network.geometry
    embeds = candidate_widths(geometry.embed, problem.policy.embed_step) if config.cut_embedding else []
    units = make_units(dims, geometry, problem.policy, config.attention_groups, config.ffn_groups, embeds)
    most = ceil(resolved.request.rate * geometry.macs(dims))
    growth = DropoutSchedule(most, config.updates, round(config.growth * training.steps))
    rival = rival_of(config.dropout, config.dropout_rate)
    dropout = ProgressiveDropout(network, units, growth, proxy, passes, training.seed, rival)
    embed = None if encode is None else EmbedPlan(len(encode), (encode,))
    distillation = distillation_for(problem, embed)
    train_for(problem, network, stage="supernet", constraint=dropout, distillation=distillation)
    with problem.stopwatch.stage("training"):
        dropout.finish()
    return network, dropout.dropped


def _curve(
    resolved: _ResolvedSupernet, problem: Problem, order: Sequence[Unit], network: Network, spec: ModelSpec
) -> list[SlicePoint]:
    """Measure the whole network and slices at equal distances, down to the smallest."""
    count = resolved.config.points - 1
    points = []
    with problem.stopwatch.stage("evaluation"), problem.progress.stage("slices", count, "slice") as stage:
        for i in range(count + 1):
            slim = network
            if i > 0:
                budget = make_budget(spec.macs, spec.params, rate=resolved.request.rate * i / count)
                slim = cut_slice(network, order, budget, problem.policy)
            macs = slim.geometry.macs(list(slim.dims))
            params = sum(p.numel() for p in slim.parameters())
            points.append(SlicePoint(1 - macs / spec.macs, macs, params, _top1(slim, problem)))
            stage.update(i)
    return points


def _card(name: str, spec: ModelSpec, record: SupernetRecord) -> str:
    curve, hint = record.curve, "" if (text := hint_in(record)) is None else f"; {text}"
    cells = [
        (f"{100 * p.rate:.1f} %", format_count(p.macs), format_count(p.params), f"{100 * p.top1:.2f} %") for p in curve
    ]
    rows = "\n".join(f"| {' | '.join(row)} |" for row in cells)
    smallest = format_count(curve[-1].macs)
    return f"""# {name}

A super-network of {spec.timm_name}: slices of {smallest} to {format_count(spec.macs)} multiply-accumulates
are cut from it at once, without training and without images:

```
edgevit derive --method skd --supernet {shlex.quote(name)} --rate {curve[-1].rate / 2:.2g} --out slice
```

| rate | MACs | parameters | top-1 on {record.data.images.validation} validation images |
|---|---|---|---|
{rows}

The base has {100 * record.base_top1:.2f} % on the same images{hint}.
`supernet.json` says how the network was made; it is a model folder, too.
"""
