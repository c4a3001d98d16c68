"""Makes embeddings as one system does, and says how long it takes. Runs in a system's own Python.

    python encoder_process.py SYSTEM PRECISION CHECKPOINT FOLDER

Each line that it reads is a JSON array of texts, which come at once, each from a client of its own; each line that it
writes has the `seconds` until all are there, from the texts to vectors of unit length, and the `vectors`.
FOLDER keeps converted checkpoints.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

Embed = Callable[[list[str]], Any]


def ours(precision: str, checkpoint: Path, folder: Path) -> Embed:
    """The engine of this package, with the tokenizer that its handlers use; each text is a request."""
    import numpy as np
    from tokenizers import Tokenizer

    from djl_python.engine.encoding.opening import open_encoder
    from djl_python.engine.encoding.sentence_transformers import SentenceTransformer
    from djl_python.engine.encoding.settings import EncoderSettings, Head
    from djl_python.ipc.encodings import EncodeRequest, EncoderInput

    as_in: dict[str, Any] = {"int8": {"quantize": "int8"}}.get(precision, {"dtype": precision})
    if precision == "torch":
        as_in = {"dtype": "fp32", "kernels": "torch"}
    modules = SentenceTransformer.read(checkpoint).modules
    settings = EncoderSettings(
        model_path=str(checkpoint), head=Head.EMBEDDING, max_batch_size=64, modules=modules, **as_in
    )
    engine = open_encoder(settings, lambda what, done, total: None)
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(engine.max_model_len)

    def embed(texts: list[str]) -> Any:
        for number, encoded in enumerate(tokenizer.encode_batch(texts)):
            engine.add(EncodeRequest([EncoderInput(encoded.ids)], number))
        arrays = {}
        while not engine.idle:
            for one in engine.step():
                assert one.numbers is not None, one.error
                arrays[one.request_id] = np.frombuffer(one.numbers.data, np.float32)
        vectors = np.stack([arrays[number] for number in range(len(texts))])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    return embed


def onnx(precision: str, checkpoint: Path, folder: Path) -> Embed:
    """sentence-transformers on ONNX Runtime; int8 as its documentation has it, for this processor's instructions."""
    from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

    path = _converted("onnx", checkpoint, folder)
    kwargs = {"provider": "CPUExecutionProvider", "file_name": "onnx/model.onnx"}
    if precision == "int8":
        if not (path / "onnx" / "model_int8.onnx").exists():
            plain = SentenceTransformer(str(path), backend="onnx", model_kwargs=dict(kwargs))
            export_dynamic_quantized_onnx_model(plain, _instructions(), str(path), file_suffix="int8")
        kwargs["file_name"] = "onnx/model_int8.onnx"
    return _encode(SentenceTransformer(str(path), backend="onnx", model_kwargs=kwargs))


def openvino(precision: str, checkpoint: Path, folder: Path) -> Embed:
    """sentence-transformers on OpenVINO; int8 are weights, as `load_in_8bit` makes them."""
    from sentence_transformers import SentenceTransformer

    hint = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}[precision]
    kwargs: dict[str, Any] = {"ov_config": {"INFERENCE_PRECISION_HINT": hint}}
    if precision == "int8":
        kwargs["load_in_8bit"] = True
    path = _converted("openvino", checkpoint, folder)
    return _encode(SentenceTransformer(str(path), backend="openvino", model_kwargs=kwargs))


def _converted(backend: Any, checkpoint: Path, folder: Path) -> Path:
    """The checkpoint with the backend's own form of its weights, which is made once, from local files alone."""
    from sentence_transformers import SentenceTransformer

    target = folder / checkpoint.name
    if not target.exists():
        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        exported = SentenceTransformer(str(checkpoint), backend=backend, model_kwargs={"export": True})
        exported.save_pretrained(str(partial))
        partial.rename(target)
    return target


def _encode(model: Any) -> Embed:
    def embed(texts: list[str]) -> Any:
        return model.encode(texts, batch_size=len(texts), normalize_embeddings=True, show_progress_bar=False)

    return embed


def _instructions() -> str:
    """sentence-transformers' name for the best of this processor's instructions."""
    flags = Path("/proc/cpuinfo").read_text()
    if "asimd" in flags:
        return "arm64"
    return next((name for name in ("avx512_vnni", "avx512f", "avx2") if name in flags), "avx2").removesuffix("f")


SYSTEMS: Final[Mapping[str, Callable[[str, Path, Path], Embed]]] = {
    "djl-serving": ours,
    "onnx": onnx,
    "openvino": openvino,
}


def main() -> None:
    """Command line."""
    system, precision, checkpoint, folder = sys.argv[1:]
    out = sys.stdout
    sys.stdout = sys.stderr  # what libraries print
    embed = SYSTEMS[system](precision, Path(checkpoint), Path(folder))
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        texts = json.loads(line)
        began_s = time.perf_counter()
        vectors = embed(texts)
        seconds = time.perf_counter() - began_s
        print(json.dumps({"seconds": seconds, "vectors": vectors.tolist()}), file=out, flush=True)


if __name__ == "__main__":
    main()
