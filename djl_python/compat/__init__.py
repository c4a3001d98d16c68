"""DJL's modules: what a `model.py` that was written for DJL imports, and what this project uses of it. In the worker.

Users import them by DJL's names, `djl_python.pair_list` and so on, which are the same modules.

- `pair_list`, `np_util`, `encode_decode`: of inputs and outputs: properties, arrays, content by its content-type
- `input_parser`, `output_formatter`, `request`, `request_io`: decorators, and the types that formatters take
- `service_loader`, `test_model`: how DJL loads and tries a handler
- `async_utils`, `session_manager`, `sm_log_filter`, `telemetry`, `utils`: helpers of handlers
- `services`: the handlers that DJL brings
"""
