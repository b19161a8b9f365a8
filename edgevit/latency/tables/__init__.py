"""What each site of a base takes at each size, measured where the model is to run: the tables that budgets go by.

What is measured are *stacks*: networks with the base's own embedding, head and tokens, and some equal blocks of one
size, with both sites or with one alone. Each is exported like a model, built into an engine where TensorRT runs it, and
measured in turns with the base; so what a site takes in the table, it takes between norms and residual sums, with
whatever the compiler fuses. Weights are random, as time depends on shapes.

`place` is where; `stacks` makes the networks; `grid` chooses sizes, coarse first, then where interpolation is least
certain; `store` keeps every run, so that nothing is measured twice; `measure` makes the runs; `fit` turns them into the
figures of a table; `table` is the whole of it, and `run` the command.
"""
