"""A stand-in for pycuda: device memory is host memory, and work is done when it is enqueued. See `driver.py`."""

VERSION = (2022, 2)
