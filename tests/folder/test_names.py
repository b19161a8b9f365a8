from edgevit.folder.names import MODEL_FOLDER, onnx_name


def test_an_exported_file_is_named_by_its_precision_or_variant() -> None:
    assert (onnx_name("fp32"), onnx_name("fp16.norms32")) == ("model.fp32.onnx", "model.fp16.norms32.onnx")


def test_a_model_folder_holds_nothing_else() -> None:
    assert {
        "model.json",
        "model.safetensors",
        "README.md",
        "export",
    } <= MODEL_FOLDER and "notes.txt" not in MODEL_FOLDER
