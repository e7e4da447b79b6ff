"""The arithmetic of one layer on plain tensors: rows, compression, routing, attention, recurrence.

Invariant: functions of their arguments; no page, no table, no request is known here. Leading dimensions are written
``...`` and broadcast. Formulas: DeepSeek-V4 report, sections 2.3 and 3.5, in small.
"""

import torch

from .config import ModelConfig
from .weights import LayerWeights

_EPSILON = 1e-6


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    """Scale the last dimension to unit root mean square."""
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + _EPSILON)
    return y if weight is None else y * weight


def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of the last dimension by the position (RoPE, half-split).

    Args:
        x: [..., width], width even.
        positions: Integers that broadcast to the leading dimensions of ``x``.
    """
    half = x.shape[-1] // 2
    exact = torch.float64 if x.dtype == torch.float64 else torch.float32
    steps = torch.arange(half, device=x.device, dtype=exact)
    angles = positions.to(exact).unsqueeze(-1) * torch.pow(torch.tensor(100.0, dtype=exact), -steps / half)
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), -1)


def finish_row(config: ModelConfig, raw: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Turn a projection into a key-value row: normed latent, rotated rest. [..., row] to [..., row]."""
    latent = rms_norm(raw[..., : config.latent])
    return torch.cat((latent, rotate(raw[..., config.latent :], positions)), -1)


def queries(config: ModelConfig, weights: LayerWeights, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return [..., heads, row] queries of the tokens ``x`` [..., width]."""
    raw = (x @ weights.query).unflatten(-1, (config.heads, config.row))
    rotated = rotate(raw[..., config.latent :], positions.unsqueeze(-1))
    return torch.cat((raw[..., : config.latent], rotated), -1)


def attend(config: ModelConfig, q: torch.Tensor, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attend from each query to the rows its mask allows; every query must be allowed at least one.

    Args:
        config: The model.
        q: [..., heads, row].
        rows: [m, row] shared by all queries, or [..., m, row].
        mask: [..., m] true where allowed.

    Returns:
        [..., heads * latent].
    """
    scores = q @ rows.transpose(-1, -2) if rows.dim() > 2 else torch.einsum("...hd,md->...hm", q, rows)
    scores = (scores * config.row**-0.5).masked_fill(~mask.unsqueeze(-2), float("-inf"))
    values = rows[..., : config.latent]
    return (scores.softmax(-1) @ values).flatten(-2)


def compress_overlapping(
    before: torch.Tensor, current: torch.Tensor, bias: torch.Tensor, first: torch.Tensor
) -> torch.Tensor:
    """Pool two neighbouring groups of m tokens into one entry, channel by channel (CSA compressor).

    The group itself takes part with its first value and score, the one before it with its second.

    Args:
        before: [..., m, 4, c]: value, score, overlap value, overlap score of the group before.
        current: [..., m, 4, c]: the same of the group itself.
        bias: [2 * m, c] added to the scores.
        first: [...] true where there is no group before.

    Returns:
        [..., c].
    """
    values = torch.cat((before[..., 2, :], current[..., 0, :]), -2)
    scores = torch.cat((before[..., 3, :].masked_fill(first[..., None, None], float("-inf")), current[..., 1, :]), -2)
    share = (scores + bias).softmax(-2)
    return (share * values).sum(-2)


def compress(current: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Pool one group of m tokens into one entry, channel by channel (HCA compressor).

    Args:
        current: [..., m, 2, c]: value and score.
        bias: [m, c].
    """
    share = (current[..., 1, :] + bias).softmax(-2)
    return (share * current[..., 0, :]).sum(-2)


def index_scores(config: ModelConfig, weights: LayerWeights, x: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Score compressed entries for each query (lightning indexer).

    Args:
        config: The model.
        weights: Weights of a CSA layer.
        x: [..., width] tokens.
        keys: [m, index_width] shared, or [..., m, index_width].

    Returns:
        [..., m]: sum over heads of weight times ReLU of the product.
    """
    q = (x @ weights.index_query).unflatten(-1, (config.index_heads, config.index_width))
    share = x @ weights.index_weight
    product = q @ keys.transpose(-1, -2) if keys.dim() > 2 else torch.einsum("...hd,md->...hm", q, keys)
    return (share.unsqueeze(-1) * product.relu()).sum(-2)


def ranking(scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Return entry numbers [..., m], best first; equal scores go to the older entry on every path.

    Scores are compared on a grid: those of equal entries (a prompt that repeats one token) differ by rounding noise,
    which depends on how the work was cut, and a choice that follows noise could not be compared with anything.
    """
    grid = 2.0**24 if scores.dtype == torch.float64 else 2.0**10
    steps = torch.round(scores * grid).masked_fill(~visible, float("-inf"))
    return torch.sort(steps, dim=-1, descending=True, stable=True).indices


def choose(config: ModelConfig, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Return the mask [..., m] of the top-k visible entries."""
    count = scores.shape[-1]
    if count <= config.top_k:
        return visible
    best = ranking(scores, visible)[..., : config.top_k]
    chosen = torch.zeros_like(visible).scatter(-1, best, value=True)
    return chosen & visible


def state_inputs(
    config: ModelConfig, weights: LayerWeights, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return query, key, value and decay of a recurrent layer, each [..., state_width]."""
    q, k, v, gate = (x @ weights.state).unflatten(-1, (4, config.state_width)).unbind(-2)
    return q, rms_norm(k), v, torch.sigmoid(gate + 2.0)


def state_step(state: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """Advance a recurrent state [..., key, value] by one token."""
    return state * decay.unsqueeze(-1) + k.unsqueeze(-1) * v.unsqueeze(-2)


def state_read(q: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """Read a recurrent state: [..., key] and [..., key, value] to [..., value]."""
    return rms_norm((q.unsqueeze(-2) @ state).squeeze(-2))


def mlp(weights: LayerWeights, hidden: torch.Tensor) -> torch.Tensor:
    """Return the residual of the feed-forward half of a layer."""
    gate, value = (rms_norm(hidden, weights.mlp_norm) @ weights.mlp_up).chunk(2, -1)
    return (torch.nn.functional.silu(gate) * value) @ weights.mlp_down
