"""Whether a bundle's plans are there and can run here. It loads none of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oasr_backend.bundle import Bundle
from oasr_backend.errors import ConfigError
from oasr_backend.plans.card import compute_capability
from oasr_backend.plans.fingerprint import (
    PRECISIONS,
    Fingerprint,
    check_fingerprint,
    fingerprint_path,
    plan_path,
    read_fingerprint,
    sha256,
)
from oasr_backend.plans.profiles import Sizing


def rebuild_command(folder: Path, plans: Path, flavour: str) -> str:
    """Return the command that builds the plans of the bundle in `folder` anew, where they lie."""
    elsewhere = f" --output {plans}" if plans != folder else ""
    return f"scripts/build_tensorrt.py {folder} --flavour {flavour}{elsewhere}"


def check_plans(
    library: Any, folder: Path, plans: Path, bundle: Bundle, flavour: str
) -> dict[str, Mapping[str, Any]]:
    """Return what each graph's plan was built with; ConfigError unless all of them are there and fit.

    library: TensorRT's module. folder: the bundle's. plans: where its plans lie.
    """
    rebuild, card = rebuild_command(folder, plans, flavour), compute_capability()
    options = {}
    for name in bundle.graph_files:
        plan = plan_path(plans / name, flavour)
        found = read_fingerprint(plan, rebuild).options
        options[name] = found
        wanted = Fingerprint(flavour, library.__version__, (card,), sha256(folder / name), found)
        check_fingerprint(plan, wanted, rebuild)
        try:
            Sizing.from_dict(found)
            if found["precision"] not in PRECISIONS:
                raise ValueError(f"precision {found['precision']!r}")
        except (ValueError, TypeError, KeyError, ConfigError) as error:
            raise ConfigError(
                f"{fingerprint_path(plan)} holds no fingerprint ({error!r}): build the plan again: {rebuild}"
            ) from error
    return options
