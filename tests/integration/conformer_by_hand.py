"""The Conformer of the papers, one frame and one head at a time, in float64: slow, and written without our modules.

Attention: Transformer-XL (arXiv 1901.02860), section 3.3, without the relative shift, as WeNet has it. Layer:
Conformer (arXiv 2005.08100), section 2. A symmetric convolution is padded with zeros behind its gate, a causal one in
front of it.
"""

from __future__ import annotations

import math

import numpy as np

ACTIVATIONS = {
    "swish": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2))),
}


class ByHand:
    """One utterance through the weights of a model, given as WeNet names them."""

    def __init__(self, weights, config):
        self.w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
        self.config = config
        self.activation = ACTIVATIONS[config.activation_type]

    def log_probs(self, features, chunk_size=0, num_left_chunks=-1, first_position=0):
        """Return (frames', vocabulary) of features (frames, mels)."""
        x = self.embedded(
            (features - self.w["encoder.global_cmvn.mean"]) * self.w["encoder.global_cmvn.istd"]
        )
        positions = [self.sinusoid(first_position + frame) for frame in range(len(x))]
        for index in range(self.config.num_blocks):
            x = self.layer(f"encoder.encoders.{index}.", x, positions, chunk_size, num_left_chunks)
        logits = self.linear("ctc.ctc_lo", self.layer_norm("encoder.after_norm", x))
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def embedded(self, features):
        maps = features[None]
        for name in ("encoder.embed.conv.0", "encoder.embed.conv.2"):
            maps = np.maximum(self.conv2d(name, maps), 0)
        flat = maps.transpose(1, 0, 2).reshape(maps.shape[1], -1)  # by frame: channel, then bin
        return self.linear("encoder.embed.out.0", flat) * np.sqrt(self.config.output_size)

    def conv2d(self, name, maps):
        weight, bias = self.w[f"{name}.weight"], self.w[f"{name}.bias"]
        num_frames, num_bins = ((size - 3) // 2 + 1 for size in maps.shape[1:])
        out = np.empty((len(bias), num_frames, num_bins))
        for frame in range(num_frames):
            for bin_ in range(num_bins):
                window = maps[:, 2 * frame : 2 * frame + 3, 2 * bin_ : 2 * bin_ + 3]
                out[:, frame, bin_] = (weight * window).sum((1, 2, 3)) + bias
        return out

    def layer(self, name, x, positions, chunk_size, num_left_chunks):
        x = x + 0.5 * self.feed_forward(
            f"{name}feed_forward_macaron", self.layer_norm(f"{name}norm_ff_macaron", x)
        )
        normed = self.layer_norm(f"{name}norm_mha", x)
        x = x + self.attention(f"{name}self_attn", normed, positions, chunk_size, num_left_chunks)
        x = x + self.convolution(f"{name}conv_module", self.layer_norm(f"{name}norm_conv", x))
        x = x + 0.5 * self.feed_forward(f"{name}feed_forward", self.layer_norm(f"{name}norm_ff", x))
        return self.layer_norm(f"{name}norm_final", x)

    def feed_forward(self, name, x):
        return self.linear(f"{name}.w_2", self.activation(self.linear(f"{name}.w_1", x)))

    def attention(self, name, x, positions, chunk_size, num_left_chunks):
        size = self.config.output_size // self.config.attention_heads
        queries, keys, values = (self.linear(f"{name}.linear_{part}", x) for part in "qkv")
        places = np.stack(positions) @ self.w[f"{name}.linear_pos.weight"].T
        attended = np.zeros_like(x)
        for head in range(self.config.attention_heads):
            part = slice(head * size, (head + 1) * size)
            u, v = self.w[f"{name}.pos_bias_u"][head], self.w[f"{name}.pos_bias_v"][head]
            for i in range(len(x)):
                seen = [j for j in range(len(x)) if sees(i, j, chunk_size, num_left_chunks)]
                scores = [
                    (queries[i, part] + u) @ keys[j, part]
                    + (queries[i, part] + v) @ places[j, part]
                    for j in seen
                ]
                weights = np.exp(np.array(scores) / np.sqrt(size))
                attended[i, part] = weights / weights.sum() @ values[seen, part]
        return self.linear(f"{name}.linear_out", attended)

    def convolution(self, name, x):
        kernel, causal = self.config.cnn_module_kernel, self.config.causal
        if causal:
            gated = self.gate(name, np.concatenate([np.zeros((kernel - 1, x.shape[1])), x]))
        else:
            zeros = np.zeros((kernel // 2, x.shape[1]))
            gated = np.concatenate([zeros, self.gate(name, x), zeros])
        weight, bias = (
            self.w[f"{name}.depthwise_conv.weight"][:, 0],
            self.w[f"{name}.depthwise_conv.bias"],
        )
        y = np.stack([(gated[i : i + kernel].T * weight).sum(1) + bias for i in range(len(x))])
        y = self.activation(self.conv_norm(f"{name}.norm", y))
        return (
            y @ self.w[f"{name}.pointwise_conv2.weight"][:, :, 0].T
            + self.w[f"{name}.pointwise_conv2.bias"]
        )

    def gate(self, name, x):
        y = (
            x @ self.w[f"{name}.pointwise_conv1.weight"][:, :, 0].T
            + self.w[f"{name}.pointwise_conv1.bias"]
        )
        half = y.shape[1] // 2
        return y[:, :half] / (1 + np.exp(-y[:, half:]))

    def conv_norm(self, name, y):
        if self.config.cnn_module_norm == "layer_norm":
            return self.layer_norm(name, y)
        scale = self.w[f"{name}.weight"] / np.sqrt(self.w[f"{name}.running_var"] + 1e-5)
        return (y - self.w[f"{name}.running_mean"]) * scale + self.w[f"{name}.bias"]

    def layer_norm(self, name, x):
        centered = x - x.mean(-1, keepdims=True)
        normed = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
        return normed * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def linear(self, name, x):
        return x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]

    def sinusoid(self, position):
        out = np.empty(self.config.output_size)
        for pair in range(self.config.output_size // 2):
            angle = position / 10000 ** (2 * pair / self.config.output_size)
            out[2 * pair], out[2 * pair + 1] = np.sin(angle), np.cos(angle)
        return out


def sees(query, key, chunk_size, num_left_chunks):
    if chunk_size <= 0:
        return True
    age = query // chunk_size - key // chunk_size
    return age >= 0 and (num_left_chunks < 0 or age <= num_left_chunks)
