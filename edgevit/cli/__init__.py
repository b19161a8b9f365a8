"""The `edgevit` command: parse, call one library function, print. One file per command; `app.py` lists them."""
