"""The record of a suite as a board might have given it."""

from dataclasses import replace

from edgevit.jobs.suite.record import Figure, MeasuredNetwork, Published, SuiteRecord

FIGURE = Figure(1, 5.1, 5.2, 196.0, 61.0, None, None, None, 0.31, ())
CUT = replace(FIGURE, p50_ms=1.7, ratio=0.33, low=0.32, high=0.34, void=("it throttled",))
RECORD = SuiteRecord(
    *("now", "0.1.0", {}, "orin", "orin-nx-16gb", {}, 900.0),
    measured=(
        MeasuredNetwork("base", "dense", "base", "fp16", 197, 17_567_000_000, 1, (), 0, 12, 60.0, None, (FIGURE,)),
        MeasuredNetwork(
            "base 0.8 fused", "shapes at 0.8", "base", "fp16", 197, 3_511_000_000, 1, (), 0, 12, 9.0, None, (CUT,)
        ),
        MeasuredNetwork("base fp32", "sizes", "base", "fp32", 197, 1, 1, (), 0, None, None, "needs more memory", ()),
    ),
    left_out=("tiny",),
    published=(Published("base", 45.45, "Vulcan, Table 2", "batch 1"), Published("small", 1.0, "nobody", "none")),
    answers=("Fused shapes pay.",),
)
