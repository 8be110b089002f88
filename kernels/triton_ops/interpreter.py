"""What this backend changes in Triton's interpreter, so that its results stand for a GPU's and tests take less time.

Knows the interpreter's insides (Triton 3.6 and 3.7) and no op. Imported by `kernels.triton_ops.device` alone, and only
where kernels are interpreted.
"""

from __future__ import annotations

from typing import Any

from triton.runtime import interpreter

_patched: set[Any] = set()


def dot(
    builder: Any, a: Any, b: Any, d: Any, input_precision: Any = None, max_num_imprecise_acc: Any = None
) -> interpreter.TensorHandle:
    """`tl.dot` with rows that do not depend on their place in the tile, as a GPU's do not.

    The interpreter's own goes through a BLAS, whose rows differ in bits at the edges of its blocks.
    """
    left, right = a.data.astype(d.data.dtype), b.data.astype(d.data.dtype)
    terms = left[..., :, None, :] * right.swapaxes(-1, -2)[..., None, :, :]
    return interpreter.TensorHandle(terms.sum(-1) + d.data, d.dtype.scalar)


def call(function: interpreter.InterpretedFunction, *args: Any, **kwargs: Any) -> Any:
    """A call of a @triton.jit function by another, which prepares `triton.language` for it the first time alone.

    The interpreter does so in every call, though the kernel's launch did it for ours, and for Triton's own it stays
    done: a third of the time of a kernel that sums and takes maxima.
    """
    if function.fn not in _patched:
        interpreter._patch_lang(function.fn)
        _patched.add(function.fn)
    return function.rewrite()(*args, **kwargs)


def adapt() -> None:
    """Puts both into the interpreter."""
    interpreter.InterpreterBuilder.create_dot = dot
    interpreter.InterpretedFunction.__call__ = call
