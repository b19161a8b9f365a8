"""Two methods in a row: one command, an interrupted one gone on with, and a derived folder as the base of another."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from seals import unsealed
from small_base import ARGS, NAME, assert_same_weights, derive, press_ctrl_c_in_step, write_checkpoint

import edgevit
from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.in_a_row import check_row, settle_row
from edgevit.derivation.method import find_method
from edgevit.derivation.methods import method_names
from edgevit.derivation.reach import Asked
from edgevit.derivation.steps import Step
from edgevit.errors import BudgetError, EdgeVitError, Interrupted, ModelError, OptionError
from edgevit.network.checkpoint import open_base
from edgevit.network.families import family_of
from edgevit.progress import Silent
from edgevit.records.model_folder import ModelFolder
from edgevit.records.state import DONE_KIND
from edgevit.version import written_by

pytestmark = pytest.mark.usefixtures("few_digits")

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


def test_all_methods_of_a_row_are_named_where_the_model_is_told_of(row, edgevit_main):
    assert "removed with `nuwa`, then `vulcan` for\n" in (row.folder / "README.md").read_text()
    assert "method nuwa, then vulcan, rate 0.5" in " ".join(edgevit_main("show", row.folder).out.split())


def test_a_row_that_was_interrupted_goes_on_where_it_was(checkpoint, tmp_path):
    given, done = {**ROW, "training": {"steps": 6}}, tmp_path / "m.partial" / "step1" / "done.json"
    for times, was_done in enumerate((False, True)):  # in the first step, and then in the second
        with pytest.MonkeyPatch.context() as patched, pytest.raises(Interrupted):
            press_ctrl_c_in_step(2, patched)
            derive(checkpoint, tmp_path / "m", resume=times > 0, **given)
        assert done.is_file() == was_done
    said = json.loads(done.read_text())
    assert (said["schema"], said["edgevit"]) == (2, written_by())
    older = {name: value for name, value in unsealed(DONE_KIND, said, 0).items() if name not in ("schema", "edgevit")}
    done.write_text(json.dumps(older))  # as an edgevit wrote it that said neither
    again = derive(checkpoint, tmp_path / "m", resume=True, **given)
    whole = derive(checkpoint, tmp_path / "whole", **given)
    assert_same_weights(whole.model.network.state_dict(), again.model.network.state_dict())


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


class Noting(Silent):
    """Keeps what a person is told."""

    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


BOTH = {name for name in method_names() if not find_method(name).cuts_half_blocks}  # sites


@pytest.fixture(scope="module")
def whole(checkpoint):
    return open_base(NAME, checkpoint=checkpoint, model_args=ARGS).network


@pytest.fixture(scope="module")
def half(whole):
    """The small base without the attention of its second block."""
    family = family_of(whole)
    first, second = family.read(whole)
    return family.build(whole, [first, replace(second, attention=None)]).eval()


def settled(first, method, network, options=(), progress=None):
    steps = [Step(name, 0.5, dict(options)) for name in first]
    return settle_row(steps, find_method(method), {}, network, make_policy("fused"), progress or Silent())


def test_most_methods_cut_blocks_that_lack_a_site():
    assert sorted(BOTH) == ["nuwa", "skd", "vulcan"]


@pytest.mark.parametrize("method", method_names())
def test_a_method_cuts_a_base_whose_blocks_lack_a_site_or_says_in_one_line_why_not(method, half):
    if method not in BOTH:
        assert settled([], method, half) == ()
        return
    with pytest.raises(OptionError) as error:
        settled([], method, half)
    told = f"{method} cuts blocks that have both attention and FFN, and block 1 of this base has no attention; derive"
    assert str(error.value).startswith(told) and "\n" not in str(error.value)


@pytest.mark.parametrize("method", sorted(set(method_names()) - {"skd"}))  # which stands in no row
@pytest.mark.parametrize("first", ["dcvit", "forge"])
def test_behind_a_method_that_takes_sites_away_another_cuts_or_says_in_which_order_it_can(first, method, whole):
    progress = Noting()
    if (first, method in BOTH) == ("dcvit", True):
        order = rf"let dcvit cut last \(--first {method}:RATE --method dcvit\)"
        with pytest.raises(OptionError, match=f"{method} cuts blocks .*dcvit before it takes some away; {order}"):
            settled([first], method, whole)
        assert not settled([method], first, whole)[0].options
        return
    (step,) = settled([first], method, whole, progress=progress)
    all_tokens = {"cut_tokens": "never"} if method in ("forge", "heart", "dcvit", "mdp") else {}
    all_sites = {"drop_sites": False} if method in BOTH else {}
    assert step.options == ({**all_sites, **all_tokens} if first == "forge" else {})
    assert len(progress.notes) == len(step.options) and not any("\n" in note for note in progress.notes)


def test_what_was_asked_of_a_step_is_not_changed_and_refused_where_the_next_cannot_cut_it(whole):
    told = (
        r"keep them \(--set forge.drop_sites=false\), let forge cut last \(--first nuwa:RATE --method forge\), or try"
    )
    with pytest.raises(OptionError, match=told):
        settled(["forge"], "nuwa", whole, {"drop_sites": "true"})
    with pytest.raises(OptionError, match="dcvit measures blocks that all tokens pass through"):
        settled(["forge"], "dcvit", whole, {"cut_tokens": "tried"})
    assert settled(["forge"], "nuwa", whole, {"drop_sites": "no"})[0].options == {"drop_sites": "no"}


FORGE = {"calibration_images": 32, "sensitivity_images": 16, "measured_images": 8}


@pytest.fixture(scope="module")
def halved(checkpoint, tmp_path_factory):
    """What dcvit made, one of whose blocks has no attention."""
    out = tmp_path_factory.mktemp("halved") / "m"
    options = {"options": {"calibration_images": 8}, "training": {"steps": 0}, "cache": False}
    made = derive(checkpoint, out, method="dcvit", rate=0.3, **options)
    assert sum(not dims.has_attention for dims in made.model.spec.blocks) == 1
    return made


def test_forge_derives_from_what_dcvit_made(halved, tmp_path):
    options = {"classes": "3,9", "data": "digits", "accept_weak_base": True, "steps": 0, "device": "cpu"}
    made = edgevit.derive(halved.folder, out=tmp_path / "m", rate=0.4, options=FORGE, cache=tmp_path / "c", **options)
    assert 0.57 * halved.model.spec.macs < made.model.spec.macs <= 0.6 * halved.model.spec.macs
    again = edgevit.derive(halved.folder, out=tmp_path / "n", rate=0.4, options=FORGE, cache=tmp_path / "c", **options)
    for name, value in made.model.network.state_dict().items():  # curves that were read are those that were worked out
        assert torch.equal(value, again.model.network.state_dict()[name])


def test_a_method_that_cannot_cut_a_folder_is_refused_before_anything_is_measured(halved, tmp_path):
    with pytest.raises(EdgeVitError, match="vulcan cuts blocks that have both") as error:
        edgevit.derive(halved.folder, out=tmp_path / "m", method="vulcan", data="digits", classes="3,9", rate=0.3)
    with pytest.raises(EdgeVitError, match="a super-network is of a model whose blocks have both attention and FFN"):
        edgevit.supernet(halved.folder, out=tmp_path / "m", data="digits", classes="3,9")
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("first", "method", "options"),
    [("dcvit", "forge", FORGE), ("forge", "nuwa", {"purification": "none"}), ("forge", "heart", {})],
)
def test_a_row_whose_first_method_takes_sites_away_goes_through(first, method, options, checkpoint, tmp_path):
    few = FORGE if first == "forge" else {"calibration_images": 8}
    given = {"options": options, "training": {"steps": 0}, "cache": False, "rate": 0.5}
    made = derive(checkpoint, tmp_path / "m", first=(Step(first, 0.35, few),), method=method, **given)
    assert made.model.spec.rate >= 0.5
    kept = {"nuwa": {"drop_sites": False}, "heart": {"cut_tokens": "never"}, "forge": {}}[method]
    (told,) = made.record.first
    assert {**few, **kept} == told.options
