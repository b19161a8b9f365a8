"""What is tried is kept only where the validation images say that it helps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from problems import untrained

from edgevit.data.task import open_task
from edgevit.derivation.measure.divergence import divergence, network_outputs
from edgevit.derivation.methods.forge.config import Config
from edgevit.derivation.methods.forge.solve import NARROWER, _share, solve
from edgevit.derivation.plan import Plan
from edgevit.derivation.problem import Problem
from edgevit.network.anatomy import BlockDims
from edgevit.network.model import describe
from edgevit.network.output import Features, Levels


@pytest.fixture(scope="module")
def problem(small_vit: Any, tmp_path_factory: pytest.TempPathFactory) -> Problem:
    network = small_vit()
    with torch.no_grad():
        network.module.head.weight.normal_()
    base = describe(network, "vit_tiny_patch16_224", {})
    task = open_task("digits", "3,7,9", preprocessing=base.preprocessing, base_outputs=10)
    return untrained(base, task, 0.5, tmp_path_factory.mktemp("work"))


def _solve(problem: Problem, width: int, **options: Any) -> Any:
    plan = Plan.narrowed([BlockDims(2, 8, 8, width)] * 2, [torch.arange(width)] * 2)
    even = [(torch.ones(17).double(), torch.ones(17).double())] * 2
    solved = solve(problem, Config(calibration_images=128, **options), even, {"": plan})
    images = problem.task.validation
    judged = [network_outputs(n, images, problem.passes) for n in (problem.network, solved.network)]
    return solved, divergence(problem.network.output, *judged)


def test_what_helps_is_kept_and_told(problem: Problem) -> None:
    _, plain = _solve(problem, 8, align=False, refit_head=False)
    solved, loss = _solve(problem, 8)
    head = solved.tried["refit_head"]
    assert head.helped and head.after < head.before
    assert loss == pytest.approx(head.after, rel=1e-3) and loss < plain


def test_nothing_is_tried_that_is_not_asked_for(problem: Problem) -> None:
    assert _solve(problem, 8, align=False, refit_head=False)[0].tried == {}
    assert set(_solve(problem, 8, sequential=False)[0].tried) == {"refit_head"}, "readers are aligned block by block"


def test_what_does_not_help_is_left_out(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head whose fit ends elsewhere, as on images that are not like those of the validation part."""
    from edgevit.derivation.methods.forge import head

    fitted = head._of_logits
    monkeypatch.setattr(head, "_of_logits", lambda *a: 3 + fitted(*a).flip(0))
    solved, loss = _solve(problem, 8, align=False)
    tried = solved.tried["refit_head"]
    assert not tried.helped and loss == pytest.approx(tried.before, rel=1e-4) and tried.after > tried.before


def test_features_of_a_narrower_embedding_must_be_much_nearer(small_vit: Any) -> None:
    wide, narrow = small_vit(embed_dim=64), small_vit(embed_dim=32)
    shares = [_share(Features(), *pair) for pair in ((wide, narrow), (narrow, wide), (wide, wide))]
    assert shares == [NARROWER, 1 / NARROWER, 1.0]
    assert _share(Levels(), wide, narrow) == _share(wide.output, wide, narrow) == 1.0
