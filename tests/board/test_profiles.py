"""Board profiles: what the shipped files say, whose board is whose, and what is wrong with a file that is."""

from __future__ import annotations

import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import ROOT

from edgevit.agent import jetson
from edgevit.board.facts import BoardFacts, PowerMode, read_facts
from edgevit.board.profiles import Profile, load_profile, match, profile_names
from edgevit.board.roofline import board_ceiling, ceiling
from edgevit.errors import ProfileError, UnknownNameError

ALL = ("agx-orin-32gb", "agx-orin-64gb", "agx-orin-industrial", "orin-nano-4gb", "orin-nano-8gb", "orin-nx-16gb",
       "orin-nx-8gb")  # fmt: skip


def facts(part: str | None, gib: float | None = None, *, modes: str = "", **module: Any) -> BoardFacts:
    """As much of what the agent says of a board as tells which one it is."""
    memory = None if gib is None else int(gib * 2**30)
    table = [{"id": i, "name": name} for i, name in enumerate(modes.split())]
    return read_facts({"module": {"part": part, "memory_bytes": memory, **module}, "power_modes": table}, "orin")


@pytest.fixture
def mine(tmp_path: Path) -> Any:
    """Write a person's own profile: the Orin NX's with a text replaced."""

    def write(old: str = "", new: str = "") -> Path:
        text = (ROOT / "profiles" / "orin-nx-16gb.yaml").read_text()
        assert old in text
        (tmp_path / "mine.yaml").write_text(text.replace(old, new, 1))
        return tmp_path / "mine.yaml"

    return write


@pytest.mark.parametrize("name", ALL)
def test_a_profile_agrees_with_its_own_figures(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name and profile.tensor_cores == 4 * profile.sms
    for variant in profile.variants.values():
        tflops = profile.tensor_cores * 512 * variant.gpu_max_mhz / 1e6
        assert variant.fp16_tflops == pytest.approx(tflops, abs=0.05)
        assert f"{profile.tensor_cores} tensor cores x 512 FLOP" in variant.derivation
        assert f"{variant.gpu_max_mhz / 1e3:g} GHz" in variant.derivation
        assert variant.bandwidth_gb_per_s == pytest.approx(profile.bytes_per_s(variant.emc_max_mhz) / 1e9, rel=2e-3)
        assert len({mode.name for mode in variant.modes}) == len(variant.modes)
        for mode in variant.modes:
            assert mode.tpcs * 2 <= profile.sms and mode.cpus <= profile.cpus
            assert mode.gpu_mhz <= variant.gpu_max_mhz and mode.emc_mhz <= variant.emc_max_mhz
    assert profile.budgets and "not NVIDIA's" in profile.budgets_note
    assert profile.unconfirmed and profile.sources
    assert [release.tensorrt for release in profile.software] == ["8.5.2", "8.6.2", "10.3.0", "10.16.2"]


def test_every_file_in_the_repository_is_a_profile_that_is_shipped() -> None:
    assert tuple(profile_names()) == ALL == tuple(sorted(path.stem for path in (ROOT / "profiles").iterdir()))


@pytest.mark.parametrize(
    ("name", "sparse_int8_tops"),
    [
        ("agx-orin-64gb", (170,)),
        ("agx-orin-32gb", (108, 241 - 92)),
        ("agx-orin-industrial", (156,)),
        ("orin-nx-16gb", (60, 77)),
        ("orin-nx-8gb", (50, 77)),
        ("orin-nano-8gb", (40, 67)),
        ("orin-nano-4gb", (20, 34)),
    ],
)
def test_the_fp16_peak_is_a_quarter_of_the_published_sparse_int8_tops_of_the_gpu(
    name: str, sparse_int8_tops: tuple[float, ...]
) -> None:
    variants = load_profile(name).variants.values()
    assert [4 * variant.fp16_tflops for variant in variants] == pytest.approx(sparse_int8_tops, rel=0.025)


def test_the_module_total_is_the_input_rail_or_on_agx_the_sum_of_three() -> None:
    for name in ALL:
        rails = load_profile(name).total_rails()
        if name.startswith("agx"):
            assert rails == [("40", "VDD_GPU_SOC"), ("40", "VDD_CPU_CV"), ("40", "VIN_SYS_5V0")]
        else:
            assert rails == [("40", "VDD_IN")]


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (facts("p3701-0005", 61.3), "agx-orin-64gb"),
        (facts("p3701-0004", 29.9), "agx-orin-32gb"),
        (facts("p3701-0008", 60), "agx-orin-industrial"),
        (facts("p3767-0000", 15.3), "orin-nx-16gb"),
        (facts("p3767-0002", 15.3), "orin-nx-16gb"),
        (facts("p3767-0001", 7.4), "orin-nx-8gb"),
        (facts("p3767-0003", 7.44), "orin-nano-8gb"),
        (facts("p3767-0005", 7.44), "orin-nano-8gb"),
        (facts("p3767-0004", 3.6), "orin-nano-4gb"),
        (facts("p3767-0003"), "orin-nano-8gb"),  # memory not readable
        # Boards that give the family's first number instead of their own: memory, then power modes tell.
        (facts("p3767-0000", 3.6), "orin-nano-4gb"),
        (facts("p3767-0000", 7.4, modes="MAXN 10W 15W 20W"), "orin-nx-8gb"),
        (facts("p3767-0000", 7.4, modes="15W 25W MAXN_SUPER"), "orin-nano-8gb"),
        (facts("p3701-0000", 61.3), "agx-orin-64gb"),
        (facts("p3701-0000", 29.9, modes="MAXN MODE_15W MODE_30W MODE_50W"), "agx-orin-64gb"),  # the first kits
        (facts("p3701-0000", 29.9, modes="MAXN MODE_15W MODE_30W MODE_40W"), "agx-orin-32gb"),
        # A person's own power mode, or one of a newer JetPack, is in no profile.
        (facts("p3701-0000", 61.3, modes="MAXN MODE_15W MODE_30W MODE_50W QUIET"), "agx-orin-64gb"),
        (facts("p3701-0000", 29.9, modes="MAXN MODE_15W MODE_30W MODE_50W QUIET"), "agx-orin-64gb"),
        (facts("p3701-0000", 29.9, modes="MAXN MODE_15W MODE_30W MODE_40W QUIET"), "agx-orin-32gb"),
        (facts("p3701-0000", 29.9, modes="QUIET LOUD"), "agx-orin-64gb"),
        # The carrier's name misleads: a Nano calls itself an NX.
        (facts("p3767-0004", 3.6, model="NVIDIA Orin NX Engineering Reference Developer Kit"), "orin-nano-4gb"),
    ],
)
def test_a_module_is_recognised(found: BoardFacts, name: str) -> None:
    profile = match(found)
    assert profile is not None and profile.name == name
    profile.check(found)


