"""`edgevit fleet PLAN`: do the jobs of a plan that are not done, in worker processes."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

import torch

from edgevit.agent.kernel import read_bytes
from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.cost_table import load_cost_table
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.compatibility import refuse_base
from edgevit.derivation.feasibility import Target
from edgevit.derivation.method import find_method, refuse_training
from edgevit.derivation.request import DeriveRequest
from edgevit.errors import CheckpointError, EdgeVitError, Interrupted, JobsError, OptionError, OutputError
from edgevit.jobs.fleet.estimates import BASE, BaseSize, TimeLeft, first_of_each, memory_of, size_of, work_of
from edgevit.jobs.fleet.plan import FleetJob, FleetPlan, on_host, read_plan
from edgevit.jobs.fleet.request import FleetRequest
from edgevit.jobs.fleet.stages import carry_out, first_board, with_keys
from edgevit.jobs.fleet.states import JOB_KIND, RECORD, JobRecord, JobState, finished, record_of, states_of
from edgevit.jobs.jobs_file import TASK_KEYS, DeriveJob, tasks_side_by_side
from edgevit.jobs.ray_cluster import run_on_ray
from edgevit.jobs.runners import ALL_WORKERS, Event, FullDisk, Job, Retry, run_in_processes
from edgevit.network.classifier import with_classes
from edgevit.network.network import Network
from edgevit.network.opening import network_without_weights
from edgevit.numbers import COUNT, check_number
from edgevit.progress import Progress, Silent, WithoutRepeats
from edgevit.records.model_folder import ModelFolder
from edgevit.records.writing import refuse_existing, write_whole, writing
from edgevit.request import takes_options
from edgevit.version import written_by

READ = ("base", "checkpoint", "supernet", "cost_table", "data")  # options of a derivation that may name files
MANY_IMAGES = 2**31  # number of images assumed for a task whose images are not listed yet
RANKS = {"export": 0, "engine": 0, "bench": 0, "derive": 1}  # what ends a model comes before the next model


@takes_options(FleetRequest, "plan")
def fleet(request: FleetRequest, progress: Progress | None = None) -> list[JobState]:
    """Derive, export, build and measure every model of a plan. The same call continues whatever broke before.

    A job that fails does not stop the others. A job that failed before is tried again, one that is done is not.

    Returns:
        the states of all jobs; `passed` of each says whether it is done and its gates pass.

    Raises:
        JobsError: the file is not valid, or budgets in it are below what can be made; nothing was started.
        OptionError: `workers` and `ray` are given together, or an option of the plan cannot be.
        OutputError: nothing can be written to the plan's `out`.
        Interrupted: Ctrl-C or SIGTERM; the same call continues.
    """
    plan = read_plan(request.plan)
    jobs = plan.part(request.only)
    if request.ray is not None and request.workers is not None:
        raise OptionError("--workers is for processes on this machine; a cluster has its own, --ray: leave one out")
    failed: dict[str, str] = {}
    if not request.status:
        refuse_existing(plan.out / "jobs" / ".new")  # can a folder be created there?
        try:
            failed = _work_off(jobs, plan, request, WithoutRepeats(progress or Silent()))
        except KeyboardInterrupt as stop:
            raise Interrupted("stopped; the same command continues with the jobs that are not done") from stop
    return states_of(jobs, failed)  # on a full disk a job that failed has no record


def _work_off(jobs: Sequence[FleetJob], plan: FleetPlan, request: FleetRequest, progress: Progress) -> dict[str, str]:
    """Do the jobs that are not done; return the reasons of those that failed."""
    done = {job.name: record for job in jobs if (record := _as_planned(job)) is not None}
    due = [job for job in jobs if job.name not in done]
    if done:
        progress.note(f"{len(done)} of {len(jobs)} jobs are done already")
    sizes = refuse_impossible(job.derivation for job in due if job.stage == "derive")
    work = {
        job.name: work_of(job.derivation, size)
        for job in due
        if job.stage == "derive" and (size := sizes.get(_base_of(job.derivation))) is not None
    }
    workers = request.workers if request.workers is not None else plan.layout.workers
    workers = usual_workers(plan) if workers is None else workers
    check_number("--workers", workers, COUNT)
    threads = max(min(plan.layout.threads, (os.cpu_count() or 1) // workers), 1)
    tasks = [
        Job(
            job.name, job, carry_out, job.needs, job.place, _boards(job), on_host,
            memory_of(job.derivation, sizes[_base_of(job.derivation)]) if job.name in work else 0, _inputs(job),
            _outputs(job), _base_of(job.derivation) if job.stage == "derive" else "", on_gpu=_is_on_gpu(job),
        )
        for job in in_order(due, work, workers)
    ]  # fmt: skip
    time_left = TimeLeft(tasks, done, work, workers, earlier=[job for job in jobs if job.name in done])
    if request.ray is None:
        memory = read_bytes("/", "proc/meminfo", "MemAvailable")
        events = run_in_processes(tasks, done, workers=workers, threads=threads, memory_bytes=memory)
    elif any(job.place == ALL_WORKERS for job in due):
        raise OptionError(
            "--ray: the board `here` is this machine, and a cluster has several; name boards by their hosts"
        )
    else:
        events = run_on_ray(tasks, done, address=request.ray, threads=plan.layout.threads)
    return follow_runner(events, time_left, progress, stage="fleet")


def follow_runner(
    events: Generator[Event[FleetJob, Any], None, None], time_left: TimeLeft, progress: Progress, *, stage: str
) -> dict[str, str]:
    """Tell of jobs as they end; return the reasons of those that failed, without the jobs that need them."""
    ended, begun, warned, failed = 0, set[str](), set[str](), dict[str, str]()
    with progress.stage(stage, 100, "% of the time") as shown, closing(events):
        try:
            for job, result in events:
                if result is None:
                    begun.add(job.name)
                    time_left.begin(job.name)
                elif isinstance(result, Retry):
                    time_left.put_off(job.name)
                    progress.warn(f"{job.name} waits: {result.reason}")
                else:
                    assert not isinstance(result, FullDisk)  # a runner turns a full disk into an error or another try
                    ended += 1
                    time_left.end(job.record, result)
                    shown.update(time_left.percent(), jobs=ended)
                    if job.name in begun:  # what needs a job that failed has nothing to add
                        if isinstance(result, EdgeVitError):
                            _record_death(job.record, result)
                            if not _waits(job.record, str(result)):
                                failed[job.name] = str(result)
                        _tell(job.record, result, warned, progress)
        except KeyboardInterrupt:
            progress.note("stopping: trainings save their state first; press Ctrl-C again to end at once")
            raise
    return failed


def in_order(jobs: Sequence[FleetJob], work: Mapping[str, float], workers: int) -> list[FleetJob]:
    """Put jobs in the order in which they begin if they can: what ends a model first, then derivations by their `work`.

    Of derivations with as much work, workers first do different tasks, and do not wait for one another's measurements.
    One of each base and method begins before all others, as what it takes tells how long the others will.
    """
    by_base: dict[str, list[DeriveJob]] = defaultdict(list)
    for job in jobs:
        if job.stage == "derive":
            by_base[_base_of(job.derivation)].append(job.derivation)
    in_turns = [derivation for of_base in by_base.values() for derivation in tasks_side_by_side(of_base, workers)]
    longest_first = sorted(in_turns, key=lambda derivation: -work.get(derivation.name, 0))
    samples = {derivation.name for derivation in first_of_each(longest_first, lambda job: (_base_of(job), job.method))}
    turns = {derivation.name: turn for turn, derivation in enumerate(longest_first)}
    return sorted(jobs, key=lambda job: (RANKS[job.stage], job.name not in samples, turns.get(job.name, 0)))


def _inputs(job: FleetJob) -> tuple[str, ...]:
    """The files and folders that a job reads, beside its model's."""
    values = [job.derivation.arguments.get(name) for name in (*READ, *job.derivation.files)]
    values += [job.options.get(name) for name in ("data", "images", "ssh_config", "profile")]
    paths = (value for value in values if isinstance(value, str) and os.path.exists(value))
    return tuple(dict.fromkeys(paths))


