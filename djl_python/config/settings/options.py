"""The option.* keys of a model. In the front end and in the worker."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, field

from ...core.budgets import VALUES
from .values import Degree, HeaderValue, HttpErrorCode, Positive

#: vLLM's names of syntaxes that are not parsed here.
_OTHER_PARSERS: Final = dict.fromkeys(
    ("deepseek_v32", "ernie45", "openai", "step3p5", "xlam"),
    "this syntax is not parsed here, and the chat template says which the model's is",
)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The `option.*` keys of every model, for its handler and any engine.

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
            description="Seconds that an answer may stand still: a language model's without a new token, a custom "
            "handler's until its answer is whole, or between two pieces of its stream.",
            extra={"environment": "PREDICT_TIMEOUT", "aliases": ["prediction_timeout"]},
        ),
    ] = 120.0
    model_loading_timeout: Annotated[
        float,
        Meta(gt=0, description="Seconds loading may take.", extra={"environment": "MODEL_LOADING_TIMEOUT"}),
    ] = 240.0
    idle_unload: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(
            description="Seconds without a request after which the model's workers end; its next request starts them "
            "again. 0: after every answer. Unset: never."
        ),
    ] = None
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
            # LMI's old names for its own engine and for its copy of vLLM, and common misspellings
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
            description="If option.rolling_batch or engine names an engine that is not available (vllm, "
            "trtllm, DeepSpeed): builtin, the built-in engine serves the model; error, the model "
            "is refused."
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
    prefix_cache_scope: Annotated[
        Literal["tenant", "model"],
        Meta(
            description="Which prompts reuse each other's KV blocks: those of one tenant (an API key's name, or what "
            "`tenant_header` says), or all of the model, where clients may learn which prompts others have sent."
        ),
    ] = "tenant"
    max_batch_tokens: Annotated[
        Positive | None,
        Meta(
            description="Embeddings, scores, labels: tokens computed at once, padding included; unset: 16384 on a GPU, "
            "1024 on a CPU.",
            extra={"environment": "MAX_BATCH_TOKENS"},
        ),
    ] = None
    pooling: Annotated[
        Literal["", "cls", "max", "mean", "mean_sqrt_len", "weightedmean", "lasttoken"],
        Meta(
            description="Embeddings: how one vector is made of those of the tokens; unset: as the checkpoint's "
            "1_Pooling says, else lasttoken of a decoder and mean of others.",
            extra={
                "environment": "POOLING",
                "arguments": ["pooling"],
                "spellings": {"last-token": "lasttoken", "last": "lasttoken"},
            },
        ),
    ] = ""
    normalize: Annotated[
        bool | None,
        Meta(
            description="Embeddings: whether they have length 1 where a request does not say it; unset: as the "
            "checkpoint's modules.json says, else true.",
            extra={"arguments": ["normalize"]},
        ),
    ] = None
    reranking: Annotated[
        bool,
        Meta(
            description="Whether a model of option.task=text-embedding ranks texts, as DJL's Rust engine has it: the "
            "same as option.task=text-ranking.",
            extra={"arguments": ["reranking"]},
        ),
    ] = False
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
        Meta(
            description="What the model does, by a name of transformers', the hub's, DJL's or TEI's: text-generation, "
            "feature-extraction (text-embedding), sentence-similarity, text-ranking (rerank), text-classification …; "
            "unset: what the checkpoint's files say. Also for /info."
        ),
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
        Meta(description="API of /generate_stream: Text Generation Inference's, or MindIE's."),
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
            description="TGI: value of the header x-compute-type; unset: cpu or gpu.",
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
    max_request_values: Annotated[
        int,
        Meta(ge=1, description="JSON values in a request's body at most; a prompt of token ids has one for each."),
    ] = VALUES.most
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
    allowed_image_hosts: Annotated[
        str,
        Meta(
            pattern=r"^\s*(\*|[\w.-]+|\[?[\da-fA-F:.]+\]?)(\s*,\s*(\*|[\w.-]+|\[?[\da-fA-F:.]+\]?))*\s*$",
            description="With option.allow_remote_images, the hosts that are fetched from: names and addresses "
            "separated by commas, * for all with public addresses. One that is named may have a private address.",
            extra={"aliases": ["allowed_media_domains"], "expected": "hosts separated by commas (no ports, no paths)"},
        ),
    ] = "*"
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
    max_sessions: Annotated[
        int, Meta(ge=1, description="Sessions in that directory at most; a further one is refused with 503.")
    ] = 1000
    max_sessions_bytes: Annotated[
        int,
        Meta(ge=1, description="Bytes of all their values together; a value beyond is refused with 503."),
    ] = 1 << 30
    infer_do_sample: Annotated[
        bool, Meta(description="Sample when a request has sampling parameters, even without do_sample.")
    ] = False
    unknown_parameters: Annotated[
        Literal["ignore", "error"],
        Meta(
            description="Unknown generation parameters: ignore them and name them in a header, or refuse the request."
        ),
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
    placement: Annotated[
        str,
        Meta(
            min_length=1,
            description="Where the workers run: local, on this machine; ray, on the nodes of a Ray cluster, as "
            "actors; or module:Class.",
        ),
    ] = "local"
    ray_address: Annotated[
        str,
        Meta(
            min_length=1,
            description="With option.placement=ray, the cluster: auto, the one that this machine is a node of; or "
            "host:port, ray://host:port.",
            extra={"environment": "RAY_ADDRESS"},
        ),
    ] = "auto"
    num_cpus: Annotated[
        float, Meta(ge=0, description="With option.placement=ray, processors that each worker reserves on its node.")
    ] = 1.0
    num_gpus: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(
            description="With option.placement=ray, GPUs that each worker reserves, and sees; unset: one for each "
            "device that shares the model, and none where option.device names no GPU and nothing is shared."
        ),
    ] = None
    memory: Annotated[
        Positive | None,
        Meta(description="With option.placement=ray, bytes of memory that each worker reserves on its node."),
    ] = None
    resources: Annotated[
        str,
        Meta(
            pattern=r"^\s*([^\s=,]+=\d+(\.\d+)?(\s*,\s*[^\s=,]+=\d+(\.\d+)?)*)?\s*$",
            description="With option.placement=ray, custom resources that each worker reserves: NAME=AMOUNT, "
            "separated by commas.",
            extra={"expected": "NAME=AMOUNT with commas between them"},
        ),
    ] = ""
    rerun_lost_requests: Annotated[
        bool,
        Meta(
            description="With option.placement=ray, rerun a request on another worker when its node is lost "
            "and nothing of its answer was sent yet; false where a handler has effects that must "
            "not happen twice."
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
