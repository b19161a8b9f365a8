"""`edgevit characterize` refuses before anything is started; its record is shown with published figures and answers."""

import json
from dataclasses import replace

from some_suite_record import RECORD

from edgevit.cli.characterize import figures_table, show_suite
from edgevit.cli.console import Console
from edgevit.jobs.suite.record import write_suite_record


def test_every_figure_is_in_the_table(capsys) -> None:
    base, cut, fp32 = RECORD.measured
    failed = replace(cut, failed="at batch 8: the measurement died")
    show_suite(Console(), replace(RECORD, measured=(base, failed, fp32)))
    printed = capsys.readouterr()
    text = " ".join((printed.out + printed.err).split())
    for part in ("0.33 (0.32 to 0.34)", "31%", "45.5", "5.1", "Fused shapes pay.", "VOID: it throttled"):
        assert part in text, part
    assert "base fp32: no engine, needs more memory" in text and "left out for lack of time: tiny" in text
    assert "base 0.8 fused: failed, at batch 8: the measurement died" in text
    assert figures_table(RECORD).row_count == 2


def test_the_alias_does_the_same_and_an_unknown_size_is_refused_in_one_line(edgevit_main) -> None:
    for command in ("characterize", "prove"):
        done = edgevit_main(command, "--sizes", "tiny,bsae")
        assert done.code == 1 and done.error == "error: no size 'bsae'; did you mean 'base'?", done.error


def test_a_record_that_was_sent_back_is_shown(edgevit_main, tmp_path) -> None:
    write_suite_record(RECORD, tmp_path / "p.json")
    shown = edgevit_main("show", tmp_path / "p.json")
    assert shown.code == 0 and "Fused shapes pay." in shown.out
    assert json.loads(edgevit_main("show", tmp_path / "p.json", "--json").out)["host"] == "orin"
