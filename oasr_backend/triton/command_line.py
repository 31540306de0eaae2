"""The launcher's command line: what is ours as ServerOptions, everything else for tritonserver unchanged.

Knows flags and their texts; knows nothing of the machine or of processes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from oasr_backend.triton.installation import LaunchError, checkout_repository
from oasr_backend.triton.options import (
    DEFAULT_EXIT_TIMEOUT_S,
    DEFAULT_HTTP_MAX_INPUT_BYTES,
    ServerOptions,
)
from oasr_backend.triton.preflight import DEFAULT_MIN_SHARED_MEMORY_MIB

PRINT_COMMAND = "--print-command"

_EPILOG = (
    "Every other flag goes to tritonserver as it is, for example --log-verbose=1 (which also shows "
    "the CUDA messages left out on machines without a GPU)."
)


def parse_options(arguments: Sequence[str]) -> ServerOptions:
    """Return the options for a command line; raises LaunchError for a stray argument."""
    known, extra_flags = _parser().parse_known_args(arguments)
    if extra_flags and not extra_flags[0].startswith("-"):
        raise LaunchError(
            f"Argument {extra_flags[0]!r} is not a flag. A model repository is named by --model-repository DIR"
        )
    values = vars(known)
    del values["print_command"]
    repositories = tuple(values.pop("model_repository") or ()) or _default_repository()
    return ServerOptions(model_repositories=repositories, extra_flags=tuple(extra_flags), **values)


def _default_repository() -> tuple[str, ...]:
    directory = checkout_repository()
    if directory is None:
        raise LaunchError("No model repository. Name a folder of models: --model-repository DIR")
    return (str(directory),)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="serve.sh",
        description="Serve speech recognition with tritonserver, in the foreground.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model-repository",
        "--model-store",
        action="append",
        metavar="DIR",
        help="a folder of models, may be given several times; this checkout's own by default",
    )
    parser.add_argument(
        PRINT_COMMAND,
        action="store_true",
        help="print the tritonserver command, with the variables that it needs, and start nothing",
    )
    _add_endpoints(parser)
    _add_limits(parser)
    return parser


def _add_endpoints(parser: argparse.ArgumentParser) -> None:
    defaults = {"http": (8000, "0.0.0.0"), "grpc": (8001, "0.0.0.0"), "metrics": (8002, None)}
    for service, (port, address) in defaults.items():
        parser.add_argument(
            f"--{service}-port", type=_port, default=port, metavar="N", help=f"{port} by default"
        )
        parser.add_argument(
            f"--{service}-address",
            default=address,
            metavar="IP",
            help=f"{address or 'the HTTP address'} by default; 127.0.0.1 serves this machine only",
        )
        parser.add_argument(
            f"--allow-{service}",
            type=_boolean,
            default=True,
            metavar="BOOL",
            help="true by default",
        )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--exit-timeout-secs",
        dest="exit_timeout_s",
        type=int,
        default=DEFAULT_EXIT_TIMEOUT_S,
        metavar="S",
        help="how long a stop waits until every accepted request is answered; %(default)s by default",
    )
    parser.add_argument(
        "--http-max-input-size",
        dest="http_max_input_bytes",
        type=int,
        default=DEFAULT_HTTP_MAX_INPUT_BYTES,
        metavar="BYTES",
        help="the largest HTTP request, where this tritonserver has a limit; %(default)s by default",
    )
    parser.add_argument(
        "--min-shm-mib",
        dest="min_shared_memory_mib",
        type=int,
        default=DEFAULT_MIN_SHARED_MEMORY_MIB,
        metavar="MIB",
        help="the free shared memory without which the server does not start; %(default)s by default",
    )


def _port(text: str) -> int:
    port = int(text)
    if not 1 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{port} is no port: a port is a number from 1 to 65535")
    return port


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0", "on", "off"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() in ("true", "1", "on")
