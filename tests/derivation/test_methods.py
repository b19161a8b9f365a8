"""Every method keeps the contract of `edgevit.derivation.methods`: edgevit's own in every shape, baselines in one."""

import json
import subprocess
import sys
from dataclasses import fields, is_dataclass
from functools import cache

import pytest
import torch
from example_method import EXAMPLE, example, with_the_example
from places import ROOT
from small_base import assert_same_weights, derive, write_checkpoint, write_cost_table

import edgevit
from edgevit.derivation.allocate.policy import POLICIES
from edgevit.derivation.methods import baseline_names, load_method, method_names, own_method_names
from edgevit.derivation.options import describe, make_config, parse_assignments
from edgevit.errors import OptionError, UnknownNameError
from edgevit.records.model_folder import ModelFolder

pytestmark = pytest.mark.usefixtures("few_digits")

NAMES = [*method_names(), EXAMPLE]
SHAPES = [*((name, shape) for name in own_method_names() for shape in POLICIES),
          *((name, "fused") for name in (*baseline_names(), EXAMPLE))]  # fmt: skip
DRAWN_BASELINES = ("dcvit", "random", "xpruner")  # what they keep depends on the seed
# heart cuts no widths: of two blocks, few tokens and heads that must be two to fuse, less than half can go.
RATES, ROOM = {"heart": 0.25}, {"heart": 0.04}


@pytest.fixture(scope="module", autouse=True)
def folder_with_the_example(tmp_path_factory):
    folder = tmp_path_factory.mktemp("methods")
    with with_the_example(folder):
        yield folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("base"))


def test_options_are_a_frozen_dataclass_with_defaults():
    for name in NAMES:
        config = load_method(name).Config()
        assert is_dataclass(config) and config.__dataclass_params__.frozen
        for field in fields(config):
            with pytest.raises(AttributeError):
                setattr(config, field.name, getattr(config, field.name))


def test_a_method_trains_no_less_for_more_images_or_a_higher_rate():
    for name in NAMES:
        method = load_method(name).METHOD
        few, more, higher = (
            method.default_steps(method.config(), rate, images, 64)
            for rate, images in ((0.3, 1000), (0.3, 2000), (0.6, 1000))
        )
        assert 0 <= few <= min(more, higher) and isinstance(few, int)


