"""Jobs on a Ray cluster of two nodes, one of which is lost."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sys
from dataclasses import replace
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from threading import Thread
from typing import Any

import bad_jobs
import pytest
import torch
from board_fixtures import free_port

import edgevit
from edgevit.derivation.cache import STREAMS, Cache, derivations_folder, entries
from edgevit.errors import JobsError, OptionError
from edgevit.jobs import ray_cluster, runners
from edgevit.jobs.parcels import packed_files
from edgevit.jobs.ray_cluster import run_on_ray
from edgevit.jobs.runners import Job, Retry


@pytest.mark.parametrize(("module", "address"), [("ray", "auto"), ("grpc", "ray://head:10001")])
def test_without_ray_or_its_client_the_command_that_installs_it_is_named(
    module: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(OptionError, match=r"--ray needs Ray: pip install 'edgevit\[fleet\]'"):
        list(run_on_ray([Job("a", "", bad_jobs.count)], {}, address=address, threads=1))


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
        if isinstance(result, Retry):
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


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("version", "reason", "address"),
    [
        ("9.9.9", r"has edgevit 9\.9\.9, and the command .*", "client_address"),
        (None, r"cannot load this edgevit \(.*\)", "address"),
    ],
)
def test_a_node_of_another_edgevit_or_of_none_is_refused_in_one_line_that_names_it(
    version: str | None, reason: str, address: str, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers of a second node import a copy of edgevit with another version, or a package without modules."""
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "node" / "edgevit"
    if version is None:
        other.mkdir(parents=True)
        (other / "__init__.py").touch()
    else:
        shutil.copytree(Path(edgevit.__file__).parent, other, ignore=shutil.ignore_patterns("__pycache__"))
        (other / "__init__.py").write_text(f"__version__ = {version!r}\n")
    with monkeypatch.context() as of_node:
        of_node.setenv("PYTHONPATH", os.pathsep.join([str(other.parent), os.environ["PYTHONPATH"]]))
        cluster.add_node(num_cpus=1)
    with pytest.raises(
        OptionError, match=f"^the Ray cluster at .*: {socket.gethostname()} {reason}; install"
    ) as refused:
        list(run_on_ray([Job("a", "a", bad_jobs.count)], {}, address=getattr(cluster, address), threads=1))
    assert "\n" not in str(refused.value) and not list(tmp_path.glob("a"))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_each_derivation_has_a_gpu_for_itself(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray takes a node's word for its GPUs, and names them to tasks as on a machine that has some."""
    monkeypatch.chdir(tmp_path)
    cluster.add_node(num_cpus=4, num_gpus=2)
    (tmp_path / "begun").mkdir()
    jobs = [Job(name, str(tmp_path / "begun"), bad_jobs.visible_gpu, on_gpu=True) for name in ("a", "b", "c")]
    events = list(run_on_ray(jobs, {}, address=cluster.address, threads=1))
    assert [job.name for job, result in events[:2] if result is None] == ["a", "b"] and events[2][1] is not None
    gpus = {job.name: result for job, result in events if result is not None}
    assert {gpus["a"], gpus["b"]} == {"0", "1"} and gpus["c"] in ("0", "1"), gpus


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_another_python_is_refused_in_one_line_that_names_both(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one Python here: the command tells Ray another version of itself, and Ray compares it."""
    monkeypatch.setattr("ray._private.utils.compute_version_info", lambda: ("2.1.0", "3.99.0"))
    for address in (cluster.address, cluster.client_address):
        with pytest.raises(OptionError, match=r"Python: 3\.1.*Python: 3\.99\.0; install the same of both") as refused:
            list(run_on_ray([Job("a", "a", bad_jobs.count)], {}, address=address, threads=1))
        assert "\n" not in str(refused.value)


# As Ray's client raises it where the server of a connection takes longer than 30 s to start.
TRACEBACK = """Initialization failure from server:
Traceback (most recent call last):
  File "/ray/util/client/server/proxier.py", line 780, in Datapath
    raise RuntimeError(
RuntimeError: Proxy failed to Connect to backend! Check
`ray_client_server.err` on the head node.
"""


@pytest.mark.parametrize(
    ("address", "text", "reason"),
    [
        (
            "ray://head:1",
            TRACEBACK,
            r"at ray://head:1: RuntimeError: Proxy failed .* Check `.* node; try .* Ray 2.60.0 and Python 3",
        ),
        (
            "ray://head:1",
            f"{TRACEBACK}Version mismatch:\n    Ray: 1\n",
            "at ray://.* mismatch: Ray: 1; install the same",
        ),
        ("ray://head:1", "ray client connection timeout", "timeout; try again, or another port: .*10001"),
        ("auto", "Could not find any\nrunning instance.", "no Ray cluster at auto: .* any running instance; start one"),
    ],
)
def test_the_error_of_ray_becomes_one_line_with_the_end_of_its_traceback(address: str, text: str, reason: str) -> None:
    message = ray_cluster._refusal(address, text, "2.60.0")
    assert re.search(reason, message) and "\n" not in message and "File" not in message, message


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_port_of_the_client_or_of_something_else_is_refused_in_place_of_the_head(cluster: Any) -> None:
    ray_cluster._refuse_others(cluster.address)
    client = cluster.client_address.removeprefix("ray://")
    with pytest.raises(OptionError, match=f"port of Ray's client: try --ray ray://{client}$"):
        ray_cluster._refuse_others(client)
    with HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(OptionError, match="does not answer as the head of one, whose port is usually 6379"):
            ray_cluster._refuse_others(f"127.0.0.1:{server.server_port}")
        server.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_lost_connection_of_the_client_is_told_in_one_line(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_CLIENT_RECONNECT_GRACE_PERIOD", "1")
    events = run_on_ray([Job("a", str(tmp_path), bad_jobs.wait)], {}, address=cluster.client_address, threads=1)
    next(events)
    (server,) = cluster.head_node.all_processes["ray_client_server"]
    for pid in [server.process.pid, *children(server.process.pid)]:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(JobsError, match=r"^the connection to .* is lost; the same command continues$"):
        list(events)


def children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        (f"127.0.0.1:{free_port()}", r"no Ray cluster at 127.0.0.1:\d+: .*refused; start one with `ray start"),
        ("ray://head", "--ray ray://head has no port; .* ray://head:10001"),
    ],
    ids=["silent", "no port"],  # a free port differs from process to process
)
def test_an_address_where_nobody_listens_or_without_a_port_is_refused_at_once(address: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        ray_cluster._refuse_silent(address)


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
