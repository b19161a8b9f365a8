"""A file in INT8: linear layers are rounded explicitly (Q/DQ), all others stay in floating point.

write         calibrate, judge on other images, and keep in floating point what costs too much
linear        find the linear layers of a graph; `calibrating` watches their inputs
rescaling     centre and scale inputs exactly, so that one step fits all channels
quantising    round, and give single layers back to floating point
"""
