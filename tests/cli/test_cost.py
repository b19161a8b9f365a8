"""`edgevit cost`: the figures as a table, the file, and refusals in one line."""

import json

import pytest
from some_costs import ARGS, fill, here
from some_tables import rows, table

from edgevit.derivation.allocate.cost_table import CostTable


def test_what_cannot_be_is_one_line(edgevit_main, tmp_path):
    assert "did you mean 'fused" in edgevit_main("cost", "deit_tiny_patch16_224", "--shape", "fuse").error
    assert "no timm model" in edgevit_main("cost", "deit_tinny_patch16_224").error
    said = edgevit_main("cost", "deit_tiny_patch16_224", "--output", tmp_path / "t.csv").error
    assert "ends in neither .yaml nor .json" in said


@pytest.mark.slow
@pytest.mark.usefixtures("examined_once")
def test_what_is_known_already_is_shown_and_written_with_the_next_command(edgevit_main, small_vit, tmp_path):
    fill(small_vit(**ARGS), here(), None)
    args = [part for name, value in ARGS.items() for part in ("--model-arg", f"{name}={value}")]
    file = tmp_path / "a table.yaml"
    base = ("vit_tiny_patch16_224", *args, "--threads", 1, "--points", 1)
    done = edgevit_main("cost", *base, "--output", file)
    assert done.code == 0, done.err
    assert (
        f"Next: edgevit derive vit_tiny_patch16_224 --cost-table '{file}' --ms" in done.out
        and "2 x 32" in done.out
        and "mJ; the base takes" in done.out
    )
    told = json.loads(edgevit_main("cost", *base, "--json").out)
    assert told["schema"] == 1 and told["output"] is None and not told["origin"].get("board")


def test_the_figures_are_shown_side_by_side_with_what_a_whole_block_takes():
    from rich.console import Console

    from edgevit.cli.cost import prices_table

    attention = {(2, 16): (1, 0.1), (2, 32): (1, 0.2), (4, 16): (1, 0.3), (4, 32): (1, 0.4)}
    costs = rows((1, 0.75), attention, {8: (1, 0.5), 64: (1, 1.25)}, block=(0, 0.0625))
    costs += rows((1, 0.5), attention, {8: (1, 0.25), 64: (1, 0.625)}, block=(0, 0.0625), embed=32)
    content = table(costs, base={"blocks": [{"heads": 4, "qk": 32, "vo": 32, "ffn": 64}]})
    console = Console(width=100)
    with console.capture() as shown:
        console.print(prices_table(CostTable.model_validate(content).in_quantity("mj")))
    lines = [line.split() for line in shown.get().splitlines()]
    assert "mJ; the base takes 4.175, 0.75 of it outside its blocks" in shown.get()
    assert any({"2", "16", "0.1", "8", "0.5"} <= set(line) for line in lines)
    assert any({"1.71", "0.062"} <= set(line) for line in lines)
    assert any({"embedding", "of", "32", "1.09", "0.062"} <= set(line) for line in lines)
