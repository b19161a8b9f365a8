"""`edgevit report`: gather, compare, and write the page or the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgevit.board.gates import parse_gate
from edgevit.errors import GateError, OptionError, OutputError, UnknownNameError
from edgevit.exporting.request import ready_made_files
from edgevit.numbers import check_number
from edgevit.progress import Progress, Silent, WithoutRepeats
from edgevit.records.writing import write_whole, writing
from edgevit.reporting.choice import Panel
from edgevit.reporting.gather import Evidence, GatheredModel, gather
from edgevit.reporting.page import as_html
from edgevit.reporting.panels import not_shown, panels
from edgevit.reporting.request import FORMATS, Format, ReportRequest
from edgevit.reporting.tables import as_csv, as_json, as_markdown
from edgevit.request import takes_options

if TYPE_CHECKING:
    from edgevit.reporting.wrong import Mistake
from edgevit.records.model_folder import ModelFolder
from edgevit.records.writing import file_sha256
from edgevit.reporting.axes import task_of

_PAGE = Path("report.html")
_STANDARD_OUTPUT = Path("-")
# A text near the beginning of each format. A file without it was not written by `report`, and is not overwritten.
MARKS: dict[Format, str] = {
    "html": '<meta name="generator" content="edgevit',
    "md": "<!-- edgevit report",
    "csv": "task,images,place,take,",
    "json": '"report": "edgevit',
}
_NEAR = 1000  # characters
# A byte order mark, without which Excel takes UTF-8 for the letters of its own region. JSON is for programs, whose CSV
# readers may not know it; standard output has none, as it goes to them.
_SPREADSHEET = "\ufeff"


@dataclass(frozen=True)
class Report:
    """A report and its data."""

    text: str
    format: Format
    file: Path | None  # path of the written report; None: it was not written to a file
    panels: tuple[Panel, ...]
    evidence: Evidence


@takes_options(ReportRequest, "paths")
def report(request: ReportRequest, progress: Progress | None = None) -> Report:
    """Report on all models and runs below some paths: folders of models, and files of runs.

    Without an `output` a page is written to report.html, and the other formats nowhere: their text is in the result.
    `gates` are what the runs are held against, such as "p99<8ms".

    Raises:
        OptionError: nothing to report, something that cannot be read at all, or an option that there is not.
        UnknownNameError: no such format.
        GateError: a gate that cannot be understood, or is about nothing that was measured.
        OutputError: the output cannot be written, or is a file that is no report.
    """
    output, thumbnails = request.output, request.thumbnails
    chosen = _format(request.format, output)
    gates = [parse_gate(text) for text in request.gates]
    check_number("--thumbnails", thumbnails, "[0, 1000]", "0 leaves images out")
    if thumbnails and chosen != "html":
        raise OptionError(
            f"--thumbnails is for a page, and the format is {chosen}; leave it out, or give --format html"
        )
    file = _PAGE if output is None and chosen == "html" else output
    if output == _STANDARD_OUTPUT:
        file = None
    if file is not None:
        _refuse_foreign(file, chosen)
    files = ready_made_files(request.ready_made)
    paths = [Path(path) for path in request.paths]
    evidence = gather(paths)
    if files:
        evidence = gather([*paths, *_judge_files(files, evidence, progress or Silent())])
    shown = tuple(panels(evidence, gates))
    evidence.skipped += not_shown(evidence, shown)
    verdicts = [verdict for panel in shown for entry in panel.entries for verdict in entry.verdicts]
    for gate in gates:
        of_gate = [verdict for verdict in verdicts if verdict.gate == gate]
        if not of_gate:
            raise GateError(f"gate {gate} is about none of the runs; measure what it is about, or leave it out")
        if all(verdict.state == "not measured" for verdict in of_gate):
            (reason,) = of_gate[0].reasons
            raise GateError(f"gate {gate}: {gate.metric} was measured in none of the runs: {reason}; or leave it out")
    mistaken: Mapping[str, Sequence[Mistake]] = {}
    if thumbnails:
        from edgevit.reporting.wrong import pictures

        mistaken = pictures(evidence, thumbnails, WithoutRepeats(progress or Silent()))
    text = (
        _text(chosen, shown, evidence, mistaken).encode("utf-8", "backslashreplace").decode()
    )  # names may be no Unicode
    if file is not None:
        with writing(file):
            write_whole(file, f"{_SPREADSHEET}{text}" if chosen == "csv" else text)
    return Report(text, chosen, file, shown, evidence)


def _format(requested: str | None, output: Path | None) -> Format:
    suffix = output.suffix.lstrip(".").lower() if output is not None else ""
    name = requested or {"htm": "html", "markdown": "md"}.get(suffix, suffix) or "html"
    for format_name in FORMATS:
        if name == format_name:
            return format_name
    if requested is None:
        raise OptionError(f"{output} has a suffix that says no format; give --format, one of {', '.join(FORMATS)}")
    raise UnknownNameError("format", name, FORMATS)


def _refuse_foreign(file: Path, format: Format) -> None:
    """Raise OutputError if the output file exists and is not a report."""
    if file.is_dir():
        raise OutputError(f"{file} is a folder; give the name of a file, such as {file / _PAGE}")
    if not file.parent.is_dir():
        raise OutputError(
            f"{file.parent} is no folder, so {file} cannot be written; make it, or choose another --output"
        )
    if file.is_file():
        with writing(file), file.open(encoding="utf-8", errors="replace") as opened:
            begins = opened.read(_NEAR)
        if begins and MARKS[format] not in begins:
            raise OutputError(f"{file} exists and is no report of this format, so it is not overwritten; remove it")


def _text(format: Format, shown: Sequence[Panel], evidence: Evidence, mistaken: Mapping[str, Sequence[Mistake]]) -> str:
    if format == "html":
        return as_html(shown, evidence, mistaken)
    if format == "md":
        return f"{MARKS['md']} -->\n{as_markdown(shown, evidence.skipped, evidence.costs)}"
    return as_csv(shown) if format == "csv" else as_json(shown, evidence.skipped, evidence.costs)


def _judge_files(files: Sequence[Path], evidence: Evidence, progress: Progress) -> list[Path]:
    """Import and judge each file, unless that is done; return their folders.

    The folder is one of the evidence that the same file was imported to, or the one where `edgevit export` writes it.

    Raises:
        OptionError: the models were judged on no images, on several sets of them, or by no probes or masks.
        EdgeVitError: as `edgevit.exporting.imported.ready_made.judge_ready_made` raises.
    """
    derived = [m for m in evidence.models if m.derivation and m.derivation.data and m.document]
    derived = [m for m in derived if m.class_names] or derived  # classifiers, where there are any
    judged = {task_of(model).images_key: model for model in derived}
    if len(judged) > 1:
        raise OptionError(
            f"the models were judged on {len(judged)} sets of images, and --beside needs one; give folders of one task"
        )
    if not judged:
        raise OptionError("no model here says on which images it was judged, as --beside needs; derive one with --data")
    (model,) = judged.values()
    assert model.derivation is not None and model.derivation.data is not None
    data, probe = model.derivation.data, _probe_of(derived)
    imported = {model.imported.file_sha256: model.folder for model in evidence.models if model.imported}
    folders = []
    for file in files:
        sha256 = file_sha256(file)
        folder = imported.get(sha256, ModelFolder(file.with_suffix("")))
        folders.append(folder.path)
        document = folder.imported() if folder.is_imported else None
        is_same = document is not None and document.file_sha256 == sha256 and document.is_judged_on(data, probe)
        if is_same and document is not None and document.targets is None:  # else masks may have changed
            continue
        from edgevit.exporting.imported.ready_made import DerivedModels, judge_ready_made

        judge_ready_made(file, folder, DerivedModels.of(model.folder, probe), progress)
    return folders


def _probe_of(models: Sequence[GatheredModel]) -> tuple[str, ...]:
    """The probes by which features were judged; empty: the models give something else.

    Raises:
        OptionError: nothing tells how good their features or maps are.
    """
    assert models[0].document is not None
    kind = models[0].document.output_kind
    if kind == "boxes":
        raise OptionError("--beside is for classifiers, features and maps, and these models find boxes; leave it out")
    probe = tuple(dict.fromkeys(name for model in models for name in model.probes))
    if kind == "features" and not probe:
        raise OptionError(
            "no model here was judged by probes, as --beside needs for features: sweep with --output features --probe "
            "knn,linear, and give that folder"
        )
    if kind not in ("features", "logits") and not any(model.targets for model in models):
        raise OptionError(
            "no model here was judged by masks, as --beside needs for maps: sweep with --data that has images/ and "
            "masks/, and give that folder"
        )
    return probe
