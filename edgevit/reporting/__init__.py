"""What runs and records say: rows, comparisons, gates, layers, and `edgevit report`, which sets all of it side by side.

runs, intervals, gates, layers   what a few runs say, and how sure it is; commands of the board print them
gather    everything below some folders, and what could not be read
axes      what may stand on one axis: tasks and places
choice    every model at every place as a row, and the one to take
tables    the same as text, Markdown, CSV and JSON; details and views: what the page draws and shows
page      the page itself; its template, style, scripts and libraries lie in page/
run       all of it in a row; compare is `edgevit compare`, and request what both are asked
"""
