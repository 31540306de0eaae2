"""One layer of a Conformer: attention whose keys carry their position, and a gated convolution.

Parameters carry WeNet's names. A layer is given its past and returns what the future needs; how that is stored is not
its business.

The score of query i and key j is (q_i + u)·k_j + (q_i + v)·p_j, where p_j is the projected sinusoid of the key's own
position (WeNet dropped the relative shift of Transformer-XL). That equals q_i·(k_j + p_j) + (u·k_j + v·p_j): all that
the key's position contributes is computed once, when the key is, and cached with it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own convention)

from oasr_backend.export.conformer_config import ConformerConfig

KeysAndValues = tuple[Tensor, Tensor]
"""Two tensors of one shape, so that a cache holds them alike: keys, whose last channel is the score bias of their own,
and values, whose last channel is 0."""

MASKED = -30000.0
"""Added to the score of a key that must not be seen: exp() of it is 0, and half precision can hold it."""

ACTIVATIONS: dict[str, type[nn.Module]] = {"swish": nn.SiLU, "relu": nn.ReLU, "gelu": nn.GELU}


class FeedForward(nn.Module):
    """Two linear layers with an activation between."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        self.w_1 = nn.Linear(config.output_size, config.linear_units)
        self.w_2 = nn.Linear(config.linear_units, config.output_size)
        self.activation = ACTIVATIONS[config.activation_type]()
        self.dropout = nn.Dropout(config.dropout_rate)

    def forward(self, x: Tensor) -> Tensor:
        """Return half of what it makes of (batch, frames, size): what a Conformer adds."""
        hidden = self.dropout(self.activation(self.w_1(x)))
        return F.linear(hidden, 0.5 * self.w_2.weight, 0.5 * self.w_2.bias)


