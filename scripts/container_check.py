#!/usr/bin/env python3
"""Follow the Dockerfile without a container engine: its steps in a clean root file system, its entry point, its health
check, and a text from the server that it starts.

    sudo .venv/bin/python scripts/container_check.py /tmp/container

Debian's debootstrap makes the file system in place of NVIDIA's image, and the wheel's tritonserver is installed in
place of the image's (`VARIANT=serve`). It needs root and debootstrap.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

try:
    from dockerfile_parse import DockerfileParser
except ModuleNotFoundError as missing:
    sys.exit(f"error: {missing.name} is not installed: ./scripts/test.sh installs what checks need")

ROOT = Path(__file__).parents[1]
SUITE = "bookworm"  # whose Python is one of those that are supported
PACKAGES = "ca-certificates,python3,libpython3.11"  # as NVIDIA's image has its own
NETWORK = ("PIP_CERT", "PIP_INDEX_URL", "PIP_FIND_LINKS", "http_proxy", "https_proxy", "no_proxy")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
GIVEN_FILES = ("/etc/hosts", "/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt")
MOUNTS = ("proc", "dev", "dev/shm", "sys")
READY_TIMEOUT_S = 300.0


@dataclass
class Image:
    """A root file system, and what the Dockerfile has said so far of how commands run in it."""

    root: Path
    arguments: dict[str, str]
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "root"
    folder: str = "/"
    entry_point: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)

    def follow(self, name: str, value: str) -> None:
        """Do what one instruction says."""
        step = getattr(self, f"_{name.lower()}", None)
        if step is not None:
            step(value)

    def command(self, *arguments: str) -> list[str]:
        """Return the command line that runs another one in the image, as its user."""
        variables = {"PATH": PATH, "HOME": "/root", **self.environment}
        variables |= {name: os.environ[name] for name in NETWORK if name in os.environ}
        settings = [f"{name}={text}" for name, text in variables.items()]
        line = f"cd {self.folder} && exec env -i {shlex.join(settings)} {shlex.join(arguments)}"
        return ["chroot", f"--userspec={self.user}", str(self.root), "/bin/bash", "-c", line]

    def _arg(self, value: str) -> None:
        name, _, default = value.partition("=")
        self.arguments.setdefault(name, default)

    def _env(self, value: str) -> None:
        name, _, text = value.partition("=")
        self.environment[name] = text

    def _user(self, value: str) -> None:
        self.user = value

    def _workdir(self, value: str) -> None:
        self.folder = value

    def _entrypoint(self, value: str) -> None:
        self.entry_point = json.loads(value)

    def _healthcheck(self, value: str) -> None:
        self.health = json.loads(value[value.index("CMD") + 3 :])

    def _run(self, value: str) -> None:
        line = re.sub(r"\$\{(\w+)\}", lambda match: self.arguments[match[1]], value)
        subprocess.run(self.command("/bin/bash", "-o", "pipefail", "-c", line), check=True)

    def _copy(self, value: str) -> None:
        parts = [part for part in value.split() if not part.startswith("--")]
        *sources, target = parts
        folder = self.root / self.folder.lstrip("/") / target
        for source in sources:
            path = ROOT / source
            if path.is_dir():
                shutil.copytree(path, folder, dirs_exist_ok=True, ignore=ignored)
            else:
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, folder / path.name)
        owner = re.search(r"--chown=(\S+)", value)
        if owner:
            chown = ["chown", "--recursive", owner[1], self.folder]
            subprocess.run(["chroot", str(self.root), *chown], check=True)


def main() -> None:
    options = parse_arguments()
    if os.geteuid() != 0:
        sys.exit("container_check: it needs root, for chroot: run it with sudo")
    make_file_system(options.root)
    image = Image(options.root, {"VARIANT": "serve"})
    with mounted(options.root):
        for step in DockerfileParser(str(ROOT / "Dockerfile")).structure:
            print(f"{step['instruction']} {step['value']}", flush=True)
            image.follow(step["instruction"], step["value"])
        with serving(image, options.http_port):
            transcribe(options.http_port + 1)


def make_file_system(root: Path) -> None:
    """Make a clean Debian in `root`, with what engines give a container and pip needs to reach its registry here."""
    if root.exists():
        sys.exit(f"container_check: {root} exists: remove it, or name another folder")
    if shutil.which("debootstrap") is None:
        sys.exit("container_check: debootstrap is not installed: sudo apt-get install debootstrap")
    make = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(root)]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    for path in map(Path, GIVEN_FILES):
        shutil.copy2(path, root / path.relative_to("/"))
    wheels = os.environ.get("PIP_FIND_LINKS")
    if wheels and Path(wheels).is_dir():
        shutil.copytree(wheels, root / wheels.lstrip("/"))


@contextmanager
def mounted(root: Path) -> Iterator[None]:
    """Show the kernel's file systems in `root`."""
    for name in MOUNTS:
        subprocess.run(["mount", "--bind", f"/{name}", str(root / name)], check=True)
    try:
        yield
    finally:
        for name in reversed(MOUNTS):
            subprocess.run(["umount", "--lazy", str(root / name)], check=False)


@contextmanager
def serving(image: Image, http_port: int) -> Iterator[None]:
    """Run the entry point until its health check is content, and stop it in the end."""
    ports = [f"--{name}-port={http_port + i}" for i, name in enumerate(("http", "grpc", "metrics"))]
    server = subprocess.Popen(image.command(*image.entry_point, *ports))
    image.environment["HTTP_PORT"] = str(http_port)
    try:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while (health := check_health(image)).returncode != 0:
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"container_check: the server is not healthy: {health.stderr}")
            time.sleep(1)
        print("HEALTHCHECK content", flush=True)
        yield
    finally:
        server.terminate()
        print(f"the server ended with {server.wait(timeout=90)}")


def check_health(image: Image) -> subprocess.CompletedProcess[str]:
    """Run the health check once."""
    return subprocess.run(image.command(*image.health), capture_output=True, text=True, check=False)


def transcribe(grpc_port: int) -> None:
    """Print what the server hears in a clip."""
    clip = next(iter(sorted((ROOT / "tests/data/librivox").glob("*.wav"))))
    client = [sys.executable, str(ROOT / "client_examples/transcribe.py")]
    subprocess.run([*client, "--url", f"localhost:{grpc_port}", str(clip)], check=True)


def ignored(_folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name == "__pycache__"}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, help="a folder that is made, and left there")
    parser.add_argument("--http-port", type=int, default=18100, help="and the two above it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