def test_the_example_is_short_and_clean_code(folder_with_the_example):
    assert len([line for line in example().splitlines() if line]) <= 37
    ruff = [sys.executable, "-m", "ruff"]
    settings = ["--config", str(ROOT / "pyproject.toml"), folder_with_the_example]
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run([*ruff, *command, *settings], text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_example_is_listed_with_its_option(edgevit_main):
    assert "Keep the FFN neurons with the largest weights" in edgevit_main("methods").out
    (option,) = json.loads(edgevit_main("methods", EXAMPLE, "--json").out)["options"]
    assert (option["name"], option["default"]) == ("order", "2.0") and "neurons are ranked" in option["explanation"]


FEW: dict[str, dict[str, int]] = {"nuwa": {"purification_steps": 4}, "snapvit": {"generations": 2}}


@pytest.fixture(scope="module")
def derived(checkpoint, tmp_path_factory):
    """A derivation by a method, of a shape, and its folder: made once for all tests, and trained of one shape."""

    @cache
    def make(name, shape):
        folder = tmp_path_factory.mktemp(name) / "m"
        training = {"steps": 2, "evaluations": 1} if shape == "fused" else {"steps": 0}
        rate = RATES.get(name, 0.45)
        options = FEW.get(name, {})
        made = derive(checkpoint, folder, method=name, shape=shape, rate=rate, training=training, options=options)
        return made, folder

    return make


@pytest.mark.quick("*-fused")
@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_a_method_derives_a_model_inside_its_budget_that_loads_again(name, shape, derived):
    rate, (derivation, folder) = RATES.get(name, 0.45), derived(name, shape)
    spec = derivation.model.spec
    assert rate <= spec.rate < rate + ROOM.get(name, 0.02)
    assert all(b.fusable for b in spec.blocks if b.has("attention")) or not derivation.record.shape.more["equal"]
    assert spec.classes[1].name == "7" and derivation.record.method == name
    told = ModelFolder(folder).derivation()
    assert told is not None and told.facts.steps == derivation.record.facts.steps
    images = torch.randn(2, 3, 32, 32)
    loaded = edgevit.load(folder)
    torch.testing.assert_close(loaded(images), derivation.model(images))
    assert loaded(images).shape == (2, 3)


CUT_EMBEDDING = [name for name in own_method_names() if "cut_embedding" in {o.name for o in describe(name).options}]
BASELINES_BY_TABLE = ("corp", "dcvit", "mdp", "taylor")  # the others spend a budget as taylor does


@pytest.mark.quick("forge-narrower0", "nuwa-narrower2", "example-*")
@pytest.mark.parametrize(
    ("name", "narrower"),
    [
        *((name, ()) for name in (*own_method_names(), *BASELINES_BY_TABLE, EXAMPLE)),
        *((name, (32,)) for name in (*CUT_EMBEDDING, "mdp")),
    ],
)
def test_a_method_that_counts_milliseconds_keeps_them_by_the_table(name, narrower, checkpoint, tmp_path):
    budget = 2.2 if name == "heart" else 1.6  # it cuts no widths
    given = {"rate": None, "ms": budget, "cost_table": write_cost_table(tmp_path, narrower), "training": {"steps": 0}}
    given["options"] = {**FEW.get(name, {}), **({"cut_embedding": True} if narrower else {})}
    record = derive(checkpoint, tmp_path / "m", method=name, **given).record
    assert record.budget.quantity == "ms" and 0.75 * budget < record.budget.reached <= budget * (1 + 1e-9)


@pytest.mark.quick("forge", "random")
@pytest.mark.parametrize("name", [*own_method_names(), *DRAWN_BASELINES])
def test_the_same_seed_gives_the_same_weights(name, derived):
    (first, _), (second, _) = derived(name, "fused"), derived.__wrapped__(name, "fused")  # which makes another
    assert_same_weights(first.model.state_dict(), second.model.state_dict())


def test_an_unknown_method_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'vulcan'"):
        load_method("vulkan")


def test_options_are_read_by_type_and_wrong_ones_refused():
    vulcan = load_method("vulcan")
    config = make_config("vulcan", vulcan.Config, {"rho": "0.5", "rank": "no", "factorisation": "tokens"})
    assert (config.rho, config.rank, config.factorisation) == (0.5, False, "tokens")
    with pytest.raises(UnknownNameError, match="vulcan has no option 'roh'; did you mean 'rho'"):
        make_config("vulcan", vulcan.Config, {"roh": 1})
    with pytest.raises(UnknownNameError, match=r"vulcan\.factorisation has no value 'token'"):
        make_config("vulcan", vulcan.Config, {"factorisation": "token"})
    with pytest.raises(OptionError, match=r"vulcan\.rho=much is not of type float"):
        make_config("vulcan", vulcan.Config, {"rho": "much"})
    with pytest.raises(OptionError, match=r"vulcan\.calibration_images=64\.5 is not of type int"):
        make_config("vulcan", vulcan.Config, {"calibration_images": 64.5})


def test_assignments_name_the_method_they_are_for():
    told = parse_assignments("vulcan", ["vulcan.rho=0.5", "vulcan.rank = false"])
    assert told == {"rho": "0.5", "rank": "false"}
    with pytest.raises(OptionError, match=r"not of the form method\.option=value"):
        parse_assignments("vulcan", ["rho=1"])
    with pytest.raises(OptionError, match="an option of 'nuwa', but the method is 'vulcan'"):
        parse_assignments("vulcan", ["nuwa.rho=1"])
