"""Many jobs of one plan: `edgevit derive` for several budgets, `sweep`, `derive-many` and `characterize`.

Each works in one folder (`folder`), runs every job once, and continues what an earlier command left. A job is a record
and a function of it; `runners` does jobs here or in worker processes (`workers`), `ray_cluster` on a cluster.

budgets/   several measured budgets for one task, each met by `edgevit.latency`
sweep/     several rates for one task, without training, compared with the base
fleet/     tasks x bases x budgets x methods x boards from a plan file, from derivation to gated benches
suite/     networks of many shapes on a board, without data or weights
many       tasks x budgets x methods from a YAML file (`jobs_file`): a fleet that has derivations alone
"""
