"""What a suite starts from: the weights of its networks, and the record that an earlier command left."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from edgevit.board.bench import Setting
from edgevit.errors import CheckpointError, RunsError
from edgevit.jobs.suite.plan import shipped_plan
from edgevit.jobs.suite.record import SuiteRecord, read_suite_record
from edgevit.jobs.suite.request import SIZES, CharacterizeRequest
from edgevit.jobs.suite.suite import largest_of, shape_of
from edgevit.network.model import Headless, Model
from edgevit.network.network import Network
from edgevit.network.opening import open_network
from edgevit.records.kinds import plain
from edgevit.records.unfinished import differences, first_few
from edgevit.records.writing import file_sha256
from edgevit.version import written_by

_SET = ("power_mode", "clocks_locked")  # settings that another job may change for a while
_ENVIRONMENT = ("module", "jetpack", "l4t", "tensorrt", "cuda", *_SET)


def open_weights(request: CharacterizeRequest) -> Network | None:
    """The largest network with the weights of the checkpoint; None: without a checkpoint.

    Raises:
        CheckpointError: it is of another network, or of other classes than ImageNet's 1000.
    """
    if request.checkpoint is None:
        return None
    size = largest_of(request.sizes)
    opened = open_network(SIZES[size], checkpoint=request.checkpoint)
    outputs = 0 if isinstance(opened, Headless) else opened.spec.outputs
    if outputs != (expected := shape_of(size)[1].outputs):
        raise CheckpointError(
            f"{request.checkpoint} has {outputs} outputs, and the networks of the suite have {expected}; give another, "
            "or leave --checkpoint out"
        )
    assert isinstance(opened, Model), "it has outputs"
    return opened


def open_record(request: CharacterizeRequest, setting: Setting) -> SuiteRecord:
    """The record in the output file, or a new one.

    Raises:
        RunsError: the file is of another request or board.
    """
    facts, profile = setting.facts, None if setting.profile is None else setting.profile.name
    options: dict[str, Any] = {
        "sizes": list(request.sizes),
        "quick": request.quick,
        "rounds": request.rounds,
        "threads": request.threads,
    }
    if request.checkpoint is not None:
        options["weights_sha256"] = file_sha256(request.checkpoint)
    environment = {name: plain(getattr(facts, name)) for name in _ENVIRONMENT}
    if not request.output.exists():
        return SuiteRecord(
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            edgevit=written_by(),
            request=options,
            host=setting.host,
            profile=profile,
            environment=environment,
            seconds=0.0,
            published=shipped_plan().published_for(profile),
        )
    record = read_suite_record(request.output)
    for name, before, now in (
        ("request", record.request, options),
        ("board", {"host": record.host}, {"host": setting.host}),
        ("environment", record.environment, environment),
    ):
        if changed := differences(before, now):
            raise RunsError(f"{request.output} is of another {name}: {first_few(changed)}; choose another --output")
    record.measurements()
    return record
