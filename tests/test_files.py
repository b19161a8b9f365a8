"""Whatever is done to a file that edgevit reads, a command that reads it works or says in one line what is wrong.

Each kind of file is made once, for real; hypothesis then spoils it. `EDGEVIT_MUTATIONS=2000` tries more. All readers of
a sealed kind read it through its seal, so that one of them is asked; `resealed` is a change whose seal fits.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import some_tables
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from places import ROOT

from edgevit.errors import EdgeVitError
from edgevit.records.derivation import DERIVATION_KIND, Accuracies, AccuracyRecord, Facts, TrainingRecord
from edgevit.records.engine import EngineAccuracy, EngineClassAccuracy
from edgevit.records.kinds import seal
from edgevit.records.model_folder import ModelFolder

EXAMPLES = int(os.environ.get("EDGEVIT_MUTATIONS", "5"))
LIMIT_S = 60  # for one command, however busy the machine is


@dataclass(frozen=True)
class Kind:
    """A file, and what reads it: arguments of the command line, or a function of the folder that all lies in."""

    file: str
    readers: tuple[Any, ...]
    named: str = ""  # how an error names the file, where it is not by its own name
    sealed: bool = False  # no change of what it says is let through


def _store(root: Path) -> object:
    return ModelFolder(root / "m").export.engines()


def _report(root: Path) -> object:
    return ModelFolder(root / "m").export.record()


def _measurable(root: Path) -> object:
    from edgevit.board.models import find_file

    return find_file(root / "m", "fp32", None)


def _work(root: Path) -> object:
    from edgevit.board.models import _work as work

    return work(ModelFolder(root / "m"))


@lru_cache
def _sizes(folder: Path) -> Any:
    from edgevit.network.folder import load

    model = load(folder)
    return model.spec.blocks, model.geometry


def _costs(root: Path) -> object:
    from edgevit.derivation.allocate.cost_table import load_cost_table
    from edgevit.derivation.allocate.policy import POLICIES

    table = load_cost_table(root / "costs.yaml")
    table.check("vit", *_sizes(root / "net"), POLICIES["fused"])
    return table.in_quantity("ms").base


def _plan(root: Path) -> object:
    from edgevit.jobs.jobs_file import read_jobs

    return read_jobs(root / "jobs.yaml")


def _stated(root: Path) -> object:
    from edgevit.exporting.imported.stated import stated_preprocessing
    from edgevit.records.release import read_release

    return stated_preprocessing(root / "o" / "model.onnx", {}, {}, read_release(root / "o"))


def _job(root: Path) -> object:
    """A damaged record of a job is read as none: the job is done again, or found done by its model."""
    from edgevit.jobs.fleet.states import JOB_KIND

    return JOB_KIND.read(root / "fleet" / "jobs" / "a" / "job.json")


FEW = ("--max-images", "3", "--device", "cpu", "-q")
KINDS = {
    "model": Kind("m/model.json", (("show", "m"), _work), sealed=True),
    "resealed": Kind("m/model.json", (("show", "m"), ("evaluate", "m", *FEW)), named="model."),  # or the weights
    "derivation": Kind("m/derivation.json", (("show", "m"),), sealed=True),
    "export": Kind("m/export/export.json", (_report, _measurable), sealed=True),
    "engine": Kind("m/export/engines/board/0123456789abcdef.json", (_store,), sealed=True),
    "metadata": Kind("m/export/model.fp32.onnx", (("evaluate", "m/export/model.fp32.onnx", "--data", "digits", *FEW),)),
    "onnx": Kind("o/onnx.json", (("show", "o"),), sealed=True),
    "processor": Kind("o/preprocessor_config.json", (_stated,), named="prep"),
    "supernet": Kind("net/supernet.json", (("show", "net"),), sealed=True),
    "layers": Kind("runs.layers.jsonl", (("show", "runs.layers.jsonl"), ("show", "runs.layers.jsonl", "--json"))),
    "inspected": Kind(
        "m/export/engines/board/0123456789abcdef.layers.json",
        (("show", "m/export/engines/board/0123456789abcdef.engine"),),
    ),
    "runs": Kind("runs.jsonl", (("compare", "runs.jsonl", "runs.jsonl", "--force"),)),
    "profile": Kind("mine.yaml", (("profiles", "mine.yaml"),)),
    "costs": Kind("costs.yaml", (_costs,), named="cost"),
    "plan": Kind("jobs.yaml", (_plan,)),
    "job": Kind("fleet/jobs/a/job.json", (_job,), sealed=True),
    "sweep": Kind("swept/sweep.json", (("show", "swept"),), sealed=True),
    "proof": Kind("proof.json", (("show", "proof.json"),), sealed=True),
    "classes": Kind(
        "classes.txt", (("evaluate", "m", "--data", "digits", "--classes", "classes.txt", *FEW),), named=""
    ),
}


# -- real files --------------------------------------------------------------------------------------------------------


def _measured(top1: float) -> AccuracyRecord:
    return AccuracyRecord(top1, 3, {"3": top1, "5": 1.0, "8": None})


def _make_model(root: Path) -> None:
    from small_models import write_derived

    folder = ModelFolder(write_derived(root / "m", 16, 16))
    record = folder.derivation()
    assert record is not None
    accuracy = Accuracies(replace(_measured(0.1), per_class=None), _measured(0.9), None, _measured(0.8))
    told = replace(record, accuracy=accuracy, training=TrainingRecord(1), facts=Facts(steps=2, kept_blocks=(0, 1)))
    folder.derivation_file.write_text(DERIVATION_KIND.text(told))


def _make_engine(root: Path) -> None:
    """An engine of a few bytes: what is read is the record beside it."""
    from some_engines import add

    per_class = {"3": EngineClassAccuracy(2, 0.5, 0.5)}
    accuracy = EngineAccuracy("d", "test", 2, "0" * 64, 0.5, 0.5, 1.0, "3", per_class)
    weights = ModelFolder(root / "m").weights_sha256()
    made = add(root / "m", board="board", accuracy=accuracy, weights_sha256=weights)
    for file in made.path.parent.iterdir():
        file.rename(file.with_name(file.name.replace(made.key[:16], "0123456789abcdef")))


def _make_supernet(root: Path) -> None:
    from model_folders import supernet_of
    from small_models import ARGS, random_base

    from edgevit.network.folder import save
    from edgevit.network.model import Model, describe
    from edgevit.records.model import TargetClass

    base = describe(random_base(), "vit_tiny_patch16_224", ARGS)
    record = ModelFolder(root / "m").derivation()
    assert record is not None and record.data is not None
    supernet = supernet_of(base.spec.blocks, record.data, (8, 64, 128, 256))
    labels = tuple(TargetClass(str(i), i) for i in range(10))
    save(Model(base, replace(base.spec, classes=labels)), root / "net", supernet=supernet)


def _make_imported(root: Path) -> None:
    """The folder of an ONNX file that edgevit did not make; beside it lies what transformers would have put there."""
    from foreign_onnx import PREPARED, write_vit

    from edgevit.exporting.imported.importing import imported
    from edgevit.exporting.request import FilesRequest

    imported(FilesRequest(model=write_vit(root / "other.onnx", depth=1), out=root / "o", preprocessing=PREPARED))
    said = {"size": {"height": 256, "width": 256}, "crop_size": {"height": 224, "width": 224}, "do_center_crop": True,
            "resample": 3, "rescale_factor": 1 / 255, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}  # fmt: skip
    (root / "o" / "preprocessor_config.json").write_text(json.dumps(said))


def _make_small_files(root: Path) -> None:
    from some_layers import PROFILE
    from some_runs import DENSE, SLIM
    from some_suite_record import RECORD

    from edgevit.board.layers import line_of
    from edgevit.jobs import jobs_file
    from edgevit.jobs.fleet.states import JOB_KIND, JobRecord
    from edgevit.jobs.suite.record import write_suite_record
    from edgevit.jobs.sweep.record import FinetunedBase, Sweep, SweepPoint, write_sweep
    from edgevit.records.derivation import StartRecord

    (root / "runs.jsonl").write_text("".join(run.to_json() + "\n" for run in (DENSE, SLIM)))
    (root / "runs.layers.jsonl").write_text(line_of(PROFILE))
    write_suite_record(RECORD, root / "proof.json")
    shutil.copy(ROOT / "profiles" / "orin-nx-16gb.yaml", root / "mine.yaml")
    costs = some_tables.table(
        some_tables.rows(0.5, {(2, w): w / 8 for w in (16, 32)}, {w: w / 100 for w in (8, 64, 256)})
    )
    (root / "costs.yaml").write_text(yaml.safe_dump(costs))
    (root / "classes.txt").write_text("3\n5\n")
    shutil.copy(jobs_file.EXAMPLE, root / "jobs.yaml")
    record = JobRecord(
        "a", "0" * 64, "failed", "no", 1.5, 3.0, 0.5, 1e9, "orin", {"p99<8ms": "fail"}, ("weak",), {"edgevit": "0.1.0"}
    )
    (root / "fleet" / "jobs" / "a").mkdir(parents=True)
    (root / "fleet" / "jobs" / "a" / "job.json").write_text(JOB_KIND.text(record))
    (root / "swept").mkdir()
    points = (SweepPoint("base", None, 90, 100, 1000, 500), SweepPoint("r0.5", 0.5, 88, 100, 500, 250))
    begun = {"request": {"base": "b"}, "part": "validation", "created": "2026-01-01", "versions": {"edgevit": "0.1.0"}}
    finetuned = FinetunedBase(92, 100, StartRecord("finetuned", 30, 0.3, 0.2))
    write_sweep(root / "swept", Sweep(**begun, points=points, left_out=("0.9: no",), finetuned=finetuned))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from edgevit.engines.run import export

    root = tmp_path_factory.mktemp("files")
    _make_model(root)
    export(root / "m", fp16=False, accuracy=False)
    _make_engine(root)
    _make_supernet(root)
    _make_imported(root)
    _make_small_files(root)
    return root


# -- what is done to them ----------------------------------------------------------------------------------------------

Change = Callable[[bytes], bytes]

ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1, 7, 1.5, -0.5, 2**31, 2**63, 10**400, "", "x", "3", "\x1b[31m\n", "\ud800", [], {}, [[]],
    {"a": 1}, [1, "x"], math.nan, math.inf, -math.inf, "/nowhere", [None], 1e308,
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from _places(one, (*path, key))


def _inside(data: Any, where: int, do: Callable[[Any, Any], None]) -> Any:
    """Do something to one of the places in the data."""
    places = list(_places(data))
    if not places:
        return data
    *path, last = places[where % len(places)]
    holder = data
    for key in path:
        holder = holder[key]
    do(holder, last)
    return data


def _set(value: Any) -> Callable[[Any, Any], None]:
    def do(holder: Any, key: Any) -> None:
        holder[key] = deepcopy(value)

    return do


def _drop(holder: Any, key: Any) -> None:
    del holder[key]


def _nest(holder: Any, key: Any) -> None:
    for _ in range(200):
        holder[key] = [holder[key]]


def _add(holder: Any, key: Any) -> None:
    if isinstance(holder, dict):
        holder["surprise"] = holder[key]
    else:
        holder.append(holder[key])


def _nudge(holder: Any, key: Any) -> None:
    value = holder[key]
    holder[key] = value + 1 if isinstance(value, (int, float)) else f"{value}x"


WHERE = st.integers(0, 500)
CHANGES = st.one_of(
    st.tuples(st.just(_set), st.sampled_from(ODD)).map(lambda pair: pair[0](pair[1])),
    st.sampled_from([_drop, _nest, _add, _nudge]),
)


@st.composite
def spoilt_values(draw: Any) -> Callable[[Any], Any]:
    """One or two changes of what a file says."""
    changes = draw(st.lists(st.tuples(WHERE, CHANGES), min_size=1, max_size=2))

    def spoil(data: Any) -> Any:
        data = deepcopy(data)
        for where, do in changes:
            data = _inside(data, where, do)
        return data

    return spoil


def _twice(text: bytes) -> bytes:
    """The first key there twice."""
    found = re.search(rb'"?(\w+)"?: *("[^"]*"|[\w.]+)', text)
    return text if found is None else text[: found.start()] + found[0] + b", " + text[found.start() :]


DEEP = b"[" * 50_000


@st.composite
def spoilt_bytes(draw: Any) -> Change:
    """Something done to a file as such."""
    at, length, junk = draw(st.integers(0, 10**6)), draw(st.integers(0, 40)), draw(st.binary(max_size=20))
    how = draw(st.sampled_from(["cut", "overwrite", "empty", "deep", "latin", "twice", "null"]))

    def spoil(text: bytes) -> bytes:
        i = at % (len(text) + 1)
        return {
            "cut": text[:i],
            "overwrite": text[:i] + junk + text[i + length :],
            "empty": b"",
            "deep": DEEP,
            "latin": text[:i] + b"\xff" + text[i:],
            "twice": _twice(text),
            "null": b"null",
        }[how]

    return spoil


# -- what becomes of it ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    code: int
    out: str
    err: str


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    def late(*_: object) -> None:
        raise AssertionError(f"no answer in {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _inside_of(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _ask(root: Path, reader: Any) -> Told:
    """Give a command in the folder, or call a function of it; anything but an EdgeVitError is a fault."""
    out, err = io.StringIO(), io.StringIO()
    with _in_time(), _inside_of(root):
        if callable(reader):
            try:
                return Told(0, repr(reader(root)), "")
            except EdgeVitError as error:
                return Told(1, "", f"error: {error}\n")
        from edgevit.cli.app import _run

        before, sys.argv = sys.argv, ["edgevit", *reader]
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = _run()
        finally:
            sys.argv = before
    return Told(code, out.getvalue(), err.getvalue())


def _check(root: Path, kind: Kind, right: tuple[Told, ...], changed: bool) -> None:
    for reader, expected in zip(kind.readers, right, strict=True):
        told = _ask(root, reader)
        if told.code == 0:
            assert not (kind.sealed and changed), "a change of what it says was let through"
            if not changed:
                assert told.out == expected.out
            continue
        assert (told.code, told.out) == (1, ""), told
        assert re.fullmatch(r"error: [^\n]+\n", told.err), told.err
        named = kind.named or Path(kind.file).name
        assert named in told.err or kind.file.endswith(".txt"), told.err


def _parsed(kind: Kind, text: bytes) -> Any:
    if kind.file.endswith(".txt"):
        return text.decode().split()
    return yaml.safe_load(text) if kind.file.endswith(".yaml") else json.loads(text)


@pytest.fixture(scope="session")
def right(made: Path) -> dict[str, tuple[Told, ...]]:
    """What every reader says of the files as they are."""
    told = {name: tuple(_ask(made, reader) for reader in kind.readers) for name, kind in KINDS.items()}
    assert [one for ones in told.values() for one in ones if one.code != 0] == []
    return told


class Spoiling:
    """Put a spoilt text in a file's place for as long as it takes to read it."""

    def __init__(self, made: Path, right: dict[str, tuple[Told, ...]]) -> None:
        self.made, self.right = made, right

    def text(self, kind: Kind) -> bytes:
        return (self.made / kind.file).read_bytes()

    def read(self, name: str, text: bytes, *, changed: bool) -> None:
        kind = KINDS[name]
        file = self.made / kind.file
        before = file.read_bytes()
        file.write_bytes(text)
        try:
            _check(self.made, kind, self.right[name], changed)
        finally:
            file.write_bytes(before)