TREES = [path for path in (ROOT / "tests" / "boards").glob("*-jetpack*") if (path / "proc").is_dir()]


@pytest.mark.parametrize("tree", TREES, ids=lambda path: path.name)
def test_the_board_of_a_captured_tree_is_recognised_and_its_modes_are_those_of_its_profile(tree: Path) -> None:
    modes = jetson.power_modes(str(tree))
    found = read_facts({"module": jetson.identify(str(tree)), "power_modes": modes}, "orin")
    profile = match(found)
    assert profile is not None and tree.name.startswith(f"{profile.name}-jetpack")
    for seen in modes:
        expected = profile.mode(seen["name"], super_clocks=found.module.super)
        assert (seen["id"], seen["cpus_online"]) == (expected.id, expected.cpus)
        by_profile = ceiling(profile, expected)
        by_board = board_ceiling(profile, replace(found, power_mode=PowerMode(seen["id"], seen["name"])))
        assert by_board.tensor_cores == by_profile.tensor_cores
        assert by_board.bytes_per_s == by_profile.bytes_per_s
        assert by_board.gpu_hz == pytest.approx(by_profile.gpu_hz, rel=0.04)  # JetPack 5's cap is the higher one


@pytest.mark.parametrize(
    "found",
    [
        facts("p3767-0000", 7.4),  # an NX or a Nano
        facts("p3767-0000", 7.4, modes="15W QUIET"),
        facts("p3767-0003", 15.3),
        facts("p2888-0001", 15.3),  # a Xavier
        facts(None, 7.4),
        BoardFacts(),
    ],
)
def test_a_module_that_could_be_several_or_is_none_is_not_guessed(found: BoardFacts) -> None:
    assert match(found) is None


def test_a_profile_of_another_board_is_refused_with_the_right_one() -> None:
    with pytest.raises(ProfileError) as raised:
        load_profile("orin-nx-16gb").check(facts("p3767-0005", 7.44))
    assert str(raised.value) == (
        "profile orin-nx-16gb is for p3767-0000 or p3767-0002 with 14 to 18 GiB, and the board has p3767-0005 with "
        "7.4 GiB; try --profile orin-nano-8gb"
    )
    with pytest.raises(ProfileError, match="the board has no Jetson module with unknown memory; `edgevit profiles`"):
        load_profile("orin-nx-16gb").check(BoardFacts())


def test_modes_are_found_by_name_and_super_clocks_on_request() -> None:
    nano = load_profile("orin-nano-8gb")
    assert nano.mode("15W").gpu_mhz == 624.75 and nano.mode("15W", super_clocks=True).gpu_mhz == 612
    assert nano.mode("MAXN_SUPER").gpu_mhz == 1020
    assert load_profile("agx-orin-64gb").mode("MAXN", super_clocks=True).gpu_mhz == 1300.5  # it has no Super clocks
    with pytest.raises(UnknownNameError, match="orin-nano-8gb has no power mode 'MAXN'; did you mean 'MAXN_SUPER'"):
        nano.mode("MAXN")