def _outputs(job: FleetJob) -> tuple[str, ...]:
    """The files and folders that a job may write; the record of a job before it, to have that done again."""
    jobs = job.folder.parent
    before = [jobs / name for name in job.needs if job.stage == "bench"]
    return tuple(map(str, (job.model, first_board(job), *before, job.folder)))


def _boards(job: FleetJob) -> tuple[str, ...]:
    """The hosts of the boards that may do a job."""
    return job.hosts or (() if job.options.get("board") is None else (str(job.options["board"]),))


def _is_on_gpu(job: FleetJob) -> bool:
    return job.stage == "derive" and job.derivation.arguments["training"].get("device", "auto") != "cpu"


def _as_planned(job: FleetJob) -> JobRecord | None:
    """The record of a job that is done, unless it was judged by other gates."""
    record = finished(job)
    return record if record is not None and record.gates.keys() == set(job.gates) else None


def _record_death(job: FleetJob, error: EdgeVitError) -> None:
    """Write the record of a job whose process ended without one, or left that of an earlier failure."""
    earlier = record_of(job)
    if earlier is None or earlier.reason not in (None, str(error)):
        record = JobRecord(job.name, job.sha256, "failed", str(error), versions={"edgevit": written_by()})
        with suppress(OutputError), writing(job.folder):  # the others go on
            job.folder.mkdir(parents=True, exist_ok=True)
            write_whole(job.folder / RECORD, JOB_KIND.text(record))


