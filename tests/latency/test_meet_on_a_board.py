"""A budget met on a board: real SSH, the real agent, and the stand-in TensorRT on a captured Orin NX.

An inference there takes 1 ns for each byte of the file that its engine was built from; the table, made of runs that are
there before, says something else. It shows that the search goes round over SSH, and nothing of an Orin's speed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from places import STANDINS
from small_base import TYPED, write_checkpoint
from some_costs import fill

from edgevit.derivation.allocate.cost_table import load_cost_table
from edgevit.engines import builder
from edgevit.latency import paired, rounds, search, table, target
from edgevit.latency.table import measured_table
from edgevit.latency.target import MeasurementTarget, probe
from edgevit.progress import Silent
from edgevit.records.model_folder import ModelFolder

pytestmark = pytest.mark.usefixtures("examined_once")
NX = "orin-nx-16gb-jetpack6.2"
WIDE = 192  # of an embedding whose weights are most of a file


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "SAMPLES", 5)
    monkeypatch.setattr(target, "WARMUP_S", 0.0)
    monkeypatch.setattr(table, "measured_table", partial(measured_table, points=0))  # what is there is enough
    monkeypatch.setattr(search, "SURPRISING", 9.0)
    monkeypatch.setattr(rounds, "MOST", 1)
    monkeypatch.setattr(paired, "MOST_BATCH", 1)
    for name, value in {"ROUNDS": 1, "SECONDS": 0.02}.items():
        monkeypatch.setattr(paired, name, value)


@pytest.fixture
def orin(sshd: Callable[..., Any], board_tree: Callable[[str], Path]) -> Any:
    tree = board_tree(NX)
    tensorrt = {"STANDIN_TENSORRT": "10.3.0", "STANDIN_TENSORRT_NS_PER_BYTE": 1}
    tensorrt["STANDIN_TENSORRT_FAULT"] = "fp16-layernorm"
    server = sshd(EDGEVIT_BOARD_ROOT=tree, PYTHONPATH=STANDINS, **tensorrt)
    server.tree = tree
    server.options = ["--board", server.host, "--ssh-config", server.config]
    return server


@pytest.fixture
def command(tmp_path: Path) -> Iterator[list[object]]:
    given = ["--checkpoint", write_checkpoint(tmp_path), "--data", "digits", "--classes", "3,7", "--accept-weak-base"]
    few = ["--steps", 0, "--device", "cpu", "--set", "forge.calibration_images=16"]
    yield ["derive", *TYPED, *given, *few, "--set", "forge.sensitivity_images=8", "--out", tmp_path / "t"]


@pytest.mark.slow
def test_a_model_is_built_judged_and_measured_on_a_board_that_is_lost_in_the_middle(
    orin: Any, command: list[object], edgevit_main: Any, small_vit: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """LayerNorm fails in fp16 on this board, so its engines are mixed."""
    fill(small_vit(), probe(MeasurementTarget(board=orin.host, ssh_config=orin.config), Silent()), None)
    command = [*command, "--ms", 5, *orin.options]
    measure = paired.PairedBench.measure
    calls: list[str] = []

    def lost(there: Any, *given: Any) -> Any:
        calls.append(there.target.board)
        if len(calls) == 2:  # after the round, when the model that is kept is measured again
            orin.stop()
        return measure(there, *given)

    monkeypatch.setattr(paired.PairedBench, "measure", lost)
    cut = edgevit_main(*command)
    assert cut.code == 1 and orin.host in cut.err
    assert f"the same command goes on from {tmp_path / 't.partial'}" in cut.err
    monkeypatch.setattr(paired.PairedBench, "measure", measure)
    orin.start()
    status = orin.tree / "var/lib/nvpmodel/status"
    before = status.read_text()
    status.write_text("pmode:0003\n")
    other = edgevit_main(*command, "--resume")
    assert "its rounds were measured with power_mode MAXN_SUPER (here it is 25W)" in other.error
    status.write_text(before)

    done = edgevit_main(*command)
    assert done.code in (0, 3), done.err
    met = ModelFolder(tmp_path / "t").derivation().met
    assert done.code == (0 if met.keeps else 3)
    assert met.conditions["board"].startswith("orin-nx-16gb-l4t") and met.conditions["power_mode"] == "MAXN_SUPER"
    assert (len(met.rounds), met.figure) == (1, "p50")
    assert load_cost_table(ModelFolder(tmp_path / "t").cost_table_file).record() == met.table
    (engine,) = ModelFolder(tmp_path / "t").export.engines()
    assert (engine.fingerprint, engine.precision) == (met.conditions["board"], "mixed")
    assert done.out.count("round 1: ") == 1 and "orin-nx-16gb" in done.out


def test_millijoules_of_a_board_whose_rails_cannot_be_read_are_refused(
    orin: Any, command: list[object], edgevit_main: Any
) -> None:
    shutil.rmtree(orin.tree / "sys/bus/i2c/drivers/ina3221")
    next(orin.tree.rglob("tegrastats")).unlink()
    refused = edgevit_main(*command, "--mj", 40, *orin.options)
    assert refused.code == 1 and f"--mj: no power can be read on {orin.host}" in refused.err


@pytest.mark.slow
def test_a_budget_in_millijoules_is_met_by_what_the_rails_tell(
    orin: Any, command: list[object], edgevit_main: Any, small_vit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The captured rails stand still, so energy is the time of an inference times their power."""
    monkeypatch.setattr(paired, "POWER_SECONDS", 0.5)
    fill(small_vit(), probe(MeasurementTarget(board=orin.host, ssh_config=orin.config), Silent()), None)
    done = edgevit_main(*command, "--mj", 8000, *orin.options)
    assert done.code in (0, 3), done.err
    record = ModelFolder(tmp_path / "t").derivation()
    met = record.met
    assert (met.quantity, met.figure, met.budget) == ("mj", "energy", 8000) and done.code == (0 if met.keeps else 3)
    assert 1 / 3 < met.verified.value / met.rounds[0].measured.value < 3, "of one unit, on whatever busy machine"
    assert "round 1: " in done.out and "mJ" in done.out, done.out

    shutil.copytree(tmp_path / "t", tmp_path / "again")
    few = ("--duration", 0.05, "--samples", 10, "--warmup", 0, "--warmup-seconds", 0, "--repeat", 2, "--idle", 0)
    turns = edgevit_main("bench", tmp_path / "t", tmp_path / "again", *few, *orin.options)
    assert turns.code in (0, 4) and "ratio to t" in turns.out, turns.err + turns.out
    known = edgevit_main("cost", *TYPED, "--points", 1, "--output", tmp_path / "orin.yaml", *orin.options)
    assert known.code == 0, known.err
    table = load_cost_table(tmp_path / "orin.yaml")
    assert (table.origin.board or "").startswith("orin-nx-16gb") and set(table.quantities) == {"ms", "mj"}