@pytest.fixture(scope="session")
def spoiling(made: Path, right: dict[str, tuple[Told, ...]]) -> Spoiling:
    return Spoiling(made, right)


many = settings(
    max_examples=EXAMPLES, derandomize=EXAMPLES < 100, deadline=None, suppress_health_check=list(HealthCheck)
)
TEXTS = [name for name in KINDS if name != "metadata"]
VALUES = [name for name in TEXTS if name not in ("runs", "classes")]


def _written(name: str, value: Any) -> bytes:
    if name == "resealed" and isinstance(value, dict) and "content_sha256" in value:
        value = seal(value)
    return json.dumps(value).encode()  # which is YAML, too


@pytest.mark.parametrize("name", VALUES)
@many
@given(spoil=spoilt_values())
def test_values_that_are_wrong_are_one_line(spoiling: Spoiling, name: str, spoil: Callable[[Any], Any]) -> None:
    before = _parsed(KINDS[name], spoiling.text(KINDS[name]))
    after = spoil(before)
    spoiling.read(name, _written(name, after), changed=repr(after) != repr(before))


@many
@given(spoil=spoilt_values(), line=st.integers(0, 1))
def test_runs_that_are_wrong_are_one_line(spoiling: Spoiling, spoil: Callable[[Any], Any], line: int) -> None:
    lines = spoiling.text(KINDS["runs"]).splitlines()
    lines[line] = json.dumps(spoil(json.loads(lines[line]))).encode()
    spoiling.read("runs", b"\n".join(lines), changed=True)


