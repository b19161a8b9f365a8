"""One network for every size: made from a base that knows digits, sliced, resumed, and refused what it cannot give."""

import json
import shutil
from pathlib import Path

import pytest
import timm
import torch
from family_examples import SWIN
from safetensors.torch import load_file, save_file
from seals import reseal
from small_base import ARGS, DEVICE, assert_same_weights, fewer_digits, press_ctrl_c_in_step, write_cost_table
from small_models import SWIN_ARGS

import edgevit
from edgevit.data.task import reopen
from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.policy import POLICIES
from edgevit.derivation.methods.skd.masks import masked
from edgevit.derivation.methods.skd.piad import narrowed
from edgevit.derivation.methods.skd.slices import read_supernet
from edgevit.derivation.session.derive import derive
from edgevit.derivation.session.supernet import supernet
from edgevit.errors import BudgetError, CheckpointError, Interrupted, OptionError
from edgevit.network.folder import load
from edgevit.network.opening import open_network
from edgevit.records.derivation import Accuracies
from edgevit.records.model_folder import ModelFolder
from edgevit.train.passes import accuracy_of, open_passes
from edgevit.train.settings import Training

QUICK = {"steps": 40, "batch_size": 32, "device": DEVICE, "evaluations": 2, "lr": 1e-3}
FEW = {"proxy_images": 48, "updates": 3, "points": 4}


def make(checkpoint, out, *, base="vit_tiny_patch16_224", training=None, options=None, **more):
    how = Training(**{**QUICK, **(training or {})})
    given = {"data": "digits", "model_args": ARGS, "rate": 0.65, **more}
    return supernet(
        base,
        checkpoint=checkpoint,
        out=out,
        training=how,
        options={**FEW, **(options or {})},
        **given,
    )


@pytest.fixture(scope="module")
def net(digits_checkpoint, tmp_path_factory):
    return make(digits_checkpoint, tmp_path_factory.mktemp("general") / "net", training={"steps": 60})


@pytest.fixture(scope="module")
def task_net(digits_checkpoint, tmp_path_factory):
    """For classes 3, 7 and 9 only; few steps."""
    return make(digits_checkpoint, tmp_path_factory.mktemp("task") / "net", classes="3,7,9", training={"steps": 6})


@pytest.fixture
def copied(net, tmp_path):
    shutil.copytree(net.folder, tmp_path / "copied")
    return tmp_path / "copied"


def edit(folder, change):
    reseal(Path(folder) / "supernet.json", change)


def weights(folder):
    return load_file(Path(folder) / "model.safetensors")


def test_the_folder_is_a_model_folder_and_its_curve_is_that_of_its_slices(net):
    opened = open_network(net.folder)
    assert opened.spec.head == "full" and opened.spec.rate == 0 and edgevit.load(net.folder).classes == opened.classes
    task = reopen(net.record.data, opened.preprocessing)
    passes = open_passes(Training(device="cpu"))
    assert [round(p.rate, 1) for p in net.curve] == [0.0, 0.2, 0.4, 0.7]
    for point in net.curve:
        slim = opened
        if point.rate:
            budget = make_budget(opened.spec.macs, opened.spec.params, macs=point.macs)
            slim = net.slice(slim, budget, POLICIES["fused"])
        blocks = list(slim.dims)
        assert slim.geometry.macs(blocks) == point.macs
        assert sum(p.numel() for p in slim.parameters()) == point.params
        seen = accuracy_of(slim.with_columns(task.base_columns), task.validation, task.class_names, passes)
        assert seen.top1 == point.top1
    lines = [json.loads(line) for line in (net.folder / "history.jsonl").read_text().splitlines()]
    assert {"accuracy_trained", "accuracy_pruned", "units_kept", "loss_task"} <= set(lines[-1])
    assert lines[-1]["accuracy_pruned"] == net.curve[-1].top1 and lines[-1]["accuracy_trained"] == net.curve[0].top1


@pytest.mark.slow
def test_training_under_dropout_makes_the_small_slices_better(net, digits_checkpoint, tmp_path):
    untrained = make(digits_checkpoint, tmp_path / "net", training={"steps": 0})
    assert untrained.curve[0].top1 == pytest.approx(untrained.record.base_top1, abs=0.01), "the same function"
    assert net.curve[-1].top1 > untrained.curve[-1].top1 + 0.05
    assert net.curve[0].top1 > untrained.curve[0].top1 - 0.05


