"""What the doctor says of captured boards, and of each thing that can be wrong with one."""

import copy
from functools import partial

import pytest

from edgevit.agent.examine import examine
from edgevit.board.connection import THIS_MACHINE
from edgevit.board.doctor import CHECKS, diagnose
from edgevit.board.facts import read_facts
from edgevit.board.profiles import load_profile, match
from edgevit.errors import ProfileError

NX = "orin-nx-16gb-jetpack6.2"
GIB = 2**30


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def with_libraries(facts):
    """The libraries that this machine cannot have; what a board with all of them in order would say."""
    return {
        **facts,
        "in_venv": False,
        "tensorrt": {"version": "10.16.2", "error": None},
        "cuda": {
            "binding": "ctypes",
            "error": None,
            "device": "Orin",
            "sms": 8,
            "capability": "8.7",
            "runtime": "12.6",
        },
        "trtexec": "/usr/src/tensorrt/bin/trtexec",
        "clocks_locked": True,
        "disk": {"cache_free_bytes": 40 * GIB},
    }


@pytest.fixture(scope="module")
def _healthy(tmp_path_factory):
    return {}


@pytest.fixture
def healthy(board_tree, _healthy):
    """The facts about an Orin NX in order, to be spoilt by a test; read from the captured board once."""
    if not _healthy:
        _healthy.update(with_libraries(examine(lambda message: None, str(board_tree(NX)))))
    return copy.deepcopy(_healthy)


@pytest.fixture
def bare(tmp_path):
    """The facts about a machine that tells nothing."""
    facts = examine(lambda message: None, str(tmp_path))
    return {**facts, "disk": {"cache_free_bytes": 40 * GIB}, "onnxruntime": {"version": "1.20", "providers": ["CPU"]}}


def judged(answer, profile="match", host="orin"):
    facts = read_facts(answer, host)
    return diagnose(facts, match(facts) if profile == "match" else profile)


def check_of(answer, name, profile="match", host="orin"):
    checks = {check.name: check for check in judged(answer, profile, host)}
    for check in checks.values():
        assert (check.hint is None) == (check.state == "ok"), check
        assert check.actual
    return checks[name]


def test_a_board_in_order_has_nothing_to_mend(healthy):
    checks = judged(healthy)
    assert [check for check in checks if check.state != "ok"] == []
    seen = {check.name: check.actual for check in checks}
    assert (
        len(seen) == len(checks) == len(CHECKS) - 2
    )  # nothing was left behind by an earlier process, and its clock is right
    assert seen["module"] == "Jetson Orin NX 16GB (p3767-0000, Super), profile orin-nx-16gb"
    assert seen["clocks"] == "locked, the GPU at 1173 MHz; the memory's is not known, as root alone can read it"
    assert seen["power mode"] == "MAXN_SUPER"
    assert seen["CUDA"] == "12.6 on Orin, 8 SMs, through ctypes"
    assert "VDD_IN 7.96 W" in seen["power rails"] and "each over 430 ms" in seen["power rails"]


FREE = {"cur_khz": 1, "min_khz": 306_000, "max_khz": 1_173_000, "governor": "nvhost_podgov"}
NO_METER = {"ina3221": "no INA3221", "tegrastats": "no program", "jtop": "no socket"}
ONLY_JTOP = {**NO_METER, "jtop": None}


