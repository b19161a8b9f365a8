"""Run the agent on a board or on this machine, and collect its measurements."""
