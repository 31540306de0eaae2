"""Check the machine before tritonserver starts, so that each common mistake gives one error with its remedy.

Knows sockets, folders and /dev/shm; knows nothing of how the server is found or run.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from oasr_backend.triton.installation import LaunchError

SHARED_MEMORY = Path("/dev/shm")
MIB = 1 << 20
# An hour of 16 kHz float32 is 220 MiB, and its request and the next one are in there together.
DEFAULT_MIN_SHARED_MEMORY_MIB = 512
REMOTE_REPOSITORIES = ("s3://", "gs://", "as://")


def check_shared_memory(min_mib: int, directory: Path = SHARED_MEMORY) -> None:
    """Raise LaunchError where less than `min_mib` MiB of shared memory are free: audio reaches the model through it."""
    if not directory.is_dir():
        raise LaunchError(
            f"{directory} is missing: the model gets its audio through it. Mount a tmpfs there"
        )
    status = os.statvfs(directory)
    size_mib = status.f_blocks * status.f_frsize // MIB
    free_mib = status.f_bavail * status.f_frsize // MIB
    if free_mib >= min_mib:
        return
    raise LaunchError(
        f"{directory} has {free_mib} MiB free of {size_mib} MiB, and {min_mib} MiB are needed: audio reaches the model "
        f"through it, an hour of it taking 220 MiB. In Docker add --shm-size=1g; elsewhere run "
        f"'mount -o remount,size=1G {directory}'; for short clips only, start with --min-shm-mib {max(free_mib, 16)}"
    )


def check_ports(ports: Mapping[str, tuple[str, int]]) -> None:
    """Raise LaunchError where a port is taken or named twice; `ports`: service to (address, port)."""
    owners: dict[int, str] = {}
    for service, (address, port) in ports.items():
        flag = f"--{service}-port"
        if port in owners:
            raise LaunchError(f"{owners[port]} and {flag} are both {port}. Give each its own port")
        owners[port] = flag
        _check_port(flag, address, port)


def _check_port(flag: str, address: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the server does: a port in TIME_WAIT is free, one that is listened on is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise LaunchError(_port_text(flag, address, port, error)) from error
        except OverflowError as error:
            raise LaunchError(
                f"{flag} is {port}, and a port is a number from 1 to 65535"
            ) from error


def _port_text(flag: str, address: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {address} is already in use. Stop what listens there, or choose another: {flag} N"
    if error.errno == errno.EACCES:
        return f"Port {port} on {address} needs more rights than this user has. Choose one above 1023: {flag} N"
    return f"Cannot listen on {address} port {port} ({flag}): {error.strerror or error}"


def check_model_repositories(repositories: Sequence[str]) -> None:
    """Raise LaunchError where a local model repository is missing or holds no model folder."""
    for repository in repositories:
        if repository.startswith(REMOTE_REPOSITORIES):
            continue
        path = Path(repository)
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise LaunchError(
                f"Model repository {path} {what}. Name a folder of models: --model-repository DIR"
            )
        if (path / "config.pbtxt").is_file():
            raise LaunchError(
                f"Model repository {path} is a model. Name the folder that holds it: --model-repository {path.parent}"
            )
        if not any(child.is_dir() for child in path.iterdir()):
            raise LaunchError(
                f"Model repository {path} holds no model. It must hold a folder for each model, with config.pbtxt and "
                "a version folder such as 1/ in it"
            )
