"""The shape of a Conformer encoder, under the names of WeNet's `encoder_conf`.

It knows neither torch nor files.
"""

from __future__ import annotations

from dataclasses import dataclass

from oasr_backend.errors import ConfigError

SUBSAMPLING = 4
CONTEXT_FRAMES = 7
"""Feature frames that one encoder frame sees; the next encoder frame sees those SUBSAMPLING later."""

ACTIVATIONS = ("swish", "relu", "gelu")
NORMS = ("batch_norm", "layer_norm")


@dataclass(frozen=True, slots=True)
class ConformerConfig:
    """The shape of an encoder, under the names and defaults of WeNet's `encoder_conf`.

    vocabulary_size: CTC outputs, the blank included (`output_dim`).
    input_size: mel bins of a feature frame (`input_dim`).
    causal: the convolution sees the past only; False sees kernel // 2 frames on either side.
    use_dynamic_chunk, static_chunk_size: how training masks the attention; decoding gives its own chunk size.
    """

    vocabulary_size: int
    input_size: int = 80
    output_size: int = 256
    attention_heads: int = 4
    linear_units: int = 2048
    num_blocks: int = 6
    dropout_rate: float = 0.1
    positional_dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.0
    cnn_module_kernel: int = 15
    cnn_module_norm: str = "batch_norm"
    causal: bool = False
    activation_type: str = "swish"
    norm_eps: float = 1e-5
    conv_norm_eps: float = 1e-5
    use_dynamic_chunk: bool = False
    use_dynamic_left_chunk: bool = False
    static_chunk_size: int = 0

    def __post_init__(self) -> None:
        for name in (
            "vocabulary_size",
            "output_size",
            "attention_heads",
            "linear_units",
            "num_blocks",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}; it must be at least 1: correct it"
                )
        if self.input_size < CONTEXT_FRAMES:
            raise ConfigError(
                f"input_dim is {self.input_size}; it must be at least {CONTEXT_FRAMES} mel bins: correct it"
            )
        if self.output_size % self.attention_heads or self.output_size % 2:
            raise ConfigError(
                f"output_size is {self.output_size}; it must be even and a multiple of attention_heads "
                f"({self.attention_heads}): correct one of them"
            )
        if self.cnn_module_kernel < 2 or not (self.causal or self.cnn_module_kernel % 2):
            raise ConfigError(
                f"cnn_module_kernel is {self.cnn_module_kernel}; it must be at least 2, and odd unless causal: "
                "correct it"
            )
        for name, allowed in (("activation_type", ACTIVATIONS), ("cnn_module_norm", NORMS)):
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}; implemented are {', '.join(allowed)}: only those load"
                )

    @property
    def head_size(self) -> int:
        """Channels of one attention head."""
        return self.output_size // self.attention_heads

    @property
    def plane_width(self) -> int:
        """Numbers cached for one frame in one plane: the channels of a head and one more."""
        return self.head_size + 1

    @property
    def num_planes(self) -> int:
        """Planes of a cached frame: by layer, then keys before values, then by head."""
        return self.num_blocks * 2 * self.attention_heads

    @property
    def left_context(self) -> int:
        """Frames of the past that a causal convolution sees."""
        return self.cnn_module_kernel - 1
