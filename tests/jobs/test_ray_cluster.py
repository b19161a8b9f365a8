"""Jobs on a Ray cluster of two nodes, one of which is lost."""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import bad_jobs
import pytest
import torch
from board_fixtures import free_port

from edgevit.derivation.cache import STREAMS, Cache, derivations_folder, entries
from edgevit.errors import JobsError, OptionError
from edgevit.jobs import ray_cluster, runners
from edgevit.jobs.parcels import packed_files
from edgevit.jobs.ray_cluster import run_on_ray
from edgevit.jobs.runners import Job, Later


def test_without_ray_it_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match=r"--ray needs Ray: pip install 'edgevit\[fleet\]'"):
        list(run_on_ray([Job("a", "", bad_jobs.count)], {}, address="auto", threads=1))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_jobs_of_a_lost_node_are_done_again_and_a_board_is_on_the_node_that_offers_it(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "PAUSE_S", 0.1)
    monkeypatch.chdir(tmp_path)
    second = cluster.add_node(num_cpus=1, resources={"orin": 1})
    jobs = [Job("lost", "lost", bad_jobs.count), Job("b", "b", bad_jobs.count, ("a",)), Job("a", "a", bad_jobs.count)]
    jobs += [Job("board", "board", bad_jobs.count, place="orin")]
    results: dict[str, Any] = {}
    later = []
    for job, result in run_on_ray(jobs, {}, address=cluster.address, threads=1):
        if isinstance(result, Later):
            later.append(job.name)
        elif result is not None:
            results[job.name] = result
            if job.name == "board":
                cluster.remove_node(second, allow_graceful=False)
    assert results.keys() == {"lost", "a", "b", "board"} and all(isinstance(count, int) for count in results.values())
    assert results["board"] == 1 and results["b"] > results["a"], results
    assert {*later} <= {"lost", "a", "b"}


def test_a_node_with_another_edgevit_or_without_the_folder_or_the_data_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    piece = (Job("a", "", bad_jobs.count), dict[str, Any]())
    other, _ = ray_cluster._on_node(str(tmp_path), "0.0.1", 1, piece)
    assert "and the command 0.0.1; install the same on all nodes" in str(other)
    piece = (replace(piece[0], inputs=(str(tmp_path), str(tmp_path / "photos"))), piece[1])
    without, _ = ray_cluster._on_node(str(tmp_path), ray_cluster.written_by(), 1, piece)
    assert f"{socket.gethostname()} does not see {tmp_path / 'photos'}; " in str(without)
    missing, _ = ray_cluster._on_node(str(tmp_path / "none"), ray_cluster.written_by(), 1, piece)
    assert f"does not see {tmp_path / 'none'}" in str(missing)
    with pytest.raises(JobsError, match="node2 does not see /fleet/m: start the command where all nodes "):
        ray_cluster._refuse_outside(("jobs/a", "/fleet/m"), "node2")


def test_an_address_where_nobody_listens_is_refused_at_once() -> None:
    with pytest.raises(OptionError, match=r"no Ray cluster at 127.0.0.1:\d+: .*refused; start one with `ray start"):
        ray_cluster._refuse_silent(f"127.0.0.1:{free_port()}")


def test_what_a_node_measured_is_used_by_another_but_for_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")

    def cache(node: str) -> Cache:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / node))
        return Cache(derivations_folder())

    first = cache("first")
    first.tensors("old", {}, lambda: {"x": torch.ones(1)})
    before = {entry.file.name for entry in entries(derivations_folder())}
    for kind in ("statistics", STREAMS):
        first.tensors(kind, {"seed": 0}, lambda: {"x": torch.ones(2)})
    names = tuple(ray_cluster._new_entries(before))
    content = packed_files(names, derivations_folder())
    second = cache("second")
    for _ in range(2):
        ray_cluster._take_entries(((names, "reference"),), {"reference": content}.pop)
    taken = second.tensors("statistics", {"seed": 0}, dict)
    assert torch.equal(taken["x"], torch.ones(2)) and len(names) == 1
    assert not second.has(STREAMS, {"seed": 0}) and not second.has("old", {})
