"""Two methods in a row: one command, an interrupted one gone on with, and a derived folder as the base of another."""

import json
import shutil

import pytest
import torch
from small_base import ARGS, NAME, derive, press_ctrl_c_in_step, write_checkpoint

import edgevit
from edgevit.derive.allocate.budget import make_budget
from edgevit.derive.allocate.policy import make_policy
from edgevit.derive.in_a_row import check_row
from edgevit.derive.method import find_method
from edgevit.derive.reach import Asked
from edgevit.derive.steps import Step
from edgevit.errors import BudgetError, Interrupted, ModelError
from edgevit.folder.model_folder import ModelFolder
from edgevit.models.checkpoint import open_base
from edgevit.version import written_by

ROW = {"first": (Step("nuwa", 0.3, {"purification": "none"}),), "method": "vulcan", "rate": 0.5, "cache": False}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def row(checkpoint, tmp_path_factory):
    return derive(checkpoint, tmp_path_factory.mktemp("row") / "m", training={"steps": 2}, **ROW)


def test_each_step_cuts_what_the_one_before_it_made(row):
    plan = ModelFolder(row.folder).plan()
    assert [step.method for step in plan.steps] == ["nuwa", "vulcan"]
    first, second = (step.blocks for step in plan.steps)
    for before, after in zip(first, second, strict=True):
        assert after.ffn.width < before.ffn.width and after.attention.qk <= before.attention.qk
    assert [block.ffn.width for block in second] == [dims.ffn for dims in row.model.spec.blocks]
    assert row.model.spec.rate >= 0.5 and row.record.facts.kept_blocks == (0, 1)
    assert [step.method for step in row.record.first] == ["nuwa"]
    stages = {json.loads(line)["stage"] for line in (row.folder / "history.jsonl").read_text().splitlines()}
    assert stages == {"step1: finetune", "train"}


def test_a_row_that_was_interrupted_goes_on_where_it_was(checkpoint, tmp_path):
    given, done = {**ROW, "training": {"steps": 6}}, tmp_path / "m.partial" / "step1" / "done.json"
    for times, was_done in enumerate((False, True)):  # in the first step, and then in the second
        with pytest.MonkeyPatch.context() as patched, pytest.raises(Interrupted):
            press_ctrl_c_in_step(2, patched)
            derive(checkpoint, tmp_path / "m", resume=times > 0, **given)
        assert done.is_file() == was_done
    said = json.loads(done.read_text())
    assert (said.pop("schema"), said.pop("edgevit")) == (1, written_by())
    done.write_text(json.dumps(said))  # as an edgevit wrote it that said neither
    again = derive(checkpoint, tmp_path / "m", resume=True, **given)
    whole = derive(checkpoint, tmp_path / "whole", **given)
    for name, value in whole.model.network.state_dict().items():
        assert torch.equal(value, again.model.network.state_dict()[name])


def test_a_base_whose_plan_is_of_a_newer_schema_is_refused_before_anything_takes_its_time(row, tmp_path):
    folder = tmp_path / "base"
    shutil.copytree(row.folder, folder)
    file = ModelFolder(folder).plan_file
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": 99}))
    with pytest.raises(ModelError, match=r"schema 99; this edgevit .* reads up to .*: install"):
        edgevit.derive(folder, data="digits", classes="3,7", rate=0.6, out=tmp_path / "m")
    assert not (tmp_path / "m.partial").exists()


@pytest.mark.parametrize(
    ("first", "rate", "said"),
    [
        ((0.97, {}), 0.98, r"rate 0.97 leaves .*, but nuwa in shape .* let more go \(nuwa.cut_embedding=true\)"),
        ((0.3, {}), 0.97, r"rate 0.97 leaves .*, but nuwa, then vulcan in shape 'fused' reaches no less than"),
    ],
)
def test_a_rate_that_a_row_cannot_reach_is_refused_before_anything_is_done(first, rate, said, checkpoint, tmp_path):
    step = Step("nuwa", first[0], {"purification": "none", **first[1]})
    with pytest.raises(BudgetError, match=said):
        derive(checkpoint, tmp_path / "m", **{**ROW, "first": (step,), "rate": rate})
    assert not list(tmp_path.iterdir())


def test_a_row_reaches_what_its_methods_do_together(checkpoint):
    """nuwa alone takes away no head and no block."""
    base = open_base(NAME, checkpoint=checkpoint, model_args=ARGS)
    nuwa, spec = find_method("nuwa"), base.spec
    asked = Asked(base.network, make_budget(spec.macs, spec.params, rate=0.9), make_policy("fused"), 1000)
    config = nuwa.make_config({})
    with pytest.raises(BudgetError, match="but nuwa in shape"):
        nuwa.check(config, asked)
    check_row((Step("forge", 0.5),), nuwa, config, asked, base)
    with pytest.raises(BudgetError, match="but nuwa, then nuwa in shape"):
        check_row((Step("nuwa", 0.5),), nuwa, config, asked, base)


def test_a_derived_folder_is_the_base_of_another_derivation(row, tmp_path):
    options = {"classes": "3,9", "data": "digits", "rate": 0.1, "shape": "free", "accept_weak_base": True}
    more = edgevit.derive(row.folder, out=tmp_path / "more", method="nuwa", options={"purification": "none"}, **options)
    assert [step.method for step in ModelFolder(more.folder).plan().steps] == ["nuwa", "vulcan", "nuwa"]
    assert more.model.spec.macs <= 0.9 * row.model.spec.macs and more.model.classes == ["3", "9"]
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(edgevit.load(more.folder)(images), more.model(images))
