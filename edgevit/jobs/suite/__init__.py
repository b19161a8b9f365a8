"""The suite of `edgevit characterize`: how networks of many shapes run on a board, without data or weights.

`plan.yaml` is the plan: which networks answer which question, how much time a question is worth, and published figures.
`plan` reads it, `suite` makes the networks, `files` puts them on the machine that runs them, `run` measures them in
turns with the dense network within its `time_limit`, `record` is the file of the result (`opening` continues one),
`figures` sums up runs, and `answers` says what the figures mean.
"""
