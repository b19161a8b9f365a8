"""Folders that applications serve a model from.

To add an application, write a module with a function of `ServedModel` and a new folder, which writes its files and
returns the part of the README on how to run it. Add it to `APPLICATIONS` of `package.py` and as a flag of
`PackageRequest`.
"""