@pytest.mark.slow
def test_a_budget_is_met_by_engines_in_int8(
    sshd: Any, board_tree: Any, command: list[object], edgevit_main: Any, small_vit: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Weights of INT8 are half as large, and so is nearly the time of an engine on this board."""
    monkeypatch.setattr(builder, "TIMED_S", 0.2)
    few = partial(builder.Conditions, samples=15, warmup=2, warmup_seconds=0.05)
    monkeypatch.setattr(builder, "Conditions", few)
    tensorrt = {"STANDIN_TENSORRT": "10.3.0", "STANDIN_TENSORRT_NS_PER_BYTE": 10}
    server = sshd(EDGEVIT_BOARD_ROOT=board_tree(NX), PYTHONPATH=STANDINS, **tensorrt)
    target = MeasurementTarget(board=server.host, ssh_config=server.config, precision="int8")
    fill(small_vit(embed_dim=WIDE), probe(target, Silent()), None)
    command = [*command, "--model-arg", f"embed_dim={WIDE}", "--ms", 10, "--run-precision", "int8"]
    write_checkpoint(tmp_path, embed_dim=WIDE)
    done = edgevit_main(*command, "--board", server.host, "--ssh-config", server.config)
    assert done.code in (0, 3), done.err
    met = ModelFolder(tmp_path / "t").derivation().met
    assert done.code == (0 if met.keeps else 3)
    (engine,) = ModelFolder(tmp_path / "t").export.engines()
    assert engine.precision == "int8"
