"""How fast the reference engine is, as ratios: paged decode against dense decode, reuse against recomputation.

Run it with ``python benchmarks/reference_speed.py [--json]``. Ratios hold on any machine; times are for this one.
Goals: paged decode within 2x of dense at batch 1 and 8; first token of a reused 4,000-token prompt at least 20x sooner.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable

import torch

from agent.reference import layers
from agent.reference.config import EngineConfig, LayerKind, ModelConfig
from agent.reference.engine import Engine
from agent.reference.graph import Row
from agent.reference.span import Past, advance, span_forward
from agent.reference.weights import LayerWeights, Weights, build_weights

MODEL = ModelConfig(dtype="float32", width=256, heads=4, latent=64, rope=16, mlp=512, window=64, top_k=32)
CONTEXT = 1_024
STEPS = 40


class DenseDecode:
    """The same model with one contiguous cache a request and no pages: what somebody would write first.

    Caches are preallocated [batch, tokens, ...] tensors; a step writes one row and reads slices.
    """

    def __init__(self, weights: Weights, batch: int, context: int, room: int) -> None:
        self.weights, self.config, self.batch, self.at = weights, weights.config, batch, context
        dice = random.Random(1)
        tokens = [dice.randrange(self.config.vocabulary) for _ in range(context)]
        pasts = _empty(weights)
        for start in range(0, context, 128):
            _, fresh = span_forward(weights, tokens[start : start + 128], start, pasts, checkpoint=128)
            pasts = advance(self.config, pasts, fresh, start + 128)
        self.caches = [self._cache(past, room) for past in pasts]
        self.token = torch.full((batch,), tokens[-1])

    def _cache(self, past: Past, room: int) -> dict[str, torch.Tensor]:
        cache = {}
        for name in ("window", "entries", "keys", "tail"):
            part = getattr(past, name)
            if part is not None:
                full = part.new_zeros(self.batch, part.shape[0] + room, part.shape[1])
                full[:, : part.shape[0]] = part
                cache[name] = full
                cache[f"{name}_count"] = torch.tensor(part.shape[0])
        if past.state is not None:
            cache["state"] = past.state.expand(self.batch, -1, -1).clone()
        return cache

    def _push(self, cache: dict[str, torch.Tensor], name: str, rows: torch.Tensor) -> torch.Tensor:
        count = int(cache[f"{name}_count"])
        cache[name][:, count] = rows
        cache[f"{name}_count"] = torch.tensor(count + 1)
        return cache[name][:, : count + 1]

    def _compressed(self, layer: LayerWeights, cache: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        config, csa = self.config, layer.kind is LayerKind.CSA
        ratio = config.csa_ratio if csa else config.hca_ratio
        tail = self._push(cache, "tail", x @ layer.tail)
        visible = int(cache["entries_count"])
        if (self.at + 1) % ratio == 0:
            number = torch.full((self.batch,), self.at // ratio)
            if csa:
                main, index = tail[:, -2 * ratio :].split((4 * config.row, 4 * config.index_width), -1)
                main, index = main.unflatten(-1, (4, config.row)), index.unflatten(-1, (4, config.index_width))
                pooled = layers.compress_overlapping(main[:, :ratio], main[:, ratio:], layer.bias, number < 1)
                keys = layers.compress_overlapping(index[:, :ratio], index[:, ratio:], layer.index_bias, number < 1)
                self._push(cache, "keys", keys)
            else:
                pooled = layers.compress(tail[:, -ratio:].unflatten(-1, (2, config.row)), layer.bias)
            self._push(cache, "entries", layers.finish_row(config, pooled, number * ratio))
        entries = cache["entries"][:, :visible]
        if not csa or visible <= config.top_k:
            return entries
        scores = layers.index_scores(config, layer, x, cache["keys"][:, :visible])
        best = scores.topk(config.top_k, dim=-1).indices
        return entries.gather(1, best.unsqueeze(-1).expand(-1, -1, config.row))

    def _mix(self, layer: LayerWeights, cache: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        config = self.config
        if layer.kind is LayerKind.RECURRENT:
            q, k, v, decay = layers.state_inputs(config, layer, x)
            cache["state"] = layers.state_step(cache["state"], k, v, decay)
            return layers.state_read(q, cache["state"])
        position = torch.full((self.batch,), self.at)
        q = layers.queries(config, layer, x, position)
        if layer.kind is LayerKind.FULL:
            rows = self._push(cache, "entries", layers.finish_row(config, x @ layer.full_row, position))
        else:
            rows = self._push(cache, "window", layers.finish_row(config, x @ layer.window_row, position))
            rows = rows[:, -config.window :]
            if layer.kind is not LayerKind.WINDOW:
                rows = torch.cat((rows, self._compressed(layer, cache, x)), 1)
        return layers.attend(config, q, rows, torch.ones(rows.shape[:2], dtype=torch.bool))

    def step(self) -> torch.Tensor:
        """Decode one token of each request; returns logits."""
        with torch.no_grad():
            hidden = self.weights.embedding[self.token]
            for layer, cache in zip(self.weights.layers, self.caches, strict=True):
                x = layers.rms_norm(hidden, layer.attention_norm)
                hidden = hidden + self._mix(layer, cache, x) @ layer.output
                hidden = hidden + layers.mlp(layer, hidden)
            self.at += 1
            return layers.rms_norm(hidden, self.weights.final_norm) @ self.weights.head


def _empty(weights: Weights) -> list[Past]:
    config, pasts = weights.config, []
    for layer in weights.layers:
        past = Past()
        if layer.kind not in {LayerKind.WINDOW, LayerKind.RECURRENT}:
            past.entries = weights.head.new_zeros(0, config.row)
        if layer.kind is LayerKind.CSA:
            past.keys = weights.head.new_zeros(0, config.index_width)
        pasts.append(past)
    return pasts


def _engine(weights: Weights, tokens: int, requests: int) -> Engine:
    blocks = -(-tokens // 16) * requests
    config = EngineConfig(
        max_tokens=tokens,
        chunk=256,
        step_tokens=512,
        compressed_pages=4 * blocks,
        indexer_pages=2 * blocks,
        window_pages=4 * blocks,
        tail_pages=12 * blocks,
    )
    return Engine(weights.config, config, weights=weights)


def _paged_rows(engine: Engine, batch: int) -> list[Row]:
    """Prefill a batch of equal contexts and return their decode rows, with pages for what will be decoded."""
    dice = random.Random(1)
    prompt = [dice.randrange(engine.model.vocabulary) for _ in range(CONTEXT)]
    for number in range(batch):
        engine.submit(f"r{number}", [*prompt[:-1], number], STEPS * 4, skip_cache=True)
    while any(request.computed < CONTEXT for request in engine.requests.values()):
        engine.step()
    rows = []
    for request in engine.requests.values():
        assert engine.scheduler.grow(request, CONTEXT + STEPS * 3)
        rows.append(Row(token=request.tokens[-1], position=request.computed, tables=request.tables))
    return rows


def _median_ms(step: Callable[[], object], count: int) -> float:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        step()
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def decode_ratio(weights: Weights, batch: int) -> dict[str, float]:
    """Return milliseconds a step of both, and how many times slower paged decode is."""
    engine = _engine(weights, CONTEXT + STEPS * 4, batch)
    rows = _paged_rows(engine, batch)
    dense = DenseDecode(weights, batch, CONTEXT, STEPS * 4)
    at = [0]

    def paged() -> None:
        at[0] += 1
        engine.decode.run([Row(token=row.token, position=row.position + at[0], tables=row.tables) for row in rows])

    for warm in (paged, dense.step):
        _median_ms(warm, 5)
    # In turns, so that other load on the machine meets both alike.
    paged_ms, dense_ms = [], []
    for _ in range(STEPS):
        paged_ms.append(_median_ms(paged, 1))
        dense_ms.append(_median_ms(dense.step, 1))
    one, other = statistics.median(paged_ms), statistics.median(dense_ms)
    return {"paged_ms": round(one, 3), "dense_ms": round(other, 3), "ratio": round(one / other, 2)}


def reuse_ratio(weights: Weights, tokens: int = 4_000) -> dict[str, float]:
    """Return milliseconds to the first token of a prompt, computed and reused, and how much sooner reuse is."""
    engine = _engine(weights, tokens + 64, 2)
    dice = random.Random(2)
    prompt = [dice.randrange(engine.model.vocabulary) for _ in range(tokens)]

    def first_token(name: str) -> float:
        began = time.perf_counter()
        request = engine.submit(name, prompt, 1)
        while request.first_token_step is None:
            engine.step()
        return (time.perf_counter() - began) * 1e3

    cold = first_token("cold")
    warm = statistics.median(first_token(f"warm{number}") for number in range(5))
    assert engine.scheduler.records[-1].reused >= tokens - engine.alignment
    return {"computed_ms": round(cold, 1), "reused_ms": round(warm, 1), "ratio": round(cold / warm, 1)}


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    weights = build_weights(MODEL)
    result = {
        "decode_batch_1": decode_ratio(weights, 1),
        "decode_batch_8": decode_ratio(weights, 8),
        "first_token_4000": reuse_ratio(weights),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for name, values in result.items():
        print(f"{name:18} " + "  ".join(f"{key} {value}" for key, value in values.items()))


if __name__ == "__main__":
    main()
