"""Engines that run our kernels without a GPU, for tests that ask the same of each; a test is skipped without Triton."""

import os

import pytest

from impl.emulator.launch import Emulator


def triton_engine():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    pytest.importorskip("triton")
    from impl.triton_engine import TritonEngine

    if os.environ["TRITON_INTERPRET"] != "1":
        pytest.skip("needs the interpreter")
    return TritonEngine()


def triton_engine_of_large_frees():
    engine = triton_engine()
    engine.most_freed = 0
    return engine


def emulated_engine():
    pytest.importorskip("triton")
    from impl.emulator.engine import EmulatedEngine

    return EmulatedEngine(Emulator())
