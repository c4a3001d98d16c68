"""Every setting of a model, declared once: name, type, bounds, default and help.

Runs in the front end, which reads them, and in the worker, which receives them. From these declarations come parsing
and validation (`binding.py`), the tables of docs/settings.md (`table.py`) and the nearest-name suggestions. A field's
encoded name is the key as the user writes it; `Meta(extra=...)` holds what msgspec has no field for:

    environment  a variable that sets this, beside OPTION_<KEY>
    aliases      other keys for the same setting
    spellings    other spellings of values
    without_effect  values of other engines, and why they have no effect here
    entry        vLLM's name of the value in an object: {"image": 4}
    expected     the words for "expected ..." where type and bounds don't say it
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, field

Positive = Annotated[int, Meta(ge=1)]
HttpErrorCode = Annotated[int, Meta(ge=400, le=599)]
HeaderValue = Annotated[str, Meta(pattern=r"^[\x20-\x7e]*$", extra={"expected": "printable ASCII"})]
DEVICES_PATTERN: Final = r"^(\*|(-1|cpu|(gpu|cuda:?)?\d+)(;(-1|cpu|(gpu|cuda:?)?\d+))*)$"
DEVICES_EXPECTED: Final = "* or a list such as gpu0;gpu1"
Degree = Positive | Literal["max"]
#: vLLM's names of syntaxes that are not parsed here.
_OTHER_PARSERS: Final = dict.fromkeys(
    ("deepseek_v32", "ernie45", "openai", "step3p5", "xlam"),
    "this syntax is not parsed here, and the chat template says which the model's is",
)


class ServingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The top-level keys of serving.properties: queue, batching and workers of one model."""

    engine: Annotated[
        str,
        Meta(
            description="DJL's engine: Python; DeepSpeed has DeepSpeed serve the model, where it is installed. "
            "Models of its others run on Python's."
        ),
    ] = ""
    job_queue_size: Annotated[
        int, Meta(ge=1, description="Requests that may wait for a worker; one more is refused at once.")
    ] = 1000
    batch_size: Annotated[
        int,
        Meta(
            ge=1,
            description="Requests gathered into one call of the handler (dynamic batching); with "
            "option.rolling_batch=disable, sequences that the built-in one generates at once.",
            extra={"aliases": ["max_dynamic_batch_size"]},
        ),
    ] = 1
    max_batch_delay_ms: Annotated[
        int, Meta(ge=0, description="How long a dynamic batch waits for more requests, in milliseconds.")
    ] = field(default=100, name="max_batch_delay")
    min_workers: Annotated[
        int, Meta(ge=1, description="Worker processes that always run.", extra={"aliases": ["min_workers"]})
    ] = field(default=1, name="minWorkers")
    max_workers: Annotated[
        Positive | None,
        Meta(
            description="Worker processes at most: further ones start while requests wait, and each has a copy of the "
            "model; unset: minWorkers.",
            extra={"aliases": ["max_workers"]},
        ),
    ] = field(default=None, name="maxWorkers")
    cpu_min_workers: Annotated[
        Positive | None, Meta(description="minWorkers of a CPU.", extra={"aliases": ["cpu.min_workers"]})
    ] = field(default=None, name="cpu.minWorkers")
    cpu_max_workers: Annotated[
        Positive | None, Meta(description="maxWorkers of a CPU.", extra={"aliases": ["cpu.max_workers"]})
    ] = field(default=None, name="cpu.maxWorkers")
    gpu_min_workers: Annotated[
        Positive | None, Meta(description="minWorkers of a GPU.", extra={"aliases": ["gpu.min_workers"]})
    ] = field(default=None, name="gpu.minWorkers")
    gpu_max_workers: Annotated[
        Positive | None, Meta(description="maxWorkers of a GPU.", extra={"aliases": ["gpu.max_workers"]})
    ] = field(default=None, name="gpu.maxWorkers")
    max_idle_time_s: Annotated[
        float, Meta(gt=0, description="Seconds that a worker beyond minWorkers may have nothing to do before it ends.")
    ] = field(default=60.0, name="max_idle_time")
    retry_threshold: Annotated[
        int, Meta(ge=0, description="Failed worker starts in a row that are tolerated before the model is FAILED.")
    ] = 0
    load_on_devices: Annotated[
        str,
        Meta(
            pattern=DEVICES_PATTERN,
            description="Devices that get minWorkers workers each: a list separated by semicolons (cpu, gpu0, 0); "
            "*: every GPU, or every group of as many as share the model, unless option.device names one; else the CPU.",
            extra={"expected": DEVICES_EXPECTED},
        ),
    ] = "*"
    batch_share: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="Part of the requests that run at once in a worker that batches (/v1/batches) get, at least "
            "one.",
        ),
    ] = 0.5
    batch_busy_share: Annotated[
        float,
        Meta(ge=0, le=1, description="That part while there are other requests, and for 5 s after; at least one."),
    ] = 0.125


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The `option.*` keys of every model: what its handler, and any engine, is told.

    An engine's row declares the keys that only that engine takes (`engines`).
    """

    model_id: Annotated[
        str,
        Meta(
            description="Checkpoint: a local path, a Hugging Face Hub id, s3://bucket/prefix or template://name.",
            extra={"aliases": ["s3url", "model"]},
        ),
    ] = ""
    revision: Annotated[str, Meta(description="Branch, tag or commit of a hub checkpoint.")] = ""
    trust_remote_code: Annotated[bool, Meta(description="Allow the checkpoint's own Python code to run.")] = False
    entry_point: Annotated[
        str,
        Meta(
            description="Handler: a .py file of the model directory or behind http(s), a module, or module:attribute.",
            extra={"environment": "DJL_ENTRY_POINT", "aliases": ["entry_point"]},
        ),
    ] = field(default="", name="entryPoint")
    handler: Annotated[str, Meta(min_length=1, description="Function of the entry point that answers.")] = "handle"
    trial_request: Annotated[
        str,
        Meta(
            description="File of the model directory that is sent, as to /invocations, to a model that is loaded "
            "again; without a good answer, the one that serves stays. Unset: the built-in handler generates a token."
        ),
    ] = ""
    predict_timeout: Annotated[
        float,
        Meta(
            gt=0,
            description="Seconds an answer may take, once a worker has its request; of a stream, the first piece, and "
            "each one after it.",
            extra={"environment": "PREDICT_TIMEOUT", "aliases": ["prediction_timeout"]},
        ),
    ] = 120.0
    model_loading_timeout: Annotated[
        float,
        Meta(gt=0, description="Seconds loading may take.", extra={"environment": "MODEL_LOADING_TIMEOUT"}),
    ] = 240.0
    tensor_parallel_degree: Annotated[
        Degree | None,
        Meta(
            description="Devices that share each layer, from the worker's own on; max: as many as there are and divide "
            "the model's heads, or 1 where load_on_devices names several.",
            extra={
                "aliases": ["tensor_parallel_size"],
                "environment": "TENSOR_PARALLEL_DEGREE",
                "expected": "an integer >= 1, or max",
            },
        ),
    ] = None
    pipeline_parallel_degree: Annotated[
        int,
        Meta(
            ge=1,
            description="Groups of layers on devices of their own, from the worker's own on, which compute in turn; of "
            "the built-in engine instead of a tensor_parallel_degree.",
            extra={"aliases": ["pipeline_parallel_size"], "environment": "PIPELINE_PARALLEL_DEGREE"},
        ),
    ] = 1
    rolling_batch: Annotated[
        str,
        Meta(
            min_length=1,
            description="Continuous batching: auto (vLLM on a GPU where it is installed, else the built-in engine), "
            "builtin, another engine's name, or module:Class; disable: LMI's dynamic-batch schema, batch_size "
            "sequences at once.",
            # LMI's old names for its own engine and for its own copy of vLLM; what people write for others.
            extra={
                "spellings": {
                    "scheduler": "builtin",
                    **dict.fromkeys(("lmi-dist", "lmi_dist", "lmidist"), "vllm"),
                    **dict.fromkeys(("tensorrt-llm", "tensorrt_llm", "tensorrtllm", "trt-llm"), "trtllm"),
                }
            },
        ),
    ] = "auto"
    engine_fallback: Annotated[
        Literal["builtin", "error"],
        Meta(
            description="Where option.rolling_batch or engine names an engine that is not there (vllm, trtllm, "
            "DeepSpeed): builtin has the built-in one serve the model, error refuses it."
        ),
    ] = "builtin"
    async_mode: Annotated[
        bool,
        Meta(
            description="LMI's async handlers: continuous batching and the schemas that go with it, even with "
            "option.rolling_batch=disable, as these handlers batch by themselves."
        ),
    ] = False
    enable_streaming: Annotated[
        bool,
        Meta(
            description="With option.rolling_batch=disable, answer in lines unless a request says otherwise.",
            extra={"spellings": {"huggingface": "true"}, "expected": "true or false"},
        ),
    ] = False
    max_rolling_batch_size: Annotated[
        int, Meta(ge=1, description="Sequences generated at once.", extra={"aliases": ["max_num_seqs"]})
    ] = 32
    max_rolling_batch_prefill_tokens: Annotated[
        int,
        Meta(
            ge=1,
            description="Prompt tokens per engine step; a longer prompt is taken in pieces.",
            extra={"aliases": ["max_num_batched_tokens", "max_num_tokens"]},
        ),
    ] = 512
    max_model_len: Annotated[
        Positive | None,
        Meta(
            description="Tokens of prompt and answer together; unset: what the model allows.",
            extra={"aliases": ["max_total_tokens", "n_positions"], "environment": "MAX_TOTAL_TOKENS"},
        ),
    ] = None
    gpu_memory_utilization: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="Share of a GPU's memory for the model: weights, KV cache and steps, of all its workers there.",
        ),
    ] = 0.9
    dtype: Annotated[
        Literal["auto", "fp32", "fp16", "bf16"],
        Meta(
            description="Number format of the weights; auto: the checkpoint's, or fp16 for bf16 on a GPU without bf16. "
            "On a CPU, fp16 is computed as bf16.",
            extra={
                "aliases": ["data_type"],
                "spellings": {
                    **dict.fromkeys(("float32", "float", "torch.float32"), "fp32"),
                    **dict.fromkeys(("float16", "half", "torch.float16"), "fp16"),
                    **dict.fromkeys(("bfloat16", "torch.bfloat16"), "bf16"),
                },
                "without_effect": {"int8": "option.quantize=int8 rounds weights to 8 bits"},
            },
        ),
    ] = "auto"
    task: Annotated[
        str,
        Meta(description="What the model does, by transformers' names; built in: text-generation. Also for /info."),
    ] = ""
    device: Annotated[
        str,
        Meta(
            pattern=r"^(auto|cpu|cuda(:\d+)?)$",
            description="Where the model runs: auto, cpu, cuda or cuda:N.",
            extra={"expected": "auto, cpu, cuda or cuda:N"},
        ),
    ] = "auto"
    output_formatter: Annotated[
        str | None,
        Meta(
            description="Shape of answers: json, jsonlines, sse, or a formatter's name; unset: by request. "
            "Chats and completions are streams only if they ask for one."
        ),
    ] = None
    tgi_compat: Annotated[bool, Meta(description="Answer in Text Generation Inference's shapes.")] = False
    tgi_dialect: Annotated[
        Literal["tgi", "mindie"],
        Meta(description="Whose /generate_stream this is: Text Generation Inference's, or MindIE's."),
    ] = "tgi"
    full_text_enabled: Annotated[
        bool,
        Meta(
            description="MindIE: each event's token.text is the text so far.",
            extra={"aliases": ["fullTextEnabled"]},
        ),
    ] = False
    compute_type: Annotated[
        HeaderValue,
        Meta(
            description="TGI: what the header x-compute-type says; unset: cpu or gpu.",
            extra={"environment": "COMPUTE_TYPE"},
        ),
    ] = ""
    max_input_tokens: Annotated[
        Positive | None,
        Meta(
            description="Tokens of a prompt at most; unset: what the model's context leaves.",
            extra={"aliases": ["max_input_length", "max_input_len"], "environment": "MAX_INPUT_TOKENS"},
        ),
    ] = None
    max_best_of: Annotated[
        int, Meta(ge=1, description="TGI: the highest best_of.", extra={"environment": "MAX_BEST_OF"})
    ] = 2
    max_stop_sequences: Annotated[
        int,
        Meta(
            ge=0, description="TGI: stop sequences of a request at most.", extra={"environment": "MAX_STOP_SEQUENCES"}
        ),
    ] = 4
    max_top_n_tokens: Annotated[
        int, Meta(ge=0, description="TGI: the highest top_n_tokens.", extra={"environment": "MAX_TOP_N_TOKENS"})
    ] = 5
    max_client_batch_size: Annotated[
        int,
        Meta(ge=1, description="TGI: prompts of one request at most.", extra={"environment": "MAX_CLIENT_BATCH_SIZE"}),
    ] = 4
    allow_remote_images: Annotated[
        bool, Meta(description="Fetch the http(s) URLs of images in chats; otherwise only data: URLs are taken.")
    ] = False
    max_images: Annotated[
        int,
        Meta(
            ge=1,
            description="Images of a chat at most.",
            extra={"aliases": ["limit_mm_per_prompt"], "entry": "image"},
        ),
    ] = 16
    chat_template: Annotated[
        str,
        Meta(
            description="Chat template instead of the checkpoint's: a file, also one of the model directory, or the "
            "template itself.",
        ),
    ] = ""
    tool_call_parser: Annotated[
        str,
        Meta(
            description="Syntax of the model's tool calls, by vLLM's names: hermes, llama3_json, mistral, pythonic, "
            "qwen3_coder, deepseek_v3, glm45 and others, or module:Class; unset: what the chat template tells.",
            extra={"without_effect": _OTHER_PARSERS},
        ),
    ] = ""
    enable_reasoning: Annotated[
        bool | None,
        Meta(
            description="Split the reasoning off the answers of chats (reasoning_content); unset: if "
            "option.reasoning_parser is set."
        ),
    ] = None
    reasoning_parser: Annotated[
        str,
        Meta(
            description="How the model marks its reasoning: a name of vLLM's such as deepseek_r1, qwen3, mistral, "
            "granite, or module:Class; unset: what the chat template tells."
        ),
    ] = ""
    enable_stateful_sessions: Annotated[
        bool,
        Meta(
            description="Open and close sessions (requestType NEW_SESSION and CLOSE), and take requests in them; the "
            "built-in handler keeps nothing in a session."
        ),
    ] = True
    sessions_path: Annotated[
        str,
        Meta(description="Directory of sessions; unset: djl_sessions in /dev/shm, or among temporary files."),
    ] = ""
    sessions_expiration_s: Annotated[int, Meta(ge=1, description="Seconds until a session expires.")] = field(
        default=1200, name="sessions_expiration"
    )
    infer_do_sample: Annotated[
        bool, Meta(description="Sample when a request has sampling parameters, even without do_sample.")
    ] = False
    unknown_parameters: Annotated[
        Literal["ignore", "error"],
        Meta(description="Generation parameters that nobody knows: name them in a header, or refuse the request."),
    ] = "ignore"
    throttle_error_http_code: Annotated[
        HttpErrorCode | None, Meta(description="HTTP status when the queue is full; unset: the server's.")
    ] = None
    python_executable: Annotated[
        str,
        Meta(
            description="Interpreter of the workers; unset: the server's.", extra={"environment": "PYTHON_EXECUTABLE"}
        ),
    ] = field(default="", name="pythonExecutable")
    enable_venv: Annotated[
        bool,
        Meta(
            description="Install the model's requirements.txt into a virtual environment of its own; false: into the "
            "interpreter's own packages, which may be the server's."
        ),
    ] = True
    env: Annotated[
        str,
        Meta(
            pattern=r"^\s*([A-Za-z_]\w*=[^,]*(,\s*[A-Za-z_]\w*=[^,]*)*)?$",
            description="Environment of the workers: K=V pairs separated by commas.",
            extra={"expected": "K=V pairs separated by commas"},
        ),
    ] = ""
