"""The rules of the house: which way imports run, and how long a file may be."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "oasr_backend"
SOURCES = sorted(PACKAGE.rglob("*.py"))

LAYERS = [
    "training",
    "export",
    "triton",
    "engine",
    "models",
    "decode",
    "cache",
    "runtime",
    "plans",
    "segment",
    "vad",
    "features",
    "audio",
    "scheduler",
    "contract",
    "bundle",
    "request",
    "config",
    "errors",
]
"""From the top down: a module imports from its own layer and from lower ones."""

ON_A_GPU = ("cuda", "graphed", "tensorrt", "torch")
"""Modules of the runtime that need torch."""

LOWER_BUT_KNOWN = {
    ("audio", "models.base"),  # the array types
    ("segment", "models.base"),
    ("vad", "models.base"),
    ("features", "models.base"),
    ("decode", "models.base"),  # a word with its times
    # PyTorch's model is a runtime too, on a GPU.
    ("runtime", "export.features"),
    ("runtime", "export.graphs"),
    ("runtime", "export.wenet"),
}


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module


def layer_of(module):
    return module.removeprefix("oasr_backend").strip(".").split(".")[0]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_run_one_way(path):
    own = layer_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
    if own not in LAYERS:
        return  # the package itself, and what stands outside the house: wer, allocator
    for module in imports_of(path):
        if not module.startswith("oasr_backend."):
            continue
        other = layer_of(module)
        if other not in LAYERS:
            continue
        if (own, module.removeprefix("oasr_backend.")) in LOWER_BUT_KNOWN:
            continue
        assert LAYERS.index(other) >= LAYERS.index(own), f"{own} must not import {module}"


@pytest.mark.parametrize("path", sorted((PACKAGE / "scheduler").glob("*.py")), ids=lambda p: p.name)
def test_the_scheduler_is_pure_policy_and_bookkeeping(path):
    forbidden = {"numpy", "threading", "torch", "onnxruntime", "ctranslate2", "asyncio", "queue"}
    assert not {module.split(".")[0] for module in imports_of(path)} & forbidden
    assert "sleep(" not in path.read_text()


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_a_model_py_imports_tritons_module(path):
    assert "triton_python_backend_utils" not in set(imports_of(path))


def test_serving_never_imports_torch():
    offline = {PACKAGE / "export", PACKAGE / "training"}
    serving = [
        path
        for path in SOURCES
        if not offline & set(path.parents) and path.stem not in ON_A_GPU and path.stem != "choose"
    ]
    assert not [path for path in serving if "torch" in {m.split(".")[0] for m in imports_of(path)}]


def test_what_needs_torch_to_run_on_a_gpu_is_imported_where_it_is_chosen_and_nowhere_else():
    modules = {f"oasr_backend.runtime.{name}" for name in ON_A_GPU}
    importers = {path.stem for path in SOURCES if modules & set(imports_of(path))}
    assert importers <= {*ON_A_GPU, "choose"}
    code = "import sys, oasr_backend.models; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("model_repository/*/1/model.py")), ids=lambda p: p.parts[-3]
)
def test_a_model_py_stays_thin(path):
    assert len(path.read_text().splitlines()) <= 40
