"""Many jobs of one plan: `edgevit sweep`, `edgevit derive-many`, and the suite that a board's owner runs.

sweep/     several budgets for one task, without training, compared with the base
suite/     networks of many shapes on a board, without data or weights
many       tasks x budgets x methods from a YAML file (`jobs_file`), done by worker processes (`workers`)
"""
