"""Many jobs of one plan: `edgevit sweep`, `edgevit derive-many` and `edgevit characterize`.

Each works in one folder (`folder`), runs every job once, and continues what an earlier command left.

sweep/     several rates for one task, without training, compared with the base
suite/     networks of many shapes on a board, without data or weights
many       tasks x budgets x methods from a YAML file (`jobs_file`), in worker processes (`workers`)
"""