@pytest.mark.parametrize(
    ("spoil", "name", "state", "seen", "mend"),
    [
        ({"jetpack": "5.1.2"}, "JetPack", "warning", "no fused attention", "flash JetPack 6"),
        ({"jetpack": None}, "JetPack", "warning", "not known", "nvidia-jetpack"),
        ({"l4t": "36.4.4"}, "L4T", "warning", "36.4.4: known to refuse GPU memory", "sudo reboot"),
        ({"l4t": "36.4.7"}, "L4T", "warning", "NvMapMemAllocInternalTagged", "sudo reboot"),
        ({"l4t": None}, "L4T", "warning", "cannot be read", "docker run -v"),
        ({"python": "3.6.9"}, "Python", "problem", "3.6.9", "apt install python3.8"),
        ({"tensorrt": {"version": "10.3.0", "error": None}}, "TensorRT", "warning", "wrong engines", "edgevit export"),
        ({"cuda": {"error": "no libcudart; install it"}}, "CUDA", "problem", "no libcudart", "nvidia-jetpack"),
        (
            {"cuda": {"error": "cudaErrorUnknown; try"}, "denied": ["/dev/nvmap"], "user": "ci"},
            *("CUDA", "problem", "ci may not open /dev/nvmap", "usermod -aG video,render ci"),
        ),
        ({"trtexec": None}, "trtexec", "warning", "--cross-check", "libnvinfer-bin"),
        ({"clocks_locked": None}, "clocks", "warning", "cannot be read", "--show"),
        (
            {"clocks_locked": False, "clocks": {"gpu": FREE}},
            *("clocks", "warning", "free, the GPU between 306 and 1173 MHz", "--lock-clocks"),
        ),
        ({"memory": {"total_bytes": 8 * GIB, "available_bytes": GIB}}, "memory", "warning", "1.0 GiB", "multi-user"),
        ({"memory": {"total_bytes": 8 * GIB, "available_bytes": GIB // 2}}, "memory", "problem", "0.5", "isolate"),
        ({"disk": {"cache_free_bytes": 2 * GIB}}, "disk", "warning", "2.0 GiB free", "rm -r ~/.cache/edgevit/files"),
        ({"disk": {"cache_free_bytes": 0}}, "disk", "problem", "0.0 GiB free", "rm -r"),
        ({"temperatures_c": {"cpu": 60.0, "tj": 93.4}}, "temperature", "warning", "93 °C at most (tj)", "its fan"),
        ({"meters": NO_METER, "rails": []}, "power rails", "warning", "no INA3221", "modprobe ina3221"),
        (
            {"meters": {**NO_METER, "ina3221": "root alone may read VDD_IN"}, "rails": []},
            *("power rails", "warning", "root alone", "sudo chmod a+r /sys/bus/i2c/drivers/ina3221/"),
        ),
        ({"clock_ahead_s": -1.8e9}, "clock", "warning", "20833 days behind this machine's; runs are", "set-ntp true"),
        ({"memory_clock_locked": False}, "clocks", "warning", "and the memory's is free", "sudo jetson_clocks"),
        ({"sudo": False}, "root", "warning", "need a password", "deploy/jetson/setup.sh"),
        (
            {"sudo": False, "programs": {"nvpmodel": None, "jetson_clocks": None}},
            *("root", "warning", "no nvpmodel and no jetson_clocks", "setup.sh"),
        ),
        ({"power_mode": None}, "power mode", "warning", "unknown", "sudo nvpmodel -q"),
        ({"power_mode": {"id": None, "name": "MINE"}}, "power mode", "warning", "MINE", "sudo nvpmodel -q"),
        (
            {"recovered": {"clean": False, "messages": ["not as it was found: try `sudo nvpmodel -m 2`"]}},
            *("earlier changes", "problem", "not as it was found", "nvpmodel"),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_told_with_what_mends_it(healthy, spoil, name, state, seen, mend):
    check = check_of({**healthy, **spoil}, name)
    assert check.state == state
    assert seen in check.actual and mend in check.hint
    others = {other.name: other.state for other in judged(healthy) if other.name != name}
    told = {c.name: c.state for c in judged({**healthy, **spoil}) if c.name in others}
    assert told == others


@pytest.mark.parametrize("in_venv", [True, False])
def test_a_missing_tensorrt_is_a_venv_that_hides_it_or_a_missing_package(healthy, in_venv):
    error = "no TensorRT for this Python (No module named 'tensorrt'); long advice"
    facts = {**healthy, "in_venv": in_venv, "tensorrt": {"version": None, "error": error}}
    check = check_of(facts, "TensorRT")
    assert check.state == "problem" and check.actual.endswith("'tensorrt')")
    assert "sudo apt install python3-libnvinfer tensorrt" in check.hint
    assert ("--system-site-packages" in check.hint) is in_venv


def test_a_python_that_jetpacks_tensorrt_is_not_for_is_named(healthy):
    missing = {**healthy, "tensorrt": {"version": None, "error": "no TensorRT for this Python"}}
    check = check_of({**missing, "python_path": "/home/jetson/miniforge3/bin/python3"}, "TensorRT")
    assert check.hint.startswith("/usr/bin before /home/jetson/miniforge3/bin in the PATH of a command by ssh")
    assert "PATH" not in check_of({**missing, "python_path": "/usr/bin/python3"}, "TensorRT").hint


def in_mode(facts, name):
    (mode,) = [mode for mode in facts["power_modes"] if mode["name"] == name]
    return {**facts, "power_mode": {"id": mode["id"], "name": name}}


def test_a_faster_power_mode_is_named_with_its_own_number(healthy):
    check = check_of(in_mode(healthy, "25W"), "power mode")
    assert check.state == "warning" and check.expected.startswith("MAXN_SUPER, where the GPU is fastest")
    assert check.hint == "sudo nvpmodel -m 0, or --power-mode MAXN_SUPER of edgevit bench"
    assert check.actual == "25W: its GPU clock is 408 MHz, below the 612 MHz of 15W"


def test_a_faster_mode_with_more_of_the_gpu_says_that_it_needs_a_reboot(healthy):
    check = check_of(in_mode(healthy, "15W"), "power mode")
    assert check.hint == "sudo nvpmodel -m 0 (in a terminal: it asks for a reboot)"


def test_a_mode_that_is_as_fast_for_the_gpu_is_left(healthy):
    assert check_of(in_mode(healthy, "40W"), "power mode").state == "ok"


def test_without_a_profile_no_mode_is_called_faster_and_the_module_is_unknown(healthy):
    facts = in_mode(healthy, "15W")
    assert check_of(facts, "power mode", profile=None).state == "ok"
    check = check_of(facts, "module", profile=None)
    assert check.state == "warning" and "--profile FILE" in check.hint


def test_rails_that_only_one_coarse_meter_reads_are_enough(healthy):
    check = check_of({**healthy, "rails": [], "meters": ONLY_JTOP}, "power rails")
    assert check.state == "ok" and "read through jtop" in check.actual and "no INA3221" in check.actual
    assert check_of({**healthy, "meters": ONLY_JTOP}, "jtop").actual == "its service answers"


def test_a_rail_of_the_total_that_is_missing_is_named(healthy):
    rails = [rail for rail in healthy["rails"] if rail["label"] != "VDD_IN"]
    check = check_of({**healthy, "rails": rails}, "power rails")
    assert check.state == "warning" and "VDD_IN is missing" in check.actual and check.expected == "VDD_IN"


def test_what_an_earlier_process_left_is_said(healthy):
    mended = {"clean": True, "messages": ["an earlier process was cut off: the clocks are as they were"]}
    assert "cut off" in check_of({**healthy, "recovered": mended}, "earlier changes").actual
    at_work = {"clean": False, "messages": []}
    assert "a job that is running" in check_of({**healthy, "recovered": at_work}, "earlier changes").actual


@pytest.mark.quick("orin-nx*", "*jetpack6.2.1-agx*", "*jetpack7.2.1*")
@pytest.mark.parametrize(
    ("board", "profile", "worst"),
    [
        ("agx-orin-64gb-jetpack6.2.1", "agx-orin-64gb", {"clocks", "L4T"}),
        ("agx-orin-64gb-jetpack7.2.1", "agx-orin-64gb", set()),
        ("agx-orin-64gb-jetpack5.1.1", "agx-orin-64gb", {"clocks", "JetPack"}),
        ("orin-nano-8gb-jetpack6.2.1", "orin-nano-8gb", {"clocks", "power mode", "L4T"}),
        (NX, "orin-nx-16gb", {"clocks"}),
    ],
)
def test_captured_boards_are_known_and_warned_of_what_they_are(board, profile, worst, board_tree):
    captured = examine(lambda message: None, str(board_tree(board)))
    facts = {**with_libraries(captured), "clocks_locked": captured["clocks_locked"]}
    checks = judged(facts)
    assert {check.name for check in checks if check.state != "ok"} == worst
    assert checks[0].actual.endswith(f"profile {profile}")


def test_a_machine_that_is_no_jetson_says_so_and_what_still_works(bare):
    check = check_of(bare, "module", host=THIS_MACHINE)
    assert check.state == "warning" and check.actual.startswith("no Jetson but ")
    assert "edgevit bench DIR" in check.hint
    checks = judged(bare, None, THIS_MACHINE)
    assert {check.state for check in checks[1:]} == {"ok"}
    assert not {"JetPack", "power mode", "power rails", "root"} & {check.name for check in checks}


def test_a_named_board_that_is_no_jetson_is_a_problem_and_no_other_name_is_asked_for(bare):
    bare = {**bare, "onnxruntime": None, "onnxruntime_packages": {}, "disk": {"cache_free_bytes": 0, "cache": "/big/c"}}
    here, named = ({check.name: check for check in judged(bare, None, host)} for host in (THIS_MACHINE, "orin-nx"))
    assert {name for name, check in here.items() if check.state == "problem"} == {"ONNX Runtime", "disk"}
    assert here["TensorRT"].state == "ok" and "name a board" in here["module"].hint
    assert {name for name, check in named.items() if check.state == "problem"} == {"module", "TensorRT", "disk"}
    assert named["module"].hint.startswith("check which machine `ssh orin-nx` reaches")
    assert list(named) == list(here) and "name a board" not in str(named.values())
    assert "for /big/c" in named["disk"].actual and "rm -r /big/c/files" in named["disk"].hint


def test_without_a_jetson_and_onnx_runtime_nothing_can_be_measured(bare):
    on_this_machine = partial(check_of, name="ONNX Runtime", host=THIS_MACHINE)
    check = on_this_machine({**bare, "onnxruntime": None, "onnxruntime_packages": {}})
    assert check.state == "problem" and "-m pip install onnxruntime, or onnxruntime-gpu" in check.hint
    both = {"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.22.0"}
    check = on_this_machine({**bare, "onnxruntime_packages": both})
    assert (check.state, check.expected) == ("problem", "one of the two")
    assert check.actual == "onnxruntime 1.31.1 and onnxruntime-gpu 1.22.0 side by side, which overwrite one another"
    assert "-m pip uninstall -y onnxruntime onnxruntime-gpu && " in check.hint
    gpu = {"onnxruntime": {"version": "1.22.0", "providers": ["CUDAExecutionProvider"]}}
    check = on_this_machine({**bare, **gpu, "onnxruntime_packages": {"onnxruntime-gpu": "1.22.0"}})
    assert (check.state, check.actual) == ("ok", "onnxruntime-gpu 1.22.0 (CUDA)")
    check = on_this_machine({**bare, "onnxruntime": None, "onnxruntime_packages": {"onnxruntime": "1.31.1"}})
    assert (check.state, check.actual) == ("problem", "onnxruntime 1.31.1, which cannot be imported")
    assert "--force-reinstall onnxruntime" in check.hint


def test_on_a_jetson_onnx_runtime_is_optional(healthy):
    assert check_of({**healthy, "onnxruntime": None}, "ONNX Runtime").state == "ok"


def test_a_jetson_that_tells_nothing_else_is_still_judged(bare):
    facts = {**bare, "module": {**bare["module"], "compatible": ["nvidia,tegra234"]}}
    checks = {check.name: check.state for check in judged(facts, None)}
    assert checks["TensorRT"] == "problem"
    assert all(
        checks[name] == "warning" for name in ("module", "JetPack", "L4T", "power mode", "clocks", "power rails")
    )


def test_a_jetson_in_a_container_that_hides_its_module_is_one_and_takes_a_profile_by_its_name(bare):
    facts = {**bare, "kernel": "5.15.148-tegra"}
    check = check_of(facts, "module")
    assert check.state == "warning" and check.actual.startswith("a Jetson that does not tell which, so that its power")
    assert "--profile NAME" in check.hint and "docker run --security-opt systempaths=unconfined" in check.hint
    assert "docker run -v /etc/nv_tegra_release:" in check_of(facts, "L4T").hint
    profile = load_profile("orin-nx-16gb")
    profile.check(read_facts(facts, "orin"))
    assert check_of(facts, "module", profile=profile).state == "ok"
    for other in (bare, {**facts, "module": {**facts["module"], "memory_bytes": 8 * GIB}}):
        with pytest.raises(ProfileError, match="profile orin-nx-16gb is for "):
            profile.check(read_facts(other, "orin"))


def test_the_profile_that_was_given_decides(healthy):
    assert "agx-orin-64gb" in check_of(healthy, "module", profile=load_profile("agx-orin-64gb")).actual