@pytest.mark.parametrize(("shape", "rate"), [*((shape, 0.5) for shape in POLICIES), ("fused", 0.1), ("fused", 0.65)])
def test_a_slice_of_any_size_obeys_the_shape_policy_and_is_part_of_the_network(net, tmp_path, rate, shape):
    made = derive(method="skd", supernet=net.folder, rate=rate, shape=shape, out=tmp_path / "m")
    spec, whole = made.model.spec, load(net.folder)
    assert 0 <= (1 - rate) * whole.spec.macs - spec.macs < max(u.macs for u in net.order), "no unit more would fit"
    policy = POLICIES[shape]
    for block, slim, full in zip(spec.blocks, made.model.read(), whole.read(), strict=True):
        assert block.qk % policy.head_step == block.vo % policy.head_step == block.ffn % policy.ffn_step == 0
        assert min(block.qk, block.vo) >= policy.head_minimum and (block.qk == block.vo or not policy.equal)
        assert torch.equal(slim.ffn.w1, full.ffn.w1[: block.ffn])
        assert torch.equal(slim.attention.wv, full.attention.wv[:, : block.vo])
    assert edgevit.load(tmp_path / "m")(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_without_data_a_slice_is_the_same_and_nothing_is_claimed_to_be_measured(net, tmp_path):
    blind = derive(method="skd", supernet=net.folder, rate=0.5, out=tmp_path / "blind")
    seen = derive(method="skd", supernet=net.folder, rate=0.5, out=tmp_path / "seen", data="digits",
                  training=Training(device="cpu", batch_size=32))  # fmt: skip
    assert_same_weights(weights(tmp_path / "blind"), weights(tmp_path / "seen"))
    assert blind.model.spec == seen.model.spec
    assert blind.record.accuracy == Accuracies(None, None, None, None) and blind.record.data is None
    test = reopen(net.record.data, load(net.folder).preprocessing).test
    assert seen.record.accuracy.derived.images == len(test) and seen.record.facts.steps == 0
    assert seen.top1 > 0.4
    with pytest.raises(edgevit.errors.DataError, match="give them with --data"):
        edgevit.evaluate(tmp_path / "blind", device="cpu")


def test_a_general_network_serves_any_classes_by_their_rows(net, tmp_path):
    everything = derive(method="skd", supernet=net.folder, macs="1M", out=tmp_path / "all", head="full")
    some = derive(method="skd", supernet=net.folder, macs="1M", classes="7,2", out=tmp_path / "some")
    images = torch.randn(4, 3, 32, 32)
    assert [(c.name, c.base_index) for c in some.model.spec.classes] == [("7", 7), ("2", 2)]
    with torch.no_grad():
        assert everything.model.spec.blocks == some.model.spec.blocks
        torch.testing.assert_close(some.model(images), everything.model(images)[:, [7, 2]])


@pytest.mark.slow
def test_a_restricted_network_keeps_its_classes_or_some_of_them(task_net, tmp_path):
    assert load(task_net.folder).classes == ["3", "7", "9"]
    whole = derive(method="skd", supernet=task_net.folder, rate=0.5, out=tmp_path / "whole")
    two = derive(method="skd", supernet=task_net.folder, rate=0.5, classes=["9", "3"], out=tmp_path / "two")
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(two.model(images), whole.model(images)[:, [2, 0]])
    with pytest.raises(OptionError, match=r"for 3 classes \(3, 7, 9\), and '5' is none of them; choose"):
        derive(method="skd", supernet=task_net.folder, rate=0.5, classes="3,5", out=tmp_path / "no")
    with pytest.raises(OptionError, match=r"was made for 3 classes"):
        derive(method="skd", supernet=task_net.folder, rate=0.5, classes="3,5", data="digits", out=tmp_path / "no")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["two", "whole"]


@pytest.mark.slow
def test_steps_train_the_slice_through_the_shared_loop(net, tmp_path):
    how = Training(**{**QUICK, "steps": 30})
    same = {"method": "skd", "supernet": net.folder, "rate": 0.65, "classes": "3,5,8"}
    tuned = derive(out=tmp_path / "tuned", data="digits", training=how, **same)
    plain = derive(out=tmp_path / "plain", **same)
    assert plain.model.spec.blocks == tuned.model.spec.blocks and tuned.record.facts.steps == 30
    judged = edgevit.evaluate(tmp_path / "plain", data="digits", device="cpu")
    assert tuned.top1 > max(judged.top1, 0.6)


@pytest.mark.slow
@pytest.mark.parametrize("dropout", ["piad", "weighted"])  # all others draw as weighted does
def test_an_interrupted_training_resumed_ends_in_the_same_network(digits_checkpoint, tmp_path, monkeypatch, dropout):
    short = {"training": {"steps": 8, "batch_size": 16}, "options": {"growth": 1.0, "dropout": dropout}}
    whole = make(digits_checkpoint, tmp_path / "whole", **short)
    press_ctrl_c_in_step(4, monkeypatch)
    with pytest.raises(Interrupted, match=r"stopped at step 5 of 8 .* --resume goes on from .*resumed\.partial"):
        make(digits_checkpoint, tmp_path / "resumed", **short)
    with pytest.raises(OptionError, match=r"cannot resume .* with other options: rate was 0.65 and is 0.5"):
        make(digits_checkpoint, tmp_path / "resumed", resume=True, rate=0.5, **short)
    resumed = make(digits_checkpoint, tmp_path / "resumed", resume=True, **short)
    assert_same_weights(weights(whole.folder), weights(resumed.folder))
    assert (resumed.order, resumed.curve) == (whole.order, whole.curve)
    assert not (tmp_path / "resumed.partial").exists()


@pytest.mark.slow
def test_one_thread_or_several_give_the_same_accuracy(digits_checkpoint, tmp_path):
    before = torch.get_num_threads()
    curves = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            few = {"classes": "3,7", "validation_fraction": 0.05, "training": {"steps": 2, "batch_size": 16}}
            little = {"proxy_images": 16, "updates": 1, "points": 3}
            curves.append(make(digits_checkpoint, tmp_path / str(threads), options=little, **few).curve)
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*curves, strict=True):
        assert one == two


