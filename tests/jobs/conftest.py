from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from board_fixtures import free_port, of_processes
from small_base import PLAN


@pytest.fixture
def plan(tmp_path: Path) -> Any:
    """Write the small plan with some keys changed."""

    def write(**changed: Any) -> Path:
        held = {**PLAN, "out": str(tmp_path / "out"), **changed}
        file = tmp_path / "jobs.yaml"
        file.write_text(yaml.safe_dump({k: v for k, v in held.items() if v is not None}))
        return file

    return write


PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A local Ray cluster of one node with one processor; `add_node` adds more, `client_address` is that of ray://."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # 15 is nothing on a machine that does something else, too
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "120")
    monkeypatch.setenv("RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S", "120")  # 30 s is short on a busy machine
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # of the nodes, which import the jobs

    class WithPorts(Cluster):  # type: ignore[misc]
        """A raylet waits 15 s for agents that choose their ports, which a busy machine exceeds."""

        def add_node(self, **given: Any) -> Any:
            return super().add_node(**{name: free_port() for name in PORTS}, **given)

    port = free_port()
    head = {"num_cpus": 1, "include_dashboard": False, "ray_client_server_port": port}
    started = WithPorts(initialize_head=True, head_node_args=head)
    started.client_address = f"ray://{started.address.partition(':')[0]}:{port}"
    yield started
    started.shutdown()


@pytest.fixture
def blind_node(cluster: Any, tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Add a node with one processor that sees an empty folder in place of a given one; give the number of its raylet.

    Its cache is a small file system of its own, or as large as the machine's memory.
    """
    can = subprocess.run(["unshare", "-m", "true"], capture_output=True)
    if can.returncode:
        pytest.skip("no mount namespaces here")
    processes: list[subprocess.Popen[bytes]] = []

    def add(hidden: Path, size: str = "50%") -> int:
        cache = tmp_path / "second_cache"
        cache.mkdir()
        names = ("metrics-export-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port")
        ports = " ".join(f"--{name}={free_port()}" for name in (*names, "runtime-env-agent-port"))
        python = f"{shlex.quote(sys.executable)} -c 'from ray.scripts.scripts import main; main()'"
        script = (
            f"mount -t tmpfs tmpfs {hidden} && mount -t tmpfs -o size={size} tmpfs {cache} && cd / && exec {python} "
            f"start --block --address={cluster.address} --num-cpus=1 --resources='{{\"blind\": 1}}' "
            f"--object-store-memory=100000000 {ports}"
        )
        environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
        command = ["unshare", "-m", "sh", "-c", script]
        processes.append(subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL))
        first = {node["NodeID"] for node in cluster.global_state.node_table()}
        while True:
            assert processes[-1].poll() is None
            nodes = [node for node in cluster.global_state.node_table() if node["NodeID"] not in first]
            if nodes and nodes[0]["Alive"]:
                return next(
                    pid
                    for pid, text in of_processes("cmdline")
                    if "raylet" in text.partition("\0")[0] and f"--node_id={nodes[0]['NodeID']}" in text.split("\0")
                )
            time.sleep(0.1)

    yield add
    for process in processes:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)
