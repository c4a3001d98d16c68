"""LoRA adapters of a native program against peft's mixed batches, row by row."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM

from djl_python.engine.adapters.peft_files import LoraAdapter, LowRank
from djl_python.engine.attention.lookup import PAGED
from djl_python.engine.batch.chunk import SequenceChunk
from djl_python.engine.batch.sequence import Sequence
from djl_python.engine.batch.state_slots import StateSlots
from djl_python.engine.checkpoints.linears import Linear, RowOrigins
from djl_python.engine.checkpoints.rounding import Quantize
from djl_python.engine.native.abi.decoder import LinearOp
from djl_python.engine.native.abi.enums import Activation, Mode
from djl_python.engine.native.abi.operations import OperationArray
from djl_python.engine.native.abi.parts import Epilogue, Output
from djl_python.engine.native.abi.step_inputs import StepInputs
from djl_python.engine.native.memory import Arena
from djl_python.engine.native.program.adapters import ProgramAdapters
from djl_python.engine.native.program.builders import rescoring
from djl_python.engine.native.program.builders.builder import ProgramBuilder, Rows
from djl_python.engine.native.program.program import Program
from djl_python.engine.native.program.runner import NativeModelRunner
from djl_python.engine.native.program.step_arrays import AdapterArrays
from djl_python.engine.native.thread_pool import ThreadPool
from djl_python.engine.reading.inference.decoder import read_recipe
from djl_python.engine.reading.recipe.primitives import NotUnderstoodError
from djl_python.engine.runner.model_runner import AdapterRunner
from tests.checkpoints import NATIVE, OWN_ATTENTION, VOCABULARY, build_checkpoint
from tests.engine.native.program.test_program import BLOCK, sequence
from tests.engine.native.program.test_rescoring import ask
from tests.peft_adapters import BASE, PEFT_WARNS

RANKS = {"narrow": 3, "wide": 21, "some": 8}
pytestmark = PEFT_WARNS
# What peft refuses.
_UNTAKEN: Final = ("mamba.out_proj", "mixer.out_proj")
# It takes the modules of a mixture's dense MLPs for experts.
_CONVERSION: Final = "peft.utils.transformers_weight_conversion._convert_peft_config_moe"
LENGTH = 256


class Adapted:
    """A program, the model that it was made of, and adapters of all modules that it can change, or a part of these."""

    def __init__(
        self, path: Path, architecture: str, dtype: torch.dtype = torch.float32, quantize: Quantize | None = None
    ) -> None:
        self.path = build_checkpoint(path, architecture, dtype)
        model = AutoModelForCausalLM.from_pretrained(self.path, dtype=dtype).eval()
        if architecture not in OWN_ATTENTION:
            model.set_attn_implementation(PAGED)
        recipe = read_recipe(model, LENGTH)
        states = StateSlots(8, 0) if recipe.state_bytes(dtype) else None
        self.program = Program(
            recipe, dtype, quantize, blocks=40, block_size=BLOCK, states=8, max_tokens=LENGTH, threads=2,
            names={module: name for name, module in model.named_modules()},
        )  # fmt: skip
        self.runner = NativeModelRunner(self.program, BLOCK, states)
        self.modules = sorted(name for name in self.runner.adaptable_modules if not name.endswith(_UNTAKEN))
        # Falcon's own attention with ALiBi is another one where it is asked for by name.
        named = {} if architecture in OWN_ATTENTION else {"attn_implementation": "eager"}
        self.peft = _with_adapters(self.path, self.modules, **named)
        self.adapters = {name: _adapter_of(self.peft, name) for name in RANKS}
        for slot, adapter in enumerate(self.adapters.values(), 1):
            self.runner.load_adapter(slot, adapter)

    def slot(self, name: str) -> int:
        return 0 if name == BASE else list(RANKS).index(name) + 1

    def sequence(self, seed: int, blocks: list[int], name: str, length: int = 20, **params: Any) -> Sequence:
        rng = random.Random(seed)
        one = sequence([rng.randrange(VOCABULARY) for _ in range(length)], blocks, **params)
        one.adapter_slot = self.slot(name)
        return one

    @torch.inference_mode()
    def expected(self, one: Sequence, name: str) -> Tensor:
        """Logits (tokens, vocabulary) of peft's model with this adapter."""
        with ExitStack() as stack:
            if name == BASE:
                stack.enter_context(self.peft.disable_adapter())
            else:
                self.peft.set_adapter(name)
            logits: Tensor = self.peft(input_ids=torch.tensor([one.tokens]), use_cache=False).logits[0].float()
        return logits


def _with_adapters(path: Path, modules: list[str], **named: Any) -> PeftModel:
    """The model in fp32 with an adapter of each rank, of random numbers; that of `some` changes every third module."""
    torch.manual_seed(5)
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **named).eval()
    for name, rank in RANKS.items():
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=modules[::3] if name == "some" else modules)
        with patch(_CONVERSION):
            if isinstance(model, PeftModel):
                model.add_adapter(name, config)
            else:
                model = get_peft_model(model, config, name)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            nn.init.normal_(parameter, std=0.08)
    made: PeftModel = model.eval()
    return made


