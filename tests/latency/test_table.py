"""A table from runs that are there: nothing is measured again, every term is found, and noise is told."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import some_costs
from some_costs import FUSED, SIZES, TARGET, made_up, runtime
from some_runs import DENSE, watts

from edgevit.board.bench import Turns
from edgevit.board.facts import BoardFacts, CudaFacts, OnnxRuntime
from edgevit.derivation.allocate.cost_table import Origin
from edgevit.errors import EngineError, UnfitBoardError
from edgevit.latency import table as module
from edgevit.latency.grid import Grid
from edgevit.latency.measure import StackBench
from edgevit.latency.stacks import Stack
from edgevit.latency.store import Store
from edgevit.latency.table import measured_table
from edgevit.latency.target import MeasurementTarget
from edgevit.network.anatomy import BlockDims
from edgevit.network.classifier import with_features
from edgevit.network.cost import Geometry
from edgevit.progress import Silent

pytestmark = pytest.mark.usefixtures("examined_once")


class Warnings(Silent):
    def __init__(self):
        self.seen, self.noted = [], []

    def warn(self, text):
        self.seen.append(text)

    def note(self, text):
        self.noted.append(text)


def test_every_term_is_found_and_nothing_is_measured_again(fill, tmp_path, origin):
    network = fill()
    table = measured_table(network, TARGET, points=0, folder=tmp_path)
    dims = list(network.dims)
    table.check("vit", dims, network.geometry, FUSED)
    table.origin.check(origin)
    assert 0 < table.noise < 0.02 and "onnxruntime cpu, fp32, 1 thread" in table.measured_on
    prices = table.in_quantity("ms")
    assert prices.base == pytest.approx(made_up(Grid.of(dims, FUSED).anchor), rel=0.01)
    assert prices.attention(2, 20, 20) == pytest.approx(0.9, rel=0.03)
    assert prices.ffn(200) == pytest.approx(2.2, rel=0.03) and prices.fixed == pytest.approx(2, rel=0.1)
    assert prices.together == pytest.approx(-0.05, abs=0.03)
    assert table.in_quantity("mj").base == pytest.approx(1200 * prices.base, rel=0.01)


def test_every_stage_has_its_costs_and_the_base_takes_what_it_was_measured_to(small_vit, origin, tmp_path):
    network = small_vit("swin_tiny_patch4_window7_224", depths=[2, 1], window_size=2)
    some_costs.fill(network, origin, tmp_path, sizes=(), energy=False)
    table = measured_table(network, TARGET, points=0, folder=tmp_path)
    table.check("swin", list(network.dims), network.geometry, FUSED)
    assert [(s.embed, s.tokens, s.pairs, s.depth) for s in table.base.stages] == [(64, 64, 256, 2), (128, 16, 64, 1)]
    first, second = (prices := table.in_quantity("ms")).of_stages
    grids = module.grids_of(network, FUSED, narrower=True, tokens=True)
    assert prices.base == pytest.approx(made_up(Stack.joined([grid.anchor for grid in grids])), rel=0.01)
    assert first.attention(2, 32, 32) == pytest.approx(1.14, rel=0.03) and first.ffn(256) == pytest.approx(
        2.76, rel=0.03
    )
    assert second.attention(4, 32, 32) == pytest.approx(2 * 1.78, rel=0.03)
    assert second.ffn(512) == pytest.approx(2 * 5.32, rel=0.03) and first.fixed == second.fixed == pytest.approx(
        2, rel=0.1
    )


@pytest.mark.parametrize("stays", [[0, 1], [2, 3, 4]])
def test_a_base_may_have_lost_a_stage_and_single_sites(small_vit, origin, tmp_path, stays):
    network = small_vit("swin_tiny_patch4_window7_224", depths=[2, 3], window_size=2)
    network.keep_blocks(stays)
    network.resize([*network.dims[:2], *(dims.without("ffn") for dims in network.dims[2:])])
    some_costs.fill(network, origin, tmp_path, sizes=(), energy=False)
    table = measured_table(network, TARGET, points=0, folder=tmp_path)
    table.check("swin", (dims := list(network.dims)), network.geometry, FUSED)
    (most,) = {replace(d, shifted=False) for d in dims[:2]}
    anchor = Stack(2, most.heads, most.qk, most.ffn, stage=most.stage)
    alone = made_up(Stack(1, most.heads, most.qk, 0, stage=most.stage)) - 2
    expected = made_up(anchor) + alone * (len(dims) - 2)
    assert table.in_quantity("ms").base == pytest.approx(expected, rel=0.02)


@pytest.mark.slow
def test_narrower_embeddings_are_priced_from_a_few_stacks_each(fill, tmp_path):
    table = measured_table(fill(), TARGET, points=0, folder=tmp_path)
    assert (ms := table.in_quantity("ms")).embeds == [16, 32, 64] and ms.token_counts == [17]
    for quantity, unit in (("ms", 1), ("mj", 1200)):
        prices = table.in_quantity(quantity)
        for embed in (16, 24, 32, 48):
            there = prices.at(embed)
            assert there.attention(2, 20, 20) == pytest.approx(unit * (0.5 + 0.4 * embed / 64), rel=0.04)
            assert there.ffn(200) == pytest.approx(unit * (0.2 + 2 * embed / 64), rel=0.04)
            assert there.fixed == pytest.approx(unit * (1 + embed / 64), rel=0.1)


@pytest.mark.slow
def test_fewer_tokens_are_priced_from_five_stacks_each_where_they_are_asked_for(fill, tmp_path):
    network = fill(tokens=True)
    with_all = measured_table(network, TARGET, points=0, folder=tmp_path).in_quantity("ms")
    assert with_all.token_counts == [8, 16, 17], "what is kept is used"
    table = measured_table(network, TARGET, points=0, tokens=True, folder=tmp_path)
    assert table.in_quantity("ms").token_counts == [8, 16, 17]
    for quantity, unit in (("ms", 1), ("mj", 1200)):
        prices = table.in_quantity(quantity)
        for tokens in (16, 8):
            there = prices.at(64, tokens)
            assert there.attention(2, 20, 20) == pytest.approx(unit * (0.5 + 0.4 * tokens / 17), rel=0.04)
            assert there.ffn(200) == pytest.approx(unit * (0.2 + 2 * tokens / 17), rel=0.04)
            assert prices.cut(tokens) == pytest.approx(unit * 0.1, abs=unit * 0.02)
        narrow = prices.at(32, 8)
        assert narrow.ffn(200) == pytest.approx(unit * (0.2 + 2 * 32 / 64 * 8 / 17), rel=0.05)


@pytest.mark.slow
def test_an_embedding_that_cannot_be_narrowed_or_is_not_to_be_costs_no_stacks(fill, tmp_path, monkeypatch):
    network = fill(energy=False)

    def asked(**how):
        labels = []
        monkeypatch.setattr(
            module.StackBench, "measure", lambda self, stacks, rounds: labels.extend(s.embed for s in stacks)
        )
        measured_table(network, TARGET, points=0, folder=tmp_path, **how)
        return set(labels)

    assert asked() == {None, 32, 16} and asked(narrower=False) == {None}
    monkeypatch.setattr(Geometry, "fixed_embed", "a norm before the first block")
    assert asked() == {None}


@pytest.mark.slow
def test_sizes_that_are_asked_for_are_in_the_table_and_so_is_the_rest(fill, tmp_path, origin):
    network = fill(energy=False)
    table = measured_table(network, TARGET, sizes=SIZES, folder=tmp_path)
    assert table.in_quantity("ms").ffns.sizes[0].tolist() == [8, 32, 64, 100, 128, 192, 256]
    assert table.quantities == ("ms",)
    (run, *_) = Store.of(module._key(network, origin, runtime()), tmp_path).runs()
    Store.of(module._key(network, origin, runtime()), tmp_path).add([replace(run, power=watts(*(1.0,) * 61))])
    table = measured_table(network, TARGET, points=0, folder=tmp_path)
    assert table.quantities == ("ms",), "energy of some runs is that of none"


@pytest.mark.slow
def test_sizes_that_noise_cannot_tell_apart_may_be_asked_for(fill, tmp_path):
    told = Warnings()
    close = [BlockDims(2, 24, 24, n) for n in range(96, 129)]  # steps of 0.04 in 10
    network = fill(noise=0.03, energy=False, sizes=close)
    table = measured_table(network, TARGET, sizes=close, folder=tmp_path, progress=told)
    assert table.in_quantity("ms").ffns.costs.size == 38 and told.seen == []


def test_noise_is_told_with_what_to_do_and_refused_where_it_hides_nearly_everything(fill, tmp_path):
    told = Warnings()
    measured_table(fill(noise=0.2, energy=False), TARGET, points=0, folder=tmp_path, progress=told)
    assert any("steps from one size to the next, such as" in text and "--lock-clocks" in text for text in told.seen)
    with pytest.raises(
        UnfitBoardError,
        match=r"noise of [\d.]+% in ms hides \d+ of \d+ .* more with `edgevit cost --rounds`",
    ):
        measured_table(fill(noise=3.0, energy=False), TARGET, points=0, folder=tmp_path)


@pytest.mark.slow
def test_sizes_that_cost_next_to_nothing_are_told_and_make_a_table(fill, tmp_path):
    """A GPU that one image is far from filling: no noise is to blame that widths take no time."""
    told = Warnings()
    network = fill(noise=0.01, energy=False, per_width=1e-5)
    table = measured_table(network, TARGET, points=0, folder=tmp_path, progress=told)
    assert any("steps from one size to the next take next to nothing, such as" in text for text in told.noted)
    assert told.seen == []
    prices = table.in_quantity("ms")
    assert prices.attention(2, 32, 32) == pytest.approx(0.5, rel=0.1)
    assert prices.ffn(256) == pytest.approx(0.2, rel=0.1)


def test_energy_is_refused_before_anything_is_measured_where_no_power_can_be_read(fill, tmp_path):
    network = fill()
    with pytest.raises(UnfitBoardError, match=r"--mj: no power can be read on this machine.*; give --ms"):
        measured_table(network, TARGET, energy=True, folder=tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


def test_energy_is_refused_where_no_profile_says_which_rails_are_the_modules(fill, tmp_path, monkeypatch):
    monkeypatch.setattr(BoardFacts, "has_power", True)
    with pytest.raises(UnfitBoardError, match=r"--mj: no profile says which rails of this machine .*; give --profile"):
        measured_table(fill(), TARGET, energy=True, folder=tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.slow
def test_noise_of_energy_is_judged_where_energy_is_asked_for(fill, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_check_power", lambda *_: None)
    told = Warnings()
    measured_table(fill(noise=0.2), TARGET, points=0, energy=True, folder=tmp_path, progress=told)
    assert [text.split(" hides")[0].rpartition(" ")[2] for text in told.seen if "hides" in text] == ["ms", "mj"]


@pytest.mark.slow
def test_runs_that_tell_no_energy_are_made_again_where_energy_is_asked_for(fill, tmp_path, monkeypatch):
    """As those of a board that no profile was given for."""
    network = fill(energy=False, sizes=())
    monkeypatch.setattr(module, "_check_power", lambda *_: None)
    monkeypatch.setattr(StackBench, "_prepare", lambda *_: None)

    def with_power(bench, stacks, number):
        for stack in stacks:
            (run, *_) = (run for run in bench._runs if run.label == stack.label)
            watt = watts(*(made_up(stack),) * 61)
            bench._keep(Turns((replace(run, session=f"new {number}", power=watt),), {}, None, ()))

    monkeypatch.setattr(StackBench, "_round", with_power)
    table = measured_table(network, TARGET, points=0, rounds=2, energy=True, folder=tmp_path)
    assert table.in_quantity("mj").base == pytest.approx(1200 * table.in_quantity("ms").base, rel=0.01)


def test_neither_weights_nor_classes_nor_depth_are_part_of_the_key_and_shapes_are(small_vit, origin):
    def key(origin=origin, **args):
        return module._key(small_vit(**args), origin)

    assert key() == key(num_classes=3) == key(depth=4)
    assert key() != key(embed_dim=128) and key() != key(img_size=64) and key() != key(init_values=0.1)
    swin = {"name": "swin_tiny_patch4_window7_224", "depths": [2, 1]}
    whole, of_tokens = (with_features(small_vit(), tokens) for tokens in (None, "patches"))
    assert key() == module._key(whole, origin) != module._key(of_tokens, origin), "its head reads every patch"
    assert key() != module._key(with_features(small_vit(), "class", (1, 2)), origin), (
        "tokens get their whole width back"
    )
    assert key(**swin) == key(**{**swin, "depths": [2, 3]}) != key(**swin, window_size=2)


OTHERS = {
    "board": "another board", "processor": "another", "power_mode": "15W", "clocks_locked": True, "runner": "another",
    "provider": "cuda", "threads": 3, "precision": "fp16", "batch": 2,
}  # fmt: skip


@pytest.mark.parametrize("name", Origin.model_fields)
def test_measurements_are_kept_apart_by_all_that_says_where_they_were_made(small_vit, origin, tmp_path, name):
    network = small_vit()

    def store(there):
        return Store.of(module._key(network, there), tmp_path)

    store(origin).add([DENSE])
    there = origin.model_copy(update={name: OTHERS.get(name, "0.0.1")})
    seen = store(there).runs()
    assert there != origin and len(store(origin).runs()) == 1
    assert seen == ([DENSE] if name == "edgevit" else [])  # an update of edgevit keeps what was measured


def test_another_onnx_runtime_or_another_gpu_is_measured_anew(small_vit, origin):
    def found(version, device="Orin", **given):
        facts = BoardFacts(onnxruntime=OnnxRuntime(version, ()), cuda=CudaFacts(device=device))
        return MeasurementTarget(**given).runtime(SimpleNamespace(facts=facts))

    assert found("1.22.0") == found("1.22.0", "another") == "1.22.0", "no GPU computes"
    assert found("1.22.0", provider="cuda") == "1.22.0, Orin" and found("1.22.0", runner="tensorrt") is None
    keys = [module._key(small_vit(), origin, runtime) for runtime in ("1.22.0", "1.23.0", "1.22.0, Orin")]
    assert all(keys.count(key) == 1 for key in keys)


def test_int8_needs_a_tensorrt_that_takes_types_from_a_file(small_vit, play, tmp_path):
    play(release="8.5.2")
    with pytest.raises(EngineError, match=r"TensorRT 8\.5\.2\S* takes no types from a file"):
        measured_table(small_vit(), MeasurementTarget(runner="tensorrt", precision="int8"), folder=tmp_path)
