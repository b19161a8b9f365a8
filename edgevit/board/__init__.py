"""Run the agent on a board or on this machine, and collect its measurements.

bench           `edgevit bench`; `request` has its options, `models` the files that it measures
connection      a board, over SSH or here: calls, files, jobs, engines; `client` talks to the agent, `answers` checks it
doctor          `edgevit board`: what is wrong with a board; `facts` is what it says about itself
profiles        what is known of each kind of board
comparison      which runs may be compared; `intervals` has the statistics, `gates` the limits, `roofline` the ceiling
layers          time by layer
store           find the engine of a model for a board
"""
