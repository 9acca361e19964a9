"""Do the kernels compile for GPUs that are not here? Without a device, for CUDA and HIP."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Not imported here: Triton decides at import whether it interprets.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

ROOT = Path(__file__).resolve().parents[1]
TARGETS = {"cuda": "cubin", "hip": "hsaco"}
KERNELS = ("extend_kernel", "sums_kernel", "shares_kernel", "decode_kernel")
KERNELS += ("free_kernel", "mark_kernel", "list_kernel")

# A process of its own: with TRITON_INTERPRET set, as in the rest of the suite, there is nothing to compile.
COMPILE = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from impl.triton_engine import KERNELS

targets = {"cuda": GPUTarget("cuda", 90, 32), "hip": GPUTarget("hip", "gfx942", 64)}
report = {"specialised": [], "binaries": {}}
constants = {"PAGE": 24, "LANES": 256, "CHUNK": 256, "FEW": 64, "ALONE": False}
constants |= {"SUMS": 32, "ROWS": 32, "WIDE": 64, "SHARE": 2048, "SPAN": 8}
for name, kernel in KERNELS.items():
    report["specialised"] += [p.name for p in kernel.params if not (p.is_constexpr or p.do_not_specialize)]
    for out in ("i32", "i64"):
        for lens in ("i32", "i64"):
            types = dict.fromkeys(("out_ptr", "free_ptr", "pages_ptr"), "*" + out) | dict.fromkeys(("sums_ptr", "totals_ptr", "counts_ptr"), "*i32")
            types |= dict.fromkeys(("bs", "blocks", "count", "most", "offset", "capacity", "ticket"), "i32")
            types |= dict.fromkeys(("prefix_ptr", "seq_ptr", "last_loc_ptr", "slots_ptr"), "*" + lens)
            types |= dict.fromkeys(constants, "constexpr")
            signature = {argument: types.get(argument, "*i64") for argument in kernel.arg_names}
            fixed = {argument: constants[argument] for argument in kernel.arg_names if argument in constants}
            for target in targets:
                source = ASTSource(kernel, signature, fixed)
                compiled = triton.compile(source, target=targets[target])
                sizes = {stage: len(code) for stage, code in compiled.asm.items() if isinstance(code, bytes)}
                report["binaries"][f"{name} {target} {out} {lens}"] = sizes
print(json.dumps(report))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    env |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    command = [sys.executable, "-W", "ignore", "-c", COMPILE]
    result = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("lens", ["i32", "i64"])
@pytest.mark.parametrize("out", ["i32", "i64"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_compiles_to_a_binary(report, kernel, target, out, lens):
    assert report["binaries"][f"{kernel} {target} {out} {lens}"].get(TARGETS[target], 0) > 0


def test_no_argument_makes_a_kernel_compile_again(report):
    assert report["specialised"] == []
