"""Derive a slim model from a base, target classes and a budget: resolve, measure, allocate, solve, train, evaluate.

request, supernet_request        what a user asks, checked without torch; options: those of methods
compatibility, feasibility       what a method cannot cut, and the smallest network that it can reach
session/                         the commands derive, supernet and base: open, check, baselines, evaluate, write
method, problem, plan, realise   a method gets a problem and returns a plan and the network that realises it
measure/                         statistics and sensitivities of a network on calibration images
allocate/                        the budget, the allowed widths, and how the budget is divided
solve/                           closed forms: low-rank factors, least squares, a linear head
methods/                         one file or folder for each method; its docstring says what it must define
cache, estimate                  results that derivations share; how long a derivation takes
"""
