"""`edgevit prove` refuses before anything is started; it shows figures, what others published, and what they say."""

import json
from dataclasses import replace

from some_proof import PROOF

from edgevit.cli.console import Console
from edgevit.cli.prove import figures_table, show_proof
from edgevit.jobs.suite.record import write_proof


def test_every_figure_is_in_the_table(capsys) -> None:
    base, cut, fp32 = PROOF.measured
    failed = replace(cut, failed="at batch 8: the measurement died")
    show_proof(Console(), replace(PROOF, measured=(base, failed, fp32)))
    seen = capsys.readouterr()
    told = " ".join((seen.out + seen.err).split())
    for text in ("0.33 (0.32 to 0.34)", "31%", "45.5", "5.1", "Fused shapes pay.", "VOID: it throttled"):
        assert text in told, text
    assert "base fp32: no engine, needs more memory" in told and "not begun, for want of time: tiny" in told
    assert "base 0.8 fused: not measured to the end, at batch 8: the measurement died" in told
    assert figures_table(PROOF).row_count == 2


def test_what_cannot_be_is_refused_in_one_line(edgevit_main) -> None:
    done = edgevit_main("prove", "--sizes", "tiny,bsae")
    assert done.code == 1 and done.error == "error: no size 'bsae'; did you mean 'base'?", done.error


def test_a_file_that_was_sent_back_is_shown(edgevit_main, tmp_path) -> None:
    write_proof(PROOF, tmp_path / "p.json")
    shown = edgevit_main("show", tmp_path / "p.json")
    assert shown.code == 0 and "Fused shapes pay." in shown.out
    assert json.loads(edgevit_main("show", tmp_path / "p.json", "--json").out)["host"] == "orin"
