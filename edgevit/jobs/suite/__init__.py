"""The suite of `edgevit characterize`: how networks of many shapes run on a board, without data or weights.

`deit.yaml` is the plan: which networks answer which question, how much time a question is worth, and published figures.
`plan` reads it, `suite` makes the networks, `run` measures them in turns with the dense network, `record` is the file
of the result, and `answers` says what the figures mean.
"""
