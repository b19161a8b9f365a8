"""Several measured budgets of one base, as in `edgevit derive --ms 6,4,3`: `request` splits them, `run` meets each."""
