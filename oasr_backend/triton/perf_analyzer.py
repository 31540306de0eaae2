"""The command behind scripts/perf_analyzer.sh: load a running server with real clips through NVIDIA's perf_analyzer.

Finds a perf_analyzer that runs here, or unpacks one into .cache, and writes its input data. Knows nothing of the server
but the names of the model's inputs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from oasr_backend.triton.installation import PACKAGE_PARENT, LaunchError

SAMPLE_RATE_HZ = 16_000
CACHE = PACKAGE_PARENT / ".cache" / "perf_analyzer"
LOCK = PACKAGE_PARENT / "requirements" / "perf_analyzer.txt"
CLIPS = PACKAGE_PARENT / "tests" / "data" / "librivox"
COMMANDS = PACKAGE_PARENT / "tests" / "data" / "commands"
# What the binary of the wheel is linked with, where this system's own are too old (glibc before 2.38).
LIBRARY_PACKAGES = ("libc6", "libgcc-s1", "libssl3t64", "libstdc++6", "libzstd1", "zlib1g")
# By the ID of /etc/os-release: a newer release of the same system, and the keys that this one has for it already.
NEWER_RELEASES = {
    "debian": (
        "http://deb.debian.org/debian trixie main",
        "/usr/share/keyrings/debian-archive-keyring.gpg",
    ),
    "ubuntu": (
        "http://archive.ubuntu.com/ubuntu noble main",
        "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
    ),
}
CHUNK_SAMPLES = 16_000 * 16 // 100
"""160 ms, the samples of one request of a stream."""

DEFAULT_FLAGS = {
    ("-i", "--protocol"): "grpc",
    ("-u",): "localhost:8001",
    ("--concurrency-range", "--request-rate-range", "--periodic-concurrency-range"): "4",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run perf_analyzer with our input data and defaults; return 1 where that cannot be."""
    try:
        load = parse_arguments(sys.argv[1:] if arguments is None else arguments)
        command = find_perf_analyzer()
        name = "sequences.json" if load.is_sequences else "input.json"
        input_data = write_input_data(load.clips, CACHE / name, load.is_sequences)
    except LaunchError as error:
        print(f"error: {error}.", file=sys.stderr)
        return 1
    command += [f"--input-data={input_data}", *with_defaults(load)]
    return os.execv(command[0], command)  # does not return


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent, whether each clip is a stream, and perf_analyzer's own flags."""

    clips: Sequence[Path]
    is_sequences: bool
    flags: Sequence[str]


def parse_arguments(arguments: Sequence[str]) -> Load:
    """Return what to do; raises LaunchError where there is no clip."""
    parser = argparse.ArgumentParser(
        prog="perf_analyzer.sh",
        description="Load a running server with real speech through NVIDIA's perf_analyzer.",
        epilog="Every other flag goes to perf_analyzer. Where not given: -m asr_offline (--sequences: asr_streaming) "
        + " ".join(f"{names[0]} {value}" for names, value in DEFAULT_FLAGS.items()),
        allow_abbrev=False,
    )
    parser.add_argument("--clips", type=Path, help="a folder of 16 kHz mono WAV files")
    parser.add_argument(
        "--sequences",
        action="store_true",
        help="send each clip to asr_streaming as a stream, a request for each 160 ms, as soon as the last is answered",
    )
    known, flags = parser.parse_known_args(arguments)
    folder = known.clips or (COMMANDS if known.sequences else CLIPS)
    clips = sorted(folder.glob("*.wav"))
    if not clips:
        raise LaunchError(
            f"{folder} holds no .wav file. Name a folder of 16 kHz mono clips: --clips DIR"
        )
    return Load(clips, known.sequences, flags)


