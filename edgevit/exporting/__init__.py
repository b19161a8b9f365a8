"""Write the ONNX files of a model folder and check that they equal the model: parity, accuracy, fused attention.

onnx         `edgevit export`; `request` has its options, `current` reuses an export that is up to date
source       what is written: the network of a model folder, or an imported file
graph        write a file; `halving` converts it to fp16, `precision` chooses what stays in fp32
variants     additional files that some boards need; `whole`: a detector with all that follows its backbone
gates        the checks of a file against the model; `fusion` counts fused attentions
session      run a file in ONNX Runtime
evaluate     `edgevit evaluate`; `images` opens its images, `targets` its maps; `probes` judges features
losses       what a changed file loses against fp32
imported/    files that edgevit did not write
int8/        files in INT8

To add a check, write a function that raises ExportError and returns its part of export.json, and call it in `onnx`.
"""