def test_a_size_out_of_range_is_refused_with_the_range(net, tmp_path):
    told = r"has slices of 6\d\d.* k MACs? ?.*\(rate 0\.6\d\d\) to just under 1\.9\d\d M \(rate 0\)"
    for size in ({"rate": 0.9}, {"macs": "100k"}, {"macs": "3M"}):
        for data in (None, "digits"):
            with pytest.raises(BudgetError, match=told.replace(" k MACs? ?.*", " k ")):
                derive(method="skd", supernet=net.folder, out=tmp_path / "m", data=data, **size)
    with pytest.raises(BudgetError, match=r"params 1k asks for 1 k parameters"):
        derive(method="skd", supernet=net.folder, out=tmp_path / "m", params="1k")
    with pytest.raises(OptionError, match="a budget is one of --rate"):
        derive(method="skd", supernet=net.folder, out=tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_a_slice_keeps_milliseconds_by_a_table_or_is_refused_with_the_least(net, tmp_path):
    given = {"method": "skd", "supernet": net.folder, "cost_table": write_cost_table(tmp_path)}
    blind = derive(ms=1.6, out=tmp_path / "blind", **given)
    seen = derive(ms=1.6, out=tmp_path / "seen", data="digits", training=Training(device="cpu"), **given)
    for made in (blind, seen):
        assert made.record.budget.quantity == "ms" and 1.5 < made.record.budget.reached <= 1.6
    assert_same_weights(weights(blind.folder), weights(seen.folder))
    for data in (None, "digits"):
        with pytest.raises(BudgetError, match=r"ms 0.9 leaves 0.9 ms, and the smallest slice .* takes .* ms \(.*FFN"):
            derive(ms=0.9, out=tmp_path / "m", data=data, **given)
    with pytest.raises(OptionError, match="--mj 3 needs --cost-table FILE"):
        derive(method="skd", supernet=net.folder, mj=3, out=tmp_path / "m")


@pytest.mark.slow
def test_the_embedding_narrows_with_the_slices_if_that_is_asked_for(digits_checkpoint, tmp_path):
    how = {"options": {"cut_embedding": True}, "training": {"steps": 4}, "rate": 0.9}
    with pytest.raises(BudgetError, match=r"let more go \(supernet\.cut_embedding=true\)"):
        make(digits_checkpoint, tmp_path / "no", rate=0.9)
    with pytest.raises(OptionError, match=r"cut_embedding=true: .* 2 calibration images do not .* directions"):
        make(digits_checkpoint, tmp_path / "no", rate=0.5, options={"cut_embedding": True, "proxy_images": 2})
    made = make(digits_checkpoint, tmp_path / "net", **how)
    whole = load(made.folder)
    assert [round(p.rate, 1) for p in made.curve] == [0.0, 0.3, 0.6, 0.9] and whole.spec.rate == 0
    before, images = 64, torch.randn(2, 3, 32, 32)
    for rate in (0.3, 0.6, 0.85):
        slim = derive(method="skd", supernet=made.folder, rate=rate, out=tmp_path / f"m{rate}")
        embed = slim.model.geometry.embed
        plan = ModelFolder(slim.folder).plan()
        assert plan is not None and [s.embed for s in plan.steps] == [embed if embed < 64 else None]
        assert embed <= before and rate <= slim.model.spec.rate < rate + 0.03
        torch.testing.assert_close(edgevit.load(slim.folder)(images), slim.model(images))
        before = embed
    assert before < 64
    with pytest.raises(BudgetError, match=r"has slices of .* \(rate 0\.9\d\d\) to just under"):
        derive(method="skd", supernet=made.folder, rate=0.97, out=tmp_path / "no")
    table = write_cost_table(tmp_path, narrower=[32])
    timed = derive(method="skd", supernet=made.folder, ms=0.6, cost_table=table, out=tmp_path / "timed")
    assert timed.record.budget.reached <= 0.6 and timed.model.geometry.embed in (32, 48)


def test_a_swin_is_trained_for_every_size_in_units_of_each_stage(tmp_path):
    arguments = {**SWIN_ARGS, "depths": [2, 1], "window_size": 3}  # shifted, and padded
    torch.manual_seed(0)
    save_file(timm.create_model(SWIN, **arguments).state_dict(), tmp_path / "base.safetensors")
    with fewer_digits():
        net = make(
            tmp_path / "base.safetensors", tmp_path / "net", base=SWIN, model_args=arguments, accept_weak_base=True,
            training={"steps": 4, "evaluations": 1}, options={"points": 2},
        )  # fmt: skip
    whole, images = load(net.folder), torch.randn(2, 3, 32, 32)
    dims, geometry = whole.spec.blocks, whole.geometry
    assert net.order and len({u.block for u in net.order}) == 3
    for unit in net.order:
        before, after = (narrowed(dims[unit.block], unit.kind, width) for width in (unit.last, unit.first))
        rest = dims[: unit.block], dims[unit.block + 1 :]
        costs = [geometry.macs([*rest[0], block, *rest[1]]) for block in (before, after)]
        assert unit.macs == costs[0] - costs[1], "counted by the tokens of its stage"
    figures = [json.loads(line) for line in (net.folder / "history.jsonl").read_text().splitlines()]
    assert figures[-1]["step"] == 4 and min(line["units_kept"] for line in figures if "units_kept" in line) < 1
    for rate in (0.3, 0.6):
        slim = derive(method="skd", supernet=net.folder, rate=rate, out=tmp_path / f"m{rate}").model
        assert 0 <= (1 - rate) * whole.spec.macs - slim.spec.macs < max(u.macs for u in net.order)
        with torch.no_grad(), masked(whole, slim.spec.blocks, torch.device("cpu")):
            seen = whole(images)
        torch.testing.assert_close(slim(images), seen, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(whole(images), seen, atol=1e-2)


def test_a_folder_that_is_no_super_network_is_refused(net, copied, tmp_path):
    (copied / "supernet.json").unlink()
    for folder, why in ((copied, "no supernet.json in it"), (tmp_path / "nowhere", "no such folder")):
        with pytest.raises(CheckpointError, match=f"is not a super-network: {why}; make one with edgevit supernet"):
            derive(method="skd", supernet=folder, rate=0.5, out=tmp_path / "m")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda d: d.update(schema=7),
            r"has schema 7, written by edgevit .*; edgevit .* reads schema 1: write it again with this version",
        ),
        (lambda d: d["order"][0].pop("macs"), r"lacks order\.0\.macs"),
        (
            lambda d: d["order"][0].update(first="8"),
            r"has '8' as order\.0\.first, expected a valid integer; copy",
        ),
        (lambda d: d["order"].reverse(), r"has Unit\(.*out of order"),
        (lambda d: d["order"][0].update(block=9), "out of order"),
        (lambda d: d["curve"][0].update(top1="good"), r"has 'good' as curve\.0\.top1"),
        (lambda d: d.pop("order"), "lacks order"),
    ],
)
def test_a_damaged_record_is_one_line(copied, change, said):
    edit(copied, change)
    with pytest.raises(CheckpointError, match=said):
        read_supernet(copied)
    with pytest.raises(CheckpointError, match=said):
        derive(method="skd", supernet=copied, rate=0.5, out=copied.parent / "m")


