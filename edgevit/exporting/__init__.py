"""Write the ONNX files of a model folder and check that they equal the model: parity, accuracy, fused attention.

`onnx` is the command and `source` the model that it writes; `graph` writes a file and `session` runs one; `precision`,
`padding`, `gates` and `fusion` have one kind of change or check each; `images` opens the images of an evaluation and
`evaluate` runs it; `current` reuses an export that is up to date, and `variants` adds files that only some boards need.

An ONNX file that edgevit did not write is imported as a source, too: `reading` checks it, `stated` collects its
preprocessing, `structure` recognises its norms, attentions and blocks, `importing` writes its folder, and `imported`
opens it. `halving` converts a graph to fp16.

A file in INT8 is made by `int8`: `calibrating` watches the inputs of its `linear` layers, `rounding` prepares their
weights, `quantising` inserts Q/DQ, and `losses` says what is lost.

To add a check, write a function that raises ExportError and returns its part of export.json, and call it in `onnx`.
"""
