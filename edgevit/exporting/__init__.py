"""Write a model folder's ONNX files, and prove that they are the model: parity, accuracy, fused attention.

One file per idea: `onnx` is the command, and `source` what it writes files of; `graph` writes a file and `session` runs
one; `precision`, `padding`, `gates` and `fusion` each hold one kind of change or check; `images` finds what a model is
judged on and `evaluate` judges it; `current` reuses an export that is up to date, and `variants` adds the files that
only some boards need.

An ONNX file that edgevit did not make becomes a source, too: `reading` refuses what cannot be one, `stated` gathers how
its images are prepared, `structure` finds its norms, attentions and blocks, `importing` writes its folder, `imported`
opens that, and `halving` makes the fp16 form of a graph.
To add a check, write a function that raises ExportError and returns what export.json should say, and call it in `onnx`.
"""
