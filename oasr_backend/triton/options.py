"""What to serve and where, as tritonserver's flags.

Knows Triton's command line; knows nothing of processes, of files, or of what a person types (launcher.py).
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass, replace

from oasr_backend.triton.preflight import DEFAULT_MIN_SHARED_MEMORY_MIB

# Long enough for a full backlog of hour-long files: what was accepted is answered before the server goes.
DEFAULT_EXIT_TIMEOUT_S = 600
# Newer releases stop at 64 MB, 17 minutes of 16 kHz float32. An hour at 48 kHz is 691 MB.
DEFAULT_HTTP_MAX_INPUT_BYTES = 1 << 30
SERVICES = ("http", "grpc", "metrics")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What to serve and where. `extra_flags` go to tritonserver as they are."""

    model_repositories: tuple[str, ...]
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    http_address: str = "0.0.0.0"
    grpc_address: str = "0.0.0.0"
    metrics_address: str | None = None
    allow_http: bool = True
    allow_grpc: bool = True
    allow_metrics: bool = True
    exit_timeout_s: int = DEFAULT_EXIT_TIMEOUT_S
    http_max_input_bytes: int = DEFAULT_HTTP_MAX_INPUT_BYTES
    min_shared_memory_mib: int = DEFAULT_MIN_SHARED_MEMORY_MIB
    extra_flags: tuple[str, ...] = ()

    def with_free_ports(self) -> ServerOptions:
        """Return these options, for this machine only, at three ports that are free now."""
        http_port, grpc_port, metrics_port = free_ports(3)
        local = "127.0.0.1"
        return replace(
            self,
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            http_address=local,
            grpc_address=local,
            metrics_address=local,
        )

    def endpoints(self) -> dict[str, tuple[str, int]]:
        """Return the address and port of every service that is on: "http", "grpc", "metrics"."""
        metrics_address = self.metrics_address or self.http_address
        places = {
            "http": (self.allow_http, self.http_address, self.http_port),
            "grpc": (self.allow_grpc, self.grpc_address, self.grpc_port),
            "metrics": (self.allow_metrics, metrics_address, self.metrics_port),
        }
        return {name: (address, port) for name, (is_on, address, port) in places.items() if is_on}

    def flags(self) -> list[str]:
        """Return tritonserver's command line for these options."""
        flags = [f"--model-repository={repository}" for repository in self.model_repositories]
        for service, (address, port) in self.endpoints().items():
            flags += [f"--{service}-port={port}", f"--{service}-address={address}"]
        flags += [f"--allow-{name}=false" for name in SERVICES if name not in self.endpoints()]
        return [*flags, f"--exit-timeout-secs={self.exit_timeout_s}", *self.extra_flags]

    def has_extra(self, flag: str) -> bool:
        """Say whether a person gave `flag`, which then is theirs to decide."""
        return any(extra.split("=", 1)[0] == flag for extra in self.extra_flags)


def free_ports(count: int) -> list[int]:
    """Return `count` different ports that nothing listens on at this moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def host_and_port(address: str, port: int) -> str:
    """Return where a client on this machine finds a service that listens on `address`."""
    host = "localhost" if address in ("0.0.0.0", "::") else address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
