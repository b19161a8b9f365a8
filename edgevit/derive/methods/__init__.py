"""One file per derivation method. Each defines:

    class Config                 frozen dataclass: the method's options, in the CLI (`--set method.option=value`), in
                                 derivation.json and in reports; every field has a default, is a bool, int, float,
                                 str or Literal, and has a comment: the sentence that `edgevit methods NAME` shows
    def default_steps(config, rate, images, batch_size) -> int   optimiser steps where the user gives none; 0 if it
                                 does not train
    def derive(problem, config) -> Derived
    QUANTITIES = ("macs", "params", "ms")    if it can meet a budget in milliseconds too; left out by those that cannot
    DROPS = True                 if it can leave out heads and blocks, and so get below the policy's smallest widths

A method decides what to keep and may train `problem.network` in place; only `surgery` changes a structure.
tests/derive/test_methods.py sweeps this folder.
"""