class Attention(nn.Module):
    """Self-attention whose keys carry their absolute position."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        size = config.output_size
        self.heads = (config.attention_heads, config.head_size)
        self.linear_q = nn.Linear(size, size)
        self.linear_k = nn.Linear(size, size)
        self.linear_v = nn.Linear(size, size)
        self.linear_out = nn.Linear(size, size)
        self.linear_pos = nn.Linear(size, size, bias=False)
        self.pos_bias_u = nn.Parameter(torch.empty(self.heads))
        self.pos_bias_v = nn.Parameter(torch.empty(self.heads))
        nn.init.xavier_uniform_(self.pos_bias_u)
        nn.init.xavier_uniform_(self.pos_bias_v)
        self.dropout = nn.Dropout(config.attention_dropout_rate)

    def forward(
        self, x: Tensor, positions: Tensor, bias: Tensor, past: KeysAndValues | None = None
    ) -> tuple[Tensor, KeysAndValues]:
        """Return what the frames attended to, and their own keys and values for later.

        x: (batch, frames, size).
        positions: (batch or 1, frames, size), the sinusoids of the frames' positions.
        bias: added to the scores; broadcasts to (batch, heads, frames, past + frames). MASKED hides a key.
        past: keys and values that earlier calls returned, joined along the frames; None for no past.
        Returns (batch, frames, size), and keys and values, (batch, heads, frames, plane_width) each.
        """
        num_heads, width = self.heads[0], self.heads[1] + 1
        weight, bias_of = self._joined()
        joined = self._split(F.linear(x, weight, bias_of), 3 * num_heads)
        query, keys, values = joined.chunk(3, dim=1)
        keys = keys + self._split(F.linear(positions, self._places()), num_heads)
        new = (keys, values)
        if past is not None:
            keys, values = torch.cat([past[0], keys], dim=2), torch.cat([past[1], values], dim=2)
        weights = torch.softmax(query @ keys.transpose(2, 3) + bias, dim=-1)
        attended = self.dropout(weights) @ values
        # The last channel, which is 0, meets a weight of 0.
        out = F.pad(self.linear_out.weight.reshape(-1, *self.heads), (0, 1)).flatten(1)
        y = F.linear(attended.transpose(1, 2).reshape(*x.shape[:2], num_heads * width), out)
        return y + self.linear_out.bias, new

    def _joined(self) -> tuple[Tensor, Tensor]:
        """Return the weight (3 · heads · plane_width, size) and bias of queries, keys and values, a product of one.

        A query is scaled, and its last channel takes the score bias of a key as it is. A key's last channel is u·k.
        """
        scale = 1 / math.sqrt(self.heads[1])
        u = self.pos_bias_u.unsqueeze(1)
        query, key, value = (
            (layer.weight.reshape(*self.heads, -1), layer.bias.reshape(self.heads))
            for layer in (self.linear_q, self.linear_k, self.linear_v)
        )
        weight = [
            F.pad(query[0] * scale, (0, 0, 0, 1)),
            torch.cat([key[0], u @ key[0]], dim=1),
            F.pad(value[0], (0, 0, 0, 1)),
        ]
        bias = [
            F.pad(query[1] * scale, (0, 1), value=scale),
            torch.cat([key[1], (self.pos_bias_u * key[1]).sum(1, keepdim=True)], dim=1),
            F.pad(value[1], (0, 1)),
        ]
        return torch.cat(weight).flatten(0, 1), torch.cat(bias).flatten()

    def _places(self) -> Tensor:
        """Return the weight (heads · plane_width, size) of what a position adds to a key; the last channel is v·p."""
        weight = self.linear_pos.weight.reshape(*self.heads, -1)
        return torch.cat([weight, self.pos_bias_v.unsqueeze(1) @ weight], dim=1).flatten(0, 1)

    def _split(self, x: Tensor, num_heads: int) -> Tensor:
        return x.reshape(*x.shape[:2], num_heads, self.heads[1] + 1).transpose(1, 2)


class Convolution(nn.Module):
    """A gate, a convolution over time within each channel, a norm and an activation.

    What it keeps of the past is the gate's output, not its input: that spares computing the gate twice. Before the
    first frame lies what the gate makes of zeros, since WeNet pads a causal convolution in front of the gate. A
    symmetric one is padded behind the gate, with zeros. WeNet pads a batch in front of the gate in both cases, so that
    with a symmetric convolution its last frames depend on the batch; here every row is as if alone.
    """

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        size, kernel = config.output_size, config.cnn_module_kernel
        self.causal, self.left_context = config.causal, config.left_context
        self.pointwise_conv1 = nn.Conv1d(size, 2 * size, 1)
        self.depthwise_conv = nn.Conv1d(
            size, size, kernel, padding=0 if self.causal else kernel // 2, groups=size
        )
        self.norm: nn.BatchNorm1d | nn.LayerNorm
        if config.cnn_module_norm == "batch_norm":
            self.norm = nn.BatchNorm1d(size, eps=config.conv_norm_eps)
        else:
            self.norm = nn.LayerNorm(size, eps=config.conv_norm_eps)
        self.activation = ACTIVATIONS[config.activation_type]()
        self.pointwise_conv2 = nn.Conv1d(size, size, 1)

    def forward(self, x: Tensor, frame_mask: Tensor | None, past: Tensor) -> tuple[Tensor, Tensor]:
        """Return the frames convolved, and what the next chunk needs as its past.

        x: (batch, frames, size).
        frame_mask: (batch, frames, 1) bool, True where a frame is not padding; None where none is.
        past: (batch, left_context, size), from the call before or from `before_start`; unused unless causal.
        Returns (batch, frames, size) and (batch, left_context, size).
        """
        gated = F.glu(_pointwise(self.pointwise_conv1, x), dim=-1)
        if self.causal:
            gated = torch.cat([past, gated], dim=1)
        elif frame_mask is not None:
            gated = gated.masked_fill(~frame_mask, 0.0)
        # As one over a height of 1: in two dimensions ONNX Runtime has a kernel for it.
        conv = self.depthwise_conv
        y = F.conv2d(
            gated.transpose(1, 2).unsqueeze(2),
            conv.weight.unsqueeze(2),
            conv.bias,
            padding=(0, int(conv.padding[0])),
            groups=conv.groups,
        )
        y = self._norm(y.squeeze(2))
        return _pointwise(self.pointwise_conv2, self.activation(y)), gated[:, -self.left_context :]

    def before_start(self, num_rows: int) -> Tensor:
        """Return the past of a first frame: (batch, left_context, size)."""
        bias = self.pointwise_conv1.bias
        assert bias is not None
        return F.glu(bias, dim=-1).expand(num_rows, self.left_context, -1)

    def _norm(self, channels_first: Tensor) -> Tensor:
        if isinstance(self.norm, nn.BatchNorm1d):
            y: Tensor = self.norm(channels_first).transpose(1, 2)
        else:
            y = self.norm(channels_first.transpose(1, 2))
        return y


def _pointwise(layer: nn.Conv1d, x: Tensor) -> Tensor:
    """Apply a convolution of width 1 to (batch, frames, channels) without turning it around."""
    return F.linear(x, layer.weight.squeeze(-1), layer.bias)


class ConformerLayer(nn.Module):
    """Half a feed-forward, attention, convolution, half a feed-forward; each normalized before, and once after."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        size, eps = config.output_size, config.norm_eps
        self.feed_forward_macaron = FeedForward(config)
        self.self_attn = Attention(config)
        self.conv_module = Convolution(config)
        self.feed_forward = FeedForward(config)
        self.norm_ff_macaron = nn.LayerNorm(size, eps=eps)
        self.norm_mha = nn.LayerNorm(size, eps=eps)
        self.norm_conv = nn.LayerNorm(size, eps=eps)
        self.norm_ff = nn.LayerNorm(size, eps=eps)
        self.norm_final = nn.LayerNorm(size, eps=eps)
        self.dropout = nn.Dropout(config.dropout_rate)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        bias: Tensor,
        frame_mask: Tensor | None,
        past_keys_values: KeysAndValues | None,
        past_conv: Tensor,
    ) -> tuple[Tensor, KeysAndValues, Tensor]:
        """Return the frames and what to cache of them; arguments as of `Attention` and `Convolution`."""
        x = x + self.dropout(self.feed_forward_macaron(self.norm_ff_macaron(x)))
        y, keys_values = self.self_attn(self.norm_mha(x), positions, bias, past_keys_values)
        x = x + self.dropout(y)
        y, conv = self.conv_module(self.norm_conv(x), frame_mask, past_conv)
        x = x + self.dropout(y)
        x = x + self.dropout(self.feed_forward(self.norm_ff(x)))
        return self.norm_final(x), keys_values, conv


