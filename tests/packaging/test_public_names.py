"""The names users import, held literally: a change here is a change for them."""

from __future__ import annotations

import importlib
import inspect

import pytest

import djl_python
import djl_python.handler


def test_package_exports() -> None:
    names = [
        "Input",
        "Output",
        "PairList",
        "ParameterError",
        "PayloadError",
        "Session",
        "SessionManager",
        "__version__",
    ]
    assert djl_python.__all__ == names
    assert all(hasattr(djl_python, name) for name in djl_python.__all__)


def test_the_handler_module_has_its_four_public_classes() -> None:
    public = {
        name
        for name, value in vars(djl_python.handler).items()
        if inspect.isclass(value) and value.__module__ == "djl_python.handler"
    }
    assert public == {"Context", "Handler", "Metrics", "Reply"}


def test_the_output_formatter_module_has_its_public_types() -> None:
    types = {"RequestInput", "RequestOutput", "Sequence", "TextGenerationOutput", "TextInput", "Token"}
    module = importlib.import_module("djl_python.output_formatter")
    assert types | {"output_formatter"} <= set(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


#: DJL's modules, and the names that handlers written for DJL import from them.
DJLS = {
    "chat_completions.chat_properties": "ChatProperties",
    "chat_completions.chat_utils": "is_chat_completions_request parse_chat_completions_request",
    "deepspeed": "DeepSpeedService handle",
    "async_utils": "create_non_stream_output create_stream_chunk_output handle_streaming_response",
    "encode_decode": "decode decode_csv encode encode_csv",
    "fastertransformer": "FasterTransformerService handle",
    "huggingface": "ARCHITECTURES_2_TASK HuggingFaceService StopWord _service get_rolling_batch_class_from_str "
    "get_torch_dtype_from_str handle",
    "input_parser": "ParsedInput format_input init_handler input_formatter parse_input_with_formatter "
    "prediction_handler",
    "output_formatter": "RequestOutput TextGenerationOutput _json_chat_output_formatter _json_output_formatter "
    "_jsonlines_chat_output_formatter _jsonlines_output_formatter adapt_legacy_output_formatter get_output_formatter "
    "output_formatter sse_response_formatter",
    "properties_manager.hf_properties": "HFQuantizeMethods HuggingFaceProperties",
    "properties_manager.lmi_dist_rb_properties": "LmiDistRbProperties",
    "properties_manager.properties": "Properties RollingBatchEnum StreamingEnum is_rolling_batch_enabled "
    "is_streaming_enabled",
    "properties_manager.scheduler_rb_properties": "SchedulerRbProperties",
    "properties_manager.trt_properties": "TensorRtLlmProperties",
    "properties_manager.vllm_rb_properties": "VllmRbProperties",
    "request": "Request",
    "request_io": "RequestInput RequestOutput Sequence TextGenerationOutput TextInput Token",
    "rolling_batch.rolling_batch": "FINISH_REASON_MAPPER RollingBatch filter_unused_generation_params "
    "stop_on_any_exception",
    "rolling_batch.scheduler_rolling_batch": "SchedulerRollingBatch",
    "service_loader": "ModelService get_annotated_function has_function_in_module load_model_service",
    "session_manager": "Session SessionManager names_session",
    "sklearn_handler": "SklearnHandler handle service",
    "sm_log_filter": "SMLogFilter",
    "streaming_utils": "HFStreamer StreamingUtils",
    "telemetry": "TelemetryManager telemetry_manager",
    "tensorrt_llm": "TRTLLMService handle",
    "test_model": "TestHandler create_concurrent_batch_request create_npz_request create_numpy_request create_request "
    "create_text_request decode_encoded_output_binary extract_output_as_bytes extract_output_as_input "
    "extract_output_as_npz extract_output_as_numpy extract_output_as_string load_properties run "
    "update_properties_with_env_vars",
    "transformers_neuronx": "TransformersNeuronXService handle",
    "utils": "IdCounter find_model_file get_input_details is_beam_search is_best_of is_multiple_sequences "
    "profile_objects rolling_batch_inference wait_till_generation_finished",
    "xgboost_handler": "XGBoostHandler handle service",
}


@pytest.mark.parametrize("module", DJLS)
def test_djls_names(module: str) -> None:
    imported = importlib.import_module(f"djl_python.{module}")
    assert [name for name in DJLS[module].split() if not hasattr(imported, name)] == []