def _adapter_of(model: PeftModel, adapter: str) -> LoraAdapter:
    """What `peft_files` would read of an adapter of a model of peft's."""
    products = {}
    base: Any = model.base_model
    for name, module in base.model.named_modules():
        if not isinstance(module, LoraLayer):
            continue
        scale = module.scaling.get(adapter, 0)
        if adapter in module.lora_A:
            a, b = (matrices[adapter].get_parameter("weight").data for matrices in (module.lora_A, module.lora_B))
            products[name] = LowRank(a, b * scale)
        elif adapter in module.lora_embedding_A:
            scale *= float(getattr(module.base_layer, "embed_scale", 1.0))
            products[name] = LowRank(
                module.lora_embedding_A[adapter].data, module.lora_embedding_B[adapter].data * scale
            )
    return LoraAdapter(RANKS[adapter], products)


def run(adapted: Adapted, sequences: list[Sequence], lengths: list[int]) -> list[Tensor]:
    """One step, of so many tokens of each sequence; its logits, by sequence."""
    chunks = [SequenceChunk(one, length) for one, length in zip(sequences, lengths, strict=True)]
    logits = adapted.runner.run(chunks)
    counts = [chunk.length if chunk.sequence.wants_prompt_logprobs else int(chunk.completes) for chunk in chunks]
    for chunk in chunks:
        chunk.sequence.computed += chunk.length
    return [each.clone() for each in torch.split(logits, counts)]


@pytest.fixture(params=NATIVE)
def adapted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Adapted]:
    made = Adapted(tmp_path, request.param)
    yield made
    made.program.close()


def test_each_row_of_a_mixed_batch_is_pefts(adapted: Adapted) -> None:
    """Prompts in pieces and single tokens, of three adapters and of none, that begin and end at different steps."""
    adapted.program.cache.bytes.fill_(0xFF)
    names = ["wide", BASE, "narrow", "some", "wide"]
    everything = [
        adapted.sequence(seed, [7 * seed + 1, 7 * seed, 7 * seed + 2], name, prompt_logprobs=0)
        for seed, name in enumerate(names)
    ]
    rows: list[list[Tensor]] = [[] for _ in names]
    # So many tokens of each sequence in each step.
    for lengths in ((9, 3, 0, 0, 1), (1, 4, 8, 5, 12), (0, 1, 1, 1, 1), (10, 12, 11, 14, 6)):
        running = [i for i, length in enumerate(lengths) if length]
        made = run(adapted, [everything[i] for i in running], [lengths[i] for i in running])
        for i, piece in zip(running, made, strict=True):
            rows[i].append(piece)
    for i, name in enumerate(names):
        actual, expected = torch.cat(rows[i]), adapted.expected(everything[i], name)
        assert torch.allclose(actual, expected, atol=1e-4 * max(1.0, float(expected.abs().max()))), name
        base = adapted.expected(everything[i], BASE)
        assert (name == BASE) == torch.allclose(actual, base, atol=1e-3), name


@pytest.fixture(scope="module")
def llama(_kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapted]:
    made = Adapted(tmp_path_factory.mktemp("llama"), "llama")
    yield made
    made.program.close()


def test_rows_without_an_adapter_are_the_bases_to_the_last_bit(llama: Adapted) -> None:
    def logits(*names: str) -> list[Tensor]:
        sequences = [llama.sequence(seed, [2 * seed, 2 * seed + 1], name) for seed, name in enumerate(names)]
        return run(llama, sequences, [20] * len(names))

    alone, mixed = logits(BASE, BASE, BASE), logits("wide", BASE, "some")
    assert torch.equal(mixed[1], alone[1])
    assert not torch.allclose(mixed[0], alone[0], atol=1e-2)
    assert not torch.allclose(mixed[2], alone[2], atol=1e-2)


def test_a_step_without_adapters_runs_the_programs_own_operations(llama: Adapted) -> None:
    """With adapters loaded, and after a step that had some: nothing is added to it."""
    run(llama, [llama.sequence(1, [0, 1], "wide")], [20])
    before = llama.runner.operator_seconds()
    run(llama, [llama.sequence(1, [0, 1], BASE)], [20])
    after = llama.runner.operator_seconds()
    for kind in ("low_rank", "low_rank_embed"):
        assert after[kind] == before[kind] > 0
    assert after["linear"] > before["linear"]


def test_a_slot_takes_another_adapter_or_none(llama: Adapted) -> None:
    def logits(slot: int) -> Tensor:
        one = llama.sequence(3, [4, 5], BASE)
        one.adapter_slot = slot
        (row,) = run(llama, [one], [20])
        return row

    base, narrow, some = logits(0), logits(llama.slot("narrow")), logits(llama.slot("some"))
    llama.runner.load_adapter(9, llama.adapters["narrow"])
    assert torch.equal(logits(9), narrow)
    llama.runner.load_adapter(9, llama.adapters["some"])
    assert torch.equal(logits(9), some)
    llama.runner.unload_adapter(9)
    assert torch.equal(logits(9), base)
    assert torch.equal(logits(llama.slot("narrow")), narrow)