@many
@given(spoil=st.one_of(spoilt_values(), spoilt_bytes()), key=st.integers(0, 3))
def test_metadata_that_is_wrong_is_one_line(spoiling: Spoiling, spoil: Any, key: int) -> None:
    import onnx

    model = onnx.load_from_string(spoiling.text(KINDS["metadata"]))
    names = ("class_names", "class_columns", "preprocessing", "split")
    entry = next(e for e in model.metadata_props if e.key == names[key])
    if spoil.__qualname__.startswith("spoilt_values"):
        entry.value = json.dumps(spoil({"it": json.loads(entry.value)}).get("it"))
    else:
        entry.value = spoil(entry.value.encode()).decode(errors="replace")
    spoiling.read("metadata", model.SerializeToString(), changed=True)


@pytest.mark.parametrize("name", TEXTS)
@many
@given(spoil=spoilt_bytes())
@example(spoil=lambda text: text)
@example(spoil=lambda text: b"\xef\xbb\xbf" + text)  # as some editors on Windows begin a file
def test_files_that_are_damaged_are_one_line(spoiling: Spoiling, name: str, spoil: Change) -> None:
    before = spoiling.text(KINDS[name])
    after = spoil(before)
    whole = after.removeprefix(b"\xef\xbb\xbf")
    try:  # a parser of YAML takes long to see how deep it is
        changed = whole == DEEP or repr(_parsed(KINDS[name], whole)) != repr(_parsed(KINDS[name], before))
    except (ValueError, yaml.YAMLError, RecursionError):
        changed = True
    spoiling.read(name, after, changed=changed)


# -- no other way in ---------------------------------------------------------------------------------------------------

# Where JSON or YAML is parsed that no file holds, or on the board, where the standard library must do.
ELSEWHERE = {
    "edgevit/records/documents.py": "the reader itself",
    "edgevit/board/client.py": "what the agent says",
    "edgevit/derivation/session/card.py": "code in a model's README, which needs no edgevit",
    "edgevit/data/sources/coco.py": "annotations, which others write",
    "edgevit/data/sources/packed.py": "labels beside the images of an archive",
    "edgevit/data/parquet.py": "what the metadata of a Parquet file states, or nothing",
}


def test_files_are_read_in_one_place() -> None:
    found = set()
    for file in sorted((ROOT / "edgevit").rglob("*.py")):
        name = str(file.relative_to(ROOT))
        if name.startswith("edgevit/agent/"):
            continue
        for line in file.read_text().splitlines():
            if re.search(r"json_?\.loads?\(|yaml\.\w*load", line) and "json.loads(json.dumps(" not in line:
                found.add(name)
    assert found <= ELSEWHERE.keys(), (
        f"read it with edgevit.records.documents.Reader: {sorted(found - ELSEWHERE.keys())}"
    )