def with_defaults(load: Load) -> list[str]:
    """Return perf_analyzer's flags, ours before them where none of the same kind was given."""
    given = {flag.split("=", 1)[0] for flag in load.flags}
    model = "asr_streaming" if load.is_sequences else "asr_offline"
    defaults = {("-m", "--model-name"): model, **DEFAULT_FLAGS}
    ours = [
        part
        for names, value in defaults.items()
        if not given & set(names)
        for part in (names[0], value)
    ]
    return [*ours, *load.flags]


def write_input_data(clips: Sequence[Path], target: Path, is_sequences: bool = False) -> Path:
    """Write clips as perf_analyzer's input data: a request a clip, or a sequence of them."""
    samples = map(read_clip, clips)
    data: list[Any] = (
        [_sequence(each) for each in samples] if is_sequences else [_request(s) for s in samples]
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps({"data": data}))
    partial.replace(target)
    return target


def _request(samples: npt.NDArray[np.float32]) -> dict[str, Any]:
    """Return one request: WAV (samples,) float32 and WAV_LENS (1,) int32."""
    content = [round(float(sample), 6) for sample in samples]  # finer than 16 bits
    return {
        "WAV": {"content": content, "shape": [len(content)]},
        "WAV_LENS": {"content": [len(content)], "shape": [1]},
    }


def _sequence(samples: npt.NDArray[np.float32]) -> list[dict[str, Any]]:
    """Return the requests of a stream."""
    starts = range(0, len(samples), CHUNK_SAMPLES)
    return [_request(samples[start : start + CHUNK_SAMPLES]) for start in starts]


def read_clip(path: Path) -> npt.NDArray[np.float32]:
    """Return the samples (samples,) float32 in -1 to 1 of a 16-bit mono WAV file at 16 kHz; LaunchError for others."""
    try:
        return _read_wave(path)
    except (wave.Error, EOFError, OSError) as error:
        reason = str(error) or "it is cut short"
        raise LaunchError(f"{path} is no WAV file that can be read ({reason})") from error


def _read_wave(path: Path) -> npt.NDArray[np.float32]:
    with wave.open(str(path)) as clip:
        form = (clip.getframerate(), clip.getnchannels(), 8 * clip.getsampwidth())
        if form != (SAMPLE_RATE_HZ, 1, 16):
            raise LaunchError(
                f"{path} has {form[0]} Hz, {form[1]} channels, {form[2]} bits, and a clip must have "
                f"{SAMPLE_RATE_HZ} Hz, 1 channel, 16 bits. Convert: sox {path} -r {SAMPLE_RATE_HZ} -c 1 -b 16 OUT.wav"
            )
        frames = clip.readframes(clip.getnframes())
    return np.frombuffer(frames, np.int16).astype(np.float32) / 32768


def find_perf_analyzer(cache: Path = CACHE) -> list[str]:
    """Return the command that runs perf_analyzer: the one on PATH, else one unpacked into `cache`.

    Raises LaunchError where none runs and none can be had.
    """
    on_path = shutil.which("perf_analyzer")
    if on_path is not None and runs([on_path]):
        return [on_path]
    if platform.machine() != "x86_64":
        raise LaunchError(
            f"perf_analyzer is not on PATH, and there is none to unpack for {platform.machine()}"
        )
    binary = unpack_wheel(cache / "wheel")
    if runs([str(binary)]):
        return [str(binary)]
    command = [*loader(unpack_libraries(cache / "libraries")), str(binary)]
    if not runs(command):
        raise LaunchError(
            f"perf_analyzer does not run on this machine. See what it says: {' '.join(command)} --version"
        )
    return command


def runs(command: Sequence[str]) -> bool:
    """Say whether a perf_analyzer starts here; PyPI's 0.1.0 does not, nor does a binary for a newer glibc."""
    try:
        shown = subprocess.run(
            [*command, "--version"], capture_output=True, timeout=60, check=False
        )
    except OSError:
        return False
    return shown.returncode == 0


