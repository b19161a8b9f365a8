"""Benchmarks: `product/` answers the questions of a user, `papers/` repeats the tables and figures of the papers.

Run a script from the root of the repository, as a module:

    python -m benchmarks.product.rivals --base fashion

A script writes JSON into `records/`, row by row, and does not repeat rows that the file already has. A new script has
a function `section()` that makes Markdown from its record, and one line in `product/results.py` or `papers/tables.py`,
which write `product/RESULTS.md` and `papers/README.md`. The scripts share `images.py` (rendered images), `bases.py`
(base models), `sources.py` (the choice of a base and its images), `derivations.py` (cases and their rows),
`markdown.py` (tables) and `line_plot.py` (SVG).
"""
