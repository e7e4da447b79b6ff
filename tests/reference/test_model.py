"""The model: paged prefill and decode give what a whole-sequence computation without pages gives."""

import random

import pytest
import torch

from agent.errors import UsageError
from agent.reference.config import BlockSizes, EngineConfig, LayerKind, ModelConfig, check
from agent.reference.dense import dense_forward
from agent.reference.engine import Engine
from agent.reference.weights import build_weights
from tests.support.reference import MODEL, Recorder, Truth, relative

LAYOUTS = [
    (LayerKind.WINDOW,),
    (LayerKind.FULL,),
    (LayerKind.RECURRENT, LayerKind.RECURRENT),
    (LayerKind.CSA, LayerKind.CSA),
    (LayerKind.HCA, LayerKind.WINDOW, LayerKind.HCA),
    (LayerKind.RECURRENT, LayerKind.CSA, LayerKind.FULL, LayerKind.HCA),
]


def _tokens(count: int, seed: int = 5) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(MODEL.vocabulary) for _ in range(count)]


@pytest.mark.parametrize("chunk", [2, 7, 16, 33, 64])
def test_chunked_prefill_and_decode_equal_the_dense_model(chunk: int) -> None:
    """Prefill in chunks of any size and twenty decoded tokens equal the dense model to 1e-9."""
    truth = Truth()
    engine = Engine(MODEL, EngineConfig(chunk=chunk, poison=True), weights=truth.weights)
    recorder = Recorder(engine)
    for number, length in enumerate((1, 15, 16, 17, 63, 100)):
        engine.submit(f"r{number}", _tokens(length, number), 20)
    engine.run()
    assert recorder.worst(truth) < 1e-9


@pytest.mark.parametrize("layers", LAYOUTS, ids="+".join)
def test_any_mix_of_layers_works(layers: tuple[LayerKind, ...]) -> None:
    """Models of one kind of layer, and in any order, are computed as the dense model computes them, reused or not."""
    model = ModelConfig(layers=layers)
    truth = Truth(model)
    engine = Engine(model, EngineConfig(poison=True), weights=truth.weights)
    recorder = Recorder(engine)
    prompt = _tokens(70)
    for number in range(3):
        engine.submit(f"r{number}", prompt + _tokens(number + 1, number), 8)
        engine.run()
    assert [record.reused for record in engine.scheduler.records] == [0, 64, 64]
    assert recorder.worst(truth) < 1e-9


def test_hca_ratio_of_128_works() -> None:
    """The compression of the real model, 128 tokens an entry, pages and reuses like the short one."""
    model = ModelConfig(hca_ratio=128, layers=(LayerKind.HCA, LayerKind.CSA))
    truth = Truth(model)
    blocks = BlockSizes(main=128)
    config = EngineConfig(blocks=blocks, max_tokens=400, compressed_pages=20, tail_pages=300, poison=True)
    engine = Engine(model, config, weights=truth.weights)
    recorder = Recorder(engine)
    prompt = _tokens(300)
    for number in range(2):
        engine.submit(f"r{number}", [*prompt, number], 4)
        engine.run()
    assert engine.scheduler.records[1].reused == 256
    assert recorder.worst(truth) < 1e-9


def test_logits_are_far_from_flat() -> None:
    """Equal tokens prove something: the best token takes a fifth of the probability and changes with the history."""
    truth = Truth()
    first = _tokens(100)
    other = [(first[0] + 1) % MODEL.vocabulary, *first[1:]]
    one, two = truth.of(first).logits, truth.of(other).logits
    assert float(one.softmax(-1).max(-1).values.mean()) > 0.2
    assert float((one - two).abs().amax(-1).min()) > 0.1, "the first token must matter to every later one"


def test_weights_are_a_function_of_the_seed() -> None:
    """The same seed gives the same bytes, another one others."""
    assert build_weights(MODEL).digest() == build_weights(MODEL).digest()
    assert build_weights(MODEL).digest() != build_weights(ModelConfig(seed=2)).digest()


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.35)])
def test_smaller_dtypes_stay_near_the_oracle(dtype: str, tolerance: float) -> None:
    """The same weights in float32 and bfloat16, paged and reused, stay near the float64 truth."""
    truth, model = Truth(), ModelConfig(dtype=dtype)
    engine = Engine(model, EngineConfig(poison=True))
    recorder = Recorder(engine)
    prompt = _tokens(60)
    for number in range(2):
        engine.submit(f"r{number}", [*prompt, number], 1)
        engine.run()
    for name, seen in recorder.seen.items():
        whole = truth.of(recorder.requests[name].tokens)
        for start, hidden, _ in seen:
            assert relative(hidden.double(), whole.hidden[start : start + hidden.shape[0]]) < tolerance
    assert engine.scheduler.records[1].reused == 48


def test_rows_and_pages_are_aligned() -> None:
    """Rows start at multiples of 16 bytes and pages at multiples of the page alignment, for every dtype."""
    for dtype in ("float64", "float32", "bfloat16"):
        for alignment in (64, 576):
            model = ModelConfig(dtype=dtype, index_width=7)
            engine = Engine(model, EngineConfig(page_alignment=alignment))
            for spec in engine.pools.specs:
                size = engine.pools.tensors[spec.state].element_size()
                assert spec.elements * size % alignment == 0
                assert all(part.stride * size % 16 == 0 and part.offset * size % 16 == 0 for part in spec.parts)


def test_a_causal_model_ignores_the_future() -> None:
    """Hidden states of a prefix do not depend on what follows it."""
    weights, tokens = build_weights(MODEL), _tokens(90)
    assert torch.allclose(dense_forward(weights, tokens).hidden[:40], dense_forward(weights, tokens[:40]).hidden)


def test_shapes_that_cannot_be_paged_are_refused() -> None:
    """A block that cuts an entry in two is refused with the reason."""
    with pytest.raises(UsageError, match="HCA ratio"):
        check(ModelConfig(hca_ratio=32), EngineConfig())
