"""Budgets in milliseconds, millijoules or images per second, met by measuring on the target.

`cost` measures the cost table of a base: *stacks*, networks of the base's own embedding, head and tokens
around some equal blocks, run in turns with the base, and least squares turn their figures into costs of sites.
`meet` searches for a plan that keeps one budget: allocate by the table, build the model, measure it in turns with the
base, correct the table, and allocate again, at most five times. `edgevit.jobs.budgets` does so for each budget of a
command.

The table: `target` says where and how to measure; `grid` chooses the sizes; `stacks` makes the networks; `measure` runs
them; `store` keeps every run; `fit` fits the costs; `table` puts these together.
The search: `rounds` holds measurements and corrects the table by them; `growth` changes a plan a little; `search` is
the loop; `candidates` builds models; `paired` measures them against the base; `meet` is the whole of one budget.
"""
