"""ONNX files that edgevit did not write, as folders that can be exported, built and judged like those of models.

reading      read a file, and check that a board could run it; `widening` converts bfloat16
stated       its preprocessing: from options, its metadata, or JSON files beside it
structure    its layer normalisations, attentions and blocks; `counting` has its MACs and parameters
importing    write the folder; `source` opens one as a source of files and engines
ready_made   import a file beside derived models, and judge it on their images
"""