def test_a_module_that_no_product_has_is_refused_by_name(tmp_path: Path) -> None:
    adapted = Adapted(tmp_path, "qwen3_moe")
    experts = "model.layers.0.mlp.experts"
    assert experts not in adapted.runner.adaptable_modules
    with pytest.raises(NotUnderstoodError, match=experts):
        adapted.runner.load_adapter(1, LoraAdapter(2, {experts: LowRank(torch.ones(2, 64), torch.ones(64, 2))}))
    assert isinstance(adapted.runner, AdapterRunner)
    adapted.program.close()


@pytest.mark.parametrize("head", [True, False])
def test_tokens_of_few_exact_logits_are_those_of_all(
    head: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter that changes the head itself needs all of them."""
    monkeypatch.setattr(rescoring, "LEAST_WEIGHTS", 0)
    adapted = Adapted(tmp_path, "llama", torch.bfloat16)
    if not head:
        for slot, adapter in enumerate(adapted.adapters.values(), 1):
            products = {name: each for name, each in adapter.products.items() if name != "lm_head"}
            adapted.runner.load_adapter(slot, LoraAdapter(adapter.rank, products))
    names = ["wide", BASE, "narrow", "wide"]
    chunks = [
        SequenceChunk(adapted.sequence(seed, [2 * seed, 2 * seed + 1], name), 20) for seed, name in enumerate(names)
    ]
    picked = adapted.runner.pick(chunks, ask(len(chunks)))
    logits = adapted.runner.run(chunks)
    if head:
        assert picked is None
    elif isinstance(picked, Tensor):  # not all rows could be told
        assert torch.equal(picked, logits)
    else:
        assert picked is not None
        assert picked.token_ids == logits.argmax(1).tolist()
    adapted.program.close()


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("dtype", "quantize"),
    [(torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, "int8"), (torch.bfloat16, "int4")],
)
def test_an_adapters_part_is_exact_whatever_the_weights_are_rounded_to(
    _kernels: None, dtype: torch.dtype, quantize: Quantize | None, gated: bool
) -> None:
    """It is the same beside rounded weights as beside exact ones, and added before the activation."""
    n, k, rows, rank = 150, 320, 13, 5
    random = torch.Generator().manual_seed(1)

    def numbers(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(*shape, generator=random)

    pool = ThreadPool(2)
    modules = [nn.Linear(k, n), nn.Linear(k, n)][: 1 + gated]
    linears = [Linear(numbers(n, k, scale=0.05).to(dtype), None, RowOrigins.of_module(module, n)) for module in modules]
    builder = ProgramBuilder(dtype, quantize, pool, Arena(), k, 32)
    x, out = numbers(rows, k).to(dtype), torch.empty(2, rows, n, dtype=dtype if gated else torch.float32)
    epilogue = Epilogue(activation=Activation.SILU, gated=True) if gated else None
    output = Output(mode=Mode.STORE if gated else Mode.STORE_FP32)
    builder.add_linear(builder.pack(*linears), Rows(x.data_ptr(), k), output, epilogue)
    adapters = ProgramAdapters(builder.adaptable, dict(zip(modules, "ab", strict=False)), dtype, 32)
    products = {name: LowRank(numbers(rank, k, scale=0.05), numbers(n, rank)) for name in "ab"[: 1 + gated]}
    adapters.load(2, LoraAdapter(rank, products))
    slots = np.array([2, 0, 2] * rows, np.int32)[:rows]
    arrays = AdapterArrays.of(slots)
    step = StepInputs(tokens=rows)
    arrays.bind(step)
    (adapted,) = adapters.operations(builder.operations)
    for operations, into in ((builder.operations, out[0]), (adapted, out[1])):
        array = OperationArray(operations)
        array.view(-1, LinearOp).output.out = into.data_ptr()
        pool.run(array, step, bf16=dtype == torch.bfloat16)
    pool.close()
    added = [x.double() @ each.a.to(dtype).double().T @ each.b.to(dtype).double().T for each in products.values()]
    for row, slot in enumerate(slots):
        base, changed = out[0][row].double(), out[1][row].double()
        if not slot:
            assert torch.equal(changed, base)
        elif not gated:
            assert torch.allclose(changed - base, added[0][row], atol=2e-5 * float(added[0].abs().max()))
    if gated and quantize is None:
        gate, up = (x.double() @ one.numbers.double().T + more for one, more in zip(linears, added, strict=True))
        expected = (functional.silu(gate) * up)[slots > 0]
        tolerance = 1e-5 if dtype == torch.float32 else 1e-2
        assert torch.allclose(out[1][slots > 0].double(), expected, rtol=tolerance, atol=tolerance)