def test_a_mode_is_bounded_by_the_higher_cap_of_the_two_jetpacks() -> None:
    assert load_profile("orin-nx-16gb").mode("25W").gpu_hz == 420.75e6


def test_a_profile_of_ones_own_is_read_by_path_and_cannot_be_changed_later(mine: Any) -> None:
    profile = load_profile(mine("p99<33ms", "p99<8ms"))
    assert profile.budgets[0] == "p99<8ms"
    with pytest.raises(ValueError, match="frozen"):
        profile.budgets = ()  # type: ignore[misc]


def test_the_json_of_a_profile_is_a_profile(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(load_profile("orin-nano-4gb").model_dump_json())
    assert load_profile(tmp_path / "mine.json") == load_profile("orin-nano-4gb")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("sms:", "smz:", "unknown key 'smz'; did you mean 'sms'?"),
        ("sms:", "zzz:", "unknown key 'zzz'; known: name, module, parts"),
        ("tpcs: 4", "tcps: 4", "unknown key 'variants.standard.modes.0.tcps'; did you mean 'tpcs'?"),
        ("label: VDD_IN", "lable: VDD_IN", "unknown key 'rails.0.lable'; did you mean 'label'?"),
        ("sms: 8\n", "", "lacks sms"),
        ("tpcs: 4", "tpcs: many", "has 'many' as variants.standard.modes.0.tpcs, expected a valid integer"),
        ("tpcs: 4", "tpcs: 0", "has 0 as variants.standard.modes.0.tpcs, expected greater than 0"),
        ("super:", "supra:", "has 'supra' as variants.supra.[key], expected 'standard' or 'super'"),
        ("standard:", "super2:", "'super2'"),
        ('address: "40"', "address: 40", "has 40 as rails.0.address, expected a valid string"),
        ("fp16_tflops: 15.0", "fp16_tflops: 20", "fp16_tflops of standard is 20; its clock gives 15.0"),
        ("bandwidth_gb_per_s: 102.4", "bandwidth_gb_per_s: 68", "bandwidth_gb_per_s of standard is 68; its clock"),
        ("default_mode: 15W", "default_mode: 16W", "default_mode 16W is none of its modes: MAXN, 10W, 15W, 25W"),
        ("p99<33ms", "p99 is small", "budget 'p99 is small' is not of the form metric, comparison, value, unit"),
        ("parts: [", "parts: ][", "is not YAML: "),
        ("name: orin", "name: \x07", "is not YAML: "),
        ("memory_gb: 16", "memory_gb: 2001-99-99", "is not YAML: "),
    ],
    ids=lambda v: v[:20],
)
def test_a_file_with_a_mistake_is_one_line_that_names_it(mine: Any, old: str, new: str, said: str) -> None:
    with pytest.raises(ProfileError) as raised:
        load_profile(mine(old, new))
    assert said in str(raised.value) and "mine.yaml" in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("content", ["", "- a\n", "just text", "42"])
def test_a_file_that_is_no_profile_at_all(tmp_path: Path, content: str) -> None:
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(ProfileError, match=r"mine\.yaml has .*, expected an object"):
        load_profile(tmp_path / "mine.yaml")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"there is no .*none\.yaml; check the path"):
        load_profile(tmp_path / "none.yaml")
    (tmp_path / "mine.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProfileError, match="is not text in UTF-8"):
        load_profile(tmp_path / "mine.yaml")


def test_without_standard_clocks_there_is_no_profile(tmp_path: Path) -> None:
    content = yaml.safe_load((ROOT / "profiles" / "orin-nx-16gb.yaml").read_text())
    del content["variants"]["standard"]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ProfileError, match="variants has no 'standard'"):
        load_profile(tmp_path / "mine.yaml")


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="no profile 'orin-nx-16'; did you mean 'orin-nx-16gb'"):
        load_profile("orin-nx-16")


@pytest.mark.slow
def test_the_wheel_holds_every_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = pytest.importorskip("setuptools.build_meta")
    source = tmp_path / "source"
    kept = shutil.ignore_patterns("__pycache__", "*.egg-info")
    source.mkdir()
    for name in ("edgevit", "profiles"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=kept)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    monkeypatch.chdir(source)
    monkeypatch.setattr("sys.argv", ["setup.py"])
    (tmp_path / "wheel").mkdir()
    wheel = build.build_wheel(str(tmp_path / "wheel"))
    with zipfile.ZipFile(tmp_path / "wheel" / wheel) as archive:
        for name in ALL:
            shipped = archive.read(f"edgevit/board/shipped/{name}.yaml")
            assert Profile.model_validate(yaml.safe_load(shipped)) == load_profile(name)
