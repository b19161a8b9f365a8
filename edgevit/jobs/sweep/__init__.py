"""Which rate? Several derivations of one task in closed form, judged and measured side by side with the base.

`record` is what sweep.json says and which model it makes one choose; `run` does the work.
"""
