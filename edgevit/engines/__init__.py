"""Engines of a board: build them there, check that they are correct, and store them.

TensorRT builds an engine on the board that runs it, and is known to silently build wrong engines of Vision
Transformers. An engine is therefore accepted only if it classifies the model's validation images on the board as ONNX
Runtime does in fp32 on the host; until one does, more and more modules of the model are kept in fp32. This package
combines `exporting`, which writes ONNX files and opens images, with `board`, which transfers files and runs jobs.

`build` has the public function and `options` its options; `precision_levels` the order of precisions, and the search
for the blocks that need fp32; `builder` builds and checks one level on the board; `gate` is the check, `detections`
that of detectors, and `outputs` brings what an engine computes to the host.
`edgevit.records.engine` stores engines, and `edgevit.board.store` finds one for a board. To add a level, extend
`PrecisionLevel` by what it keeps in fp32, and `search_precision` by its place in the order.
"""
