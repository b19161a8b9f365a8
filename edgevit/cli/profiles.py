from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from edgevit.cli.console import Console, JsonFlag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from edgevit.board.profiles import BoardVariant, Profile


def main(
    profile: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROFILE]", help="Name of a profile, or path of your own YAML file.  [default: list all]"
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """List the board profiles, or check and show one. Its JSON is a template for your own profile."""
    from edgevit.board.profiles import load_profile, profile_names

    console = Console(json=json)
    if profile is None:
        profiles = [load_profile(name) for name in profile_names()]
        console.result([shown.model_dump(mode="json") for shown in profiles])
        console.show(_profiles_table(profiles))
    else:
        shown = load_profile(profile)
        console.result(shown.model_dump(mode="json"))
        _show_profile(console, shown)


def _both(profile: Profile, figure: str) -> str:
    """A figure at the standard clocks, and at the Super clocks where it differs."""
    values = dict.fromkeys(f"{getattr(variant, figure):g}" for variant in profile.variants.values())
    return " / ".join(values)


def _profiles_table(profiles: Sequence[Profile]) -> Table:
    from rich.table import Table

    table = Table(caption="standard / Super clocks; peaks of dense fp16 and of memory", caption_justify="left")
    for heading in ("name", "module"):
        table.add_column(heading, no_wrap=True)
    for heading in ("memory GB", "SMs", "fp16 TFLOPS", "GB/s"):
        table.add_column(heading, justify="right")
    table.add_column("power modes")
    for p in profiles:
        peaks = (_both(p, "fp16_tflops"), _both(p, "bandwidth_gb_per_s"))
        modes = " ".join(p.mode_names()) or "the board's own table"
        table.add_row(p.name, p.module, str(p.memory_gb), str(p.sms), *peaks, modes)
    return table


def _show_profile(console: Console, p: Profile) -> None:
    low, high = p.mem_total_gib
    total = " + ".join(f"{label} (0x{address})" for address, label in p.total_rails())
    others = ", ".join(rail.label for rail in p.rails if not rail.total)
    console.show(f"{p.name}: {p.module}, part {' or '.join(p.parts)}, with {low:g} to {high:g} GiB seen by the kernel")
    console.show(f"{p.sms} SMs, {p.tensor_cores} tensor cores, {p.cpus} CPUs, memory bus of {p.memory_bus_bits} bits")
    for name, variant in p.variants.items():
        console.show(
            f"{name} clocks: fp16 {variant.fp16_tflops:g} TFLOPS, {variant.derivation}; memory "
            f"{variant.bandwidth_gb_per_s:g} GB/s"
        )
        console.show(_modes_table(variant))
    console.show(f"module power: {total}" + (f"; not added: {others}" if others else ""))
    for release in p.software:
        console.show(f"JetPack {release.jetpack} (L4T {release.l4t}): TensorRT {release.tensorrt}")
    console.show(f"budgets: {', '.join(p.budgets)}. {p.budgets_note}")
    for text in p.unconfirmed:
        console.show(f"unconfirmed: {text}")
    for figure, source in p.sources.items():
        console.show(f"source of {figure}: {source}")


def _modes_table(variant: BoardVariant) -> Table:
    from rich.table import Table

    table = Table("power mode")
    for heading in ("id", "CPUs", "TPCs", "GPU MHz", "on JetPack 5", "memory MHz"):
        table.add_column(heading, justify="right")
    for mode in variant.modes:
        table.add_row(
            mode.name + (" (default)" if mode.name == variant.default_mode else ""),
            "-" if mode.id is None else str(mode.id),
            str(mode.cpus),
            str(mode.tpcs),
            f"{mode.gpu_mhz:g}",
            f"{mode.gpu_mhz_jetpack5:g}" if mode.gpu_mhz_jetpack5 else "",
            f"{mode.emc_mhz:g}",
        )
    return table
