"""Target-class tasks: which images there are, which are held out for what, and how they become tensors.

To add a kind of data, add `sources/<name>.py`; `sources/__init__.py` says what it defines.
"""
