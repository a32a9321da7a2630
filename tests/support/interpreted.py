"""Triton's kernels without a GPU."""

from __future__ import annotations

import pytest
import torch

from recollect.base import triton_support


def on_cpu(patch: pytest.MonkeyPatch) -> None:
    """Kernels in Triton's interpreter, wherever they suit; skips where there is no Triton."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("Triton interprets only where it was told so at the start")
    from triton.runtime import interpreter

    usual = interpreter._patch_lang_tensor

    def patched(tensor, scope) -> None:
        """NumPy takes an array of one number no longer for a number, which ``range`` in a kernel needs."""
        usual(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    patch.setattr(interpreter, "_patch_lang_tensor", patched)
    patch.setattr(triton_support, "_is_forced", True)