def unpack_wheel(target: Path) -> Path:
    """Return the binary of the pinned wheel, downloaded and unpacked once."""
    binary = target / "perf_analyzer" / "bin" / "perf_analyzer"
    if binary.exists():
        return binary
    _say(f"Unpacking perf_analyzer into {target}")
    with scratch_folder(target) as scratch:
        # fmt: off
        _run([
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--only-binary=:all:", "--platform=manylinux_2_38_x86_64", "--python-version=3.12",
            f"--dest={scratch}", f"--requirement={LOCK}",
        ], remedy="it comes from PyPI or the mirror that PIP_INDEX_URL names")
        # fmt: on
        (wheel,) = Path(scratch).glob("*.whl")
        unpacked = Path(scratch) / "unpacked"
        shutil.unpack_archive(wheel, unpacked, format="zip")
        (unpacked / "perf_analyzer" / "bin" / "perf_analyzer").chmod(0o755)
        unpacked.rename(target)
    return binary


def unpack_libraries(target: Path) -> Path:
    """Return a folder with the C library of a newer release of this system, unpacked once and installed nowhere."""
    if target.exists():
        return target
    system = platform.freedesktop_os_release().get("ID", "unknown")
    if system not in NEWER_RELEASES or shutil.which("apt-get") is None:
        raise LaunchError(
            f"perf_analyzer needs glibc 2.38, and this machine ({system}) has {platform.libc_ver()[1]}. Run it on "
            "Debian 13, Ubuntu 24.04 or newer, or put one that runs here on PATH"
        )
    source, keys = NEWER_RELEASES[system]
    if not Path(keys).exists():
        raise LaunchError(f"{keys} is missing. Run: sudo apt-get install {Path(keys).stem}")
    _say(f"Unpacking the libraries that it needs from {source} into {target}")
    with scratch_folder(target) as scratch:
        _download_packages(Path(scratch), f"deb [signed-by={keys}] {source}\n", keys)
        unpacked = Path(scratch) / "unpacked"
        for package in Path(scratch).glob("*.deb"):
            _run(["dpkg", "-x", str(package), str(unpacked)], remedy="")
        unpacked.rename(target)
    return target


def _download_packages(scratch: Path, source: str, keys: str) -> None:
    """Fetch LIBRARY_PACKAGES with apt, its lists and state in `scratch`, the system's own left alone."""
    (scratch / "sources.list").write_text(source)
    for folder in ("state/lists/partial", "cache/archives/partial", "etc"):
        (scratch / folder).mkdir(parents=True)
    (scratch / "state" / "status").touch()
    options = {
        "Dir::State": scratch / "state",
        "Dir::State::status": scratch / "state" / "status",
        "Dir::Cache": scratch / "cache",
        "Dir::Etc::sourcelist": scratch / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferencesparts": "-",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    apt = ["apt-get", "--quiet=2", *(f"--option={name}={value}" for name, value in options.items())]
    remedy = f"the keys of that release must be in {keys} (apt-get install {Path(keys).stem} brings the newest)"
    _run([*apt, "update"], remedy=remedy)
    _run([*apt, "download", *LIBRARY_PACKAGES], remedy=remedy, directory=scratch)


def loader(libraries: Path) -> list[str]:
    """Return the command that starts a binary with the C library of `libraries` in place of the system's."""
    (program,) = libraries.glob("**/x86_64-linux-gnu/ld-linux-x86-64.so.2")
    return [str(program), "--library-path", str(program.parent)]


def scratch_folder(target: Path) -> tempfile.TemporaryDirectory[str]:
    """Return a folder beside `target`, so that a finished one takes its place in a single step."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(dir=target.parent, prefix=".unpacking-")


def _run(command: list[str], *, remedy: str, directory: Path | None = None) -> None:
    done = subprocess.run(
        command,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last_lines = " / ".join(done.stdout.strip().splitlines()[-3:])
        raise LaunchError(f"'{' '.join(command[:4])} ...' failed: {last_lines} ({remedy})")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
