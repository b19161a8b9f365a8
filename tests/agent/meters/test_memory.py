"""Memory: of this process, of the machine, and of the GPU's allocator."""

import os

from captured import NVMAP

from edgevit.agent.meters import memory


def test_nvmap_gives_what_one_process_holds():
    assert memory.parse_nvmap(NVMAP, 7979) == 23525644 * 1024
    assert memory.parse_nvmap(NVMAP, 4711) == (1 << 20) + (2 << 20)
    assert memory.parse_nvmap(NVMAP, 1) is None
    newer = "CLIENT PROCESS PID PSS SIZE\nuser nvargus-daemon 4678 0K 76K\ntotal 64K 76K\n"
    assert memory.parse_nvmap(newer, 4678) == 76 * 1024
    assert memory.parse_nvmap("", 1) is None


def test_memory_is_the_lowest_that_was_available_and_the_peak_of_the_process(board):
    root = board(meminfo="MemTotal: 9000 kB\nMemAvailable:    8000 kB\n", status="VmHWM:\t  300 kB\nVmRSS: 200 kB\n")
    with memory.Meter(root) as meter:
        board(meminfo="MemAvailable: 5000 kB\n")
        meter.read()
        board(meminfo="MemAvailable: 7000 kB\n")
    assert meter.figures() == {
        "memory_peak_rss_bytes": 300 * 1024,
        "memory_available_before_bytes": 8000 * 1024,
        "memory_available_min_bytes": 5000 * 1024,
        "memory_available_after_bytes": 7000 * 1024,
        "memory_nvmap_bytes": None,
    }


def test_memory_of_the_gpu_is_the_most_that_this_process_held(board):
    table = "CLIENT PROCESS PID SIZE\nuser python3 {pid} {size}K\nuser Xorg 1 9999K\ntotal 1G\n"
    root = board(nvmap=table.format(pid=os.getpid(), size=100))
    with memory.Meter(root) as meter:
        board(nvmap=table.format(pid=os.getpid(), size=300))
        meter.read()
        board(nvmap=table.format(pid=os.getpid(), size=200))
    assert meter.figures()["memory_nvmap_bytes"] == 300 * 1024