def _waits(job: FleetJob, reason: str) -> bool:
    """Whether this is the reason for which a job waits for its board."""
    record = record_of(job)
    return record is not None and record.state == "waiting" and record.reason == reason


def _tell(job: FleetJob, result: JobRecord | EdgeVitError, warned: set[str], progress: Progress) -> None:
    """Show how a job ended, with its warnings; jobs of a task share most, and each of these is shown once."""
    if isinstance(result, EdgeVitError):
        progress.note(f"{job.name}: {result}")
        return
    for text in result.warnings:
        if text not in warned:
            progress.warn(f"{job.name}: {text}")
    warned.update(result.warnings)
    outcome = [f"{gate}: {state}" for gate, state in result.gates.items() if state != "pass"]
    progress.note(f"{job.name}: {'; '.join(outcome) or _accuracy(job) or 'done'} ({result.seconds:.0f} s)")


def _accuracy(job: FleetJob) -> str:
    """The accuracy of a model that was derived; empty: it was not measured, or the job is no derivation."""
    if job.stage == "derive":
        with suppress(CheckpointError):
            if (record := ModelFolder(job.model).derivation()) is not None and record.accuracy.derived is not None:
                return f"top-1 {100 * record.accuracy.derived.top1:.2f} %"
    return ""


def usual_workers(plan: FleetPlan) -> int:
    """The number of workers by the number of processors; 1 if all of them would use one GPU."""
    if plan.layout.training.get("device", "auto") != "cpu" and torch.cuda.is_available():
        return 1
    return max((os.cpu_count() or 1) // plan.layout.threads, 1)


def _base_of(derivation: DeriveJob) -> str:
    return str([derivation.arguments.get(name) for name in BASE])


def refuse_impossible(derivations: Iterable[DeriveJob]) -> dict[str, BaseSize]:
    """Refuse options and budgets that cannot be, all budgets in one message; return the size of each base.

    Raises:
        JobsError: the budgets, each with its base and method.
        UnknownNameError, OptionError, CheckpointError: a base, an option or a training that cannot be.
    """
    networks: dict[str, Network] = {}
    reasons: dict[str, str] = {}
    for derivation in derivations:
        key = str({name: value for name, value in derivation.arguments.items() if name not in TASK_KEYS})
        if key in reasons:
            continue
        request, base, reasons[key] = derivation.request(), _base_of(derivation), ""
        request.check_choices()
        refuse_training(request)
        is_measured = request.quantity and request.cost_table is None
        if is_measured or not request.puts_out_classes or request.supernet_folder() is not None:
            continue  # refused by their jobs
        if base not in networks:
            assert request.base is not None
            networks[base] = network_without_weights(
                request.base, request.model_args, checkpoint=request.checkpoint, pretrained=request.pretrained
            )
        reasons[key] = _reason(request, networks[base])
    if impossible := [reason for reason in reasons.values() if reason]:
        raise JobsError(f"{len(impossible)} of {len(reasons)} budgets cannot be met: {'; '.join(impossible)}")
    return {base: size_of(network) for base, network in networks.items()}


def _reason(request: DeriveRequest, network: Network) -> str:
    """Why no model of this base keeps its budget; empty: one may."""
    policy = make_policy(request.shape, request.ffn_multiple, request.embed_multiple)
    method = find_method(request.method)
    config = method.make_config(request.options)
    params = sum(parameter.numel() for parameter in network.parameters())
    # With the smallest head, as the classes of the task are not counted yet.
    restricted = with_classes(network, [0])
    table = None if request.cost_table is None else load_cost_table(request.cost_table)
    try:
        request.check_budget()
        refuse_base(method, config, network, policy)
        budget = make_budget(network.geometry.macs(network.dims), params, **request.budget(), table=table)
        method.check(config, Target(restricted, budget, policy, MANY_IMAGES))
    except EdgeVitError as error:
        return f"{request.base}: {with_keys(str(error))}"
    return ""
