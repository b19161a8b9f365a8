"""Where models are measured: start the agent there, ask it, collect its runs."""
