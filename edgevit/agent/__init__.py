"""The program that measures, on the board or on this machine.

Standard library only, Python 3.8, imports nothing else of edgevit: the host packs this folder into one zip file and
starts it with whatever Python the machine has. `__main__` states the protocol, `messages` its types, and `methods`
lists what the agent can be asked: such as a bench (`bench`, `measure`), an engine (`engine`) or a job (`jobs`). What it
can run a model with is a file in `runners/`; what it reads beside the latencies is a file in `meters/`.
"""