@pytest.mark.parametrize("text", ["", "[1]", '{"schema": 1'])
def test_a_record_that_is_cut_off_is_one_line(copied, text):
    (copied / "supernet.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"(is not JSON|has a list).*copy the folder again, or make it again"):
        read_supernet(copied)


def test_options_that_do_not_belong_together_are_refused(net, digits_checkpoint, tmp_path):
    out = tmp_path / "m"
    with pytest.raises(OptionError, match=r"--supernet .* is for --method skd, and the method is 'forge'"):
        derive(supernet=net.folder, rate=0.5, out=out, data="digits")
    with pytest.raises(OptionError, match="--method skd slices a super-network: give it with --supernet"):
        derive("vit_tiny_patch16_224", checkpoint=digits_checkpoint, method="skd", rate=0.5, out=out, data="digits")
    with pytest.raises(OptionError, match="is the base itself; leave vit_tiny_patch16_224 out"):
        derive("vit_tiny_patch16_224", supernet=net.folder, method="skd", rate=0.5, out=out)
    with pytest.raises(OptionError, match="brings its own weights and arguments"):
        derive(supernet=net.folder, checkpoint=digits_checkpoint, method="skd", rate=0.5, out=out)
    with pytest.raises(OptionError, match="--data is missing"):
        derive(supernet=net.folder, method="skd", rate=0.5, out=out, training=Training(steps=3))
    with pytest.raises(OptionError, match="--data is missing"):
        derive("vit_tiny_patch16_224", checkpoint=digits_checkpoint, rate=0.5, out=out)
    with pytest.raises(BudgetError, match=r"rate 0.95 leaves .* shape 'fused' reaches no less than"):
        make(digits_checkpoint, out, rate=0.95)
    with pytest.raises(OptionError, match=r"supernet\.updates 0 is not in \[1, "):
        make(digits_checkpoint, out, options={"updates": 0})
    with pytest.raises(OptionError, match=r"supernet\.dropout_rate=1 is not in \[0, 1\)"):
        make(digits_checkpoint, out, options={"dropout": "layer", "dropout_rate": 1.0})
    for dropout in ("piad", "none"):
        with pytest.raises(
            OptionError, match=rf"dropout_rate=0\.5 is not for dropout={dropout}; add .*=channel or wei"
        ):
            make(digits_checkpoint, out, options={"dropout": dropout, "dropout_rate": 0.5})
    assert not list(tmp_path.iterdir())
    by_folder = derive(net.folder, method="skd", rate=0.5, out=out)  # the folder alone says what it is
    assert by_folder.record.config["supernet"] == str(net.folder)


@pytest.mark.slow
def test_what_a_step_drops_and_how_much_of_it_makes_another_network(digits_checkpoint, tmp_path):
    training, made, fixed = {"steps": 4, "batch_size": 16}, {}, {"updates": 1}
    ways = {"piad": {}, "none": {"dropout": "none"}}
    ways |= {f"{name} {rate}": {"dropout": name, "dropout_rate": rate} for name in ("channel", "layer", "weighted")
             for rate in (0.0, 0.4)}  # fmt: skip
    for name, options in ways.items():
        made[name] = make(digits_checkpoint, tmp_path / name, training=training, options={**options, **fixed})
        assert made[name].record.settings.more["options"]["dropout"] == options.get("dropout", "piad")
    assert len({one.order for one in made.values()}) == 1, "all of it grows before the first step"
    assert len({weights(one.folder)["blocks.0.mlp.fc1.weight"].sum().item() for one in made.values()}) == len(ways)
    lines = (made["channel 0.4"].folder / "history.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["units_kept"] == pytest.approx(0.6, abs=0.1)


@pytest.mark.slow
def test_the_base_can_teach_the_network_while_it_trains(net, digits_checkpoint, tmp_path):
    taught = {"teacher": "restricted", "teacher_weight": 1.0}
    made = make(digits_checkpoint, tmp_path / "net", training={"steps": 4, **taught})
    lines = [json.loads(line) for line in (made.folder / "history.jsonl").read_text().splitlines()]
    assert all(line["loss_teacher"] > 0 for line in lines[1:]) and "units_kept" in lines[-1]
    training = Training(**{**QUICK, "steps": 2, **taught})
    slim = derive(method="skd", supernet=net.folder, rate=0.5, out=tmp_path / "m", data="digits", training=training)
    assert '"loss_teacher"' in (slim.folder / "history.jsonl").read_text()
