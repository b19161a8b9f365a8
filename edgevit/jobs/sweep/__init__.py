"""A sweep over rates: models pruned without training, compared with the base in accuracy and latency.

`record` is sweep.json and the choice of a model, `run` does the work, and `listing` lists folders of models.
"""
