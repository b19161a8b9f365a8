"""`edgevit report` and `edgevit compare`: tables, plots and a recommendation from models and runs.

gather    read everything below some folders, and list what cannot be read
axes      decide which accuracies and latencies may share an axis: those of one task, base and place
panels    one row for every model at every place; choice: the recommended model of them
tables    the rows as text, Markdown, CSV and JSON
details   the data of the plots; views: the texts and rows of the page
page      the page; its template, style, scripts and libraries are in page/
layers    the time of layers by block and module
run       `edgevit report`; compare is `edgevit compare`; request has the requests of both
"""