def sinusoids(positions: Tensor, size: int) -> Tensor:
    """Return (..., size) float32 of positions (...): sine and cosine of `size // 2` falling frequencies, interleaved.

    The formula of "Attention Is All You Need", section 3.5. Computed, not looked up: a stream may go on for ever.
    """
    exponents = torch.arange(0, size, 2, device=positions.device, dtype=torch.float32)
    frequencies = torch.exp(exponents * -(math.log(10000.0) / size))
    angles = positions.unsqueeze(-1).to(torch.float32) * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def mask_bias(visible: Tensor) -> Tensor:
    """Return what to add to a score: 0 where `visible` (bool) is True, MASKED where it is not."""
    return torch.where(visible, 0.0, MASKED)


def chunk_mask(
    num_frames: int, chunk_size: int | Tensor, num_left_chunks: int | Tensor, device: torch.device
) -> Tensor:
    """Return (num_frames, num_frames) bool: whether query i, by row, sees key j.

    chunk_size: frames of a chunk, counted from the start; 0 or less for one chunk of all frames.
    num_left_chunks: how many chunks before its own a query sees; negative for all.
    """
    indices = torch.arange(num_frames, device=device)
    size = torch.as_tensor(chunk_size, device=device)
    size = torch.where(size > 0, size, num_frames)
    left = torch.as_tensor(num_left_chunks, device=device)
    left = torch.where(left >= 0, left, num_frames)
    chunks = indices // size
    age = chunks.unsqueeze(1) - chunks.unsqueeze(0)
    return (age >= 0) & (age <= left)
