"""A request of one measured budget or of several, and what an earlier command left of each. Read without torch."""

from __future__ import annotations

from dataclasses import replace

from edgevit.errors import OptionError
from edgevit.latency.request import MeetRequest, identity
from edgevit.records.model_folder import ModelFolder
from edgevit.records.unfinished import REQUEST, REQUEST_KIND, differences, first_few, partial_folder


def per_budget(request: MeetRequest) -> list[MeetRequest]:
    """Return one request for each budget; several have their folders in `out`."""
    name = request.quantity
    if len(request.budgets) < 2 or name is None:
        return [request]
    requests = [
        replace(request, **{name: number}, out=request.out / f"{name}{number:.12g}", among_others=True)  # type: ignore[arg-type]
        for number in request.budgets
    ]
    if not request.overwrite:
        return requests
    # Folders after the unfinished one belong to an earlier command and are overwritten.
    unfinished = next((i for i, single in enumerate(requests) if partial_folder(single.out).is_dir()), -1)
    return [replace(single, resume=request.resume and i <= unfinished) for i, single in enumerate(requests)]


def continued(request: MeetRequest) -> MeetRequest:
    """Return the request with `resume` if there is an unfinished search of the same request.

    Raises:
        UnfinishedError: its files are damaged.
    """
    for single in per_budget(request) if request.is_measured else ():
        file = partial_folder(single.out) / REQUEST
        if file.is_file() and REQUEST_KIND.read(file).more == identity(single):
            return replace(request, resume=True)
    return request


def is_finished(request: MeetRequest) -> bool:
    """Whether this is one of several budgets that are continued, and its model is finished."""
    is_replaced = request.overwrite and partial_folder(request.out).is_dir()
    may_exist = request.resume and request.among_others and not is_replaced
    return may_exist and ModelFolder(request.out).derivation_file.is_file()


def check_budgets(request: MeetRequest) -> None:
    """Refuse an invalid request of one budget or of several; raises as `edgevit.meet` does."""
    if len(request.budgets) < 2 or not request.is_measured:
        request.check()
        return
    request.check_measuring()
    if len(set(request.budgets)) < len(request.budgets):
        raise OptionError(f"--{request.quantity} has a number twice; give each once")
    for single in per_budget(request):
        if is_finished(single):
            _refuse_other_options(single)
        else:
            single.check()


def _refuse_other_options(request: MeetRequest) -> None:
    """Raise OptionError if the finished model was derived by other options."""
    record = ModelFolder(request.out).derivation()
    options = None if record is None or record.met is None else record.met.request
    if options is None:
        raise OptionError(
            f"{request.out} does not say by which options it was made, so it is not gone on with; choose another "
            "--out, or remove it"
        )
    if changed := differences(options, identity(request)):
        raise OptionError(
            f"{request.out} was made by other options: {first_few(changed)}; give the same ones, choose another "
            "--out, or remove it"
        )
