"""Engines for a board: what to build there, how to tell a right one from a wrong one, and where it is kept.

TensorRT builds an engine on the board that will run it, and is known to build wrong ones of Vision Transformers without
saying so. So an engine counts only when it has classified the model's own validation images on that board as ONNX
Runtime does in fp32 here; until one does, more and more of the model is kept in fp32. This room joins `export`, which
writes ONNX files and finds images, with `board`, which carries them over and runs jobs there.

One file per idea: `build` is the public function and `options` what it takes; `ladder` the order in which precisions
are tried, and the search for the blocks that need fp32; `workshop` has one rung built and judged on the board; `gate`
is the judgement. `edgevit.records.engine` keeps engines, and `edgevit.board.store` finds one for a board. To add a
rung, give `PrecisionRung` what it keeps in fp32 and `descend` its place.
"""
