"""Functions over pytrees of tensors: a tensor, or a tuple or dict of trees.

``torch.utils._pytree`` is private, and several times slower on the one- and two-leaf trees of an acting
step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from recollect.base.types import Tree


def map(fn: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:  # noqa: A001
    """Apply ``fn`` to the leaves; all trees have the structure of ``tree``."""
    if isinstance(tree, Tensor):
        return fn(tree, *rest)
    if isinstance(tree, dict):
        return {key: map(fn, value, *(r[key] for r in rest)) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map(fn, value, *(r[i] for r in rest)) for i, value in enumerate(tree))
    raise TypeError(
        f"a tree is a tensor, a tuple or a dict of trees, and this is a {type(tree).__name__}: "
        "turn lists into tuples and numbers into tensors"
    )


def leaves(tree: Tree) -> list[Tensor]:
    """All tensors of the tree, in order."""
    return [leaf for _, leaf in named_leaves(tree)]


def named_leaves(tree: Tree, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors with their path, such as ``obs.image`` or ``state.1``."""
    if isinstance(tree, Tensor):
        yield name, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from named_leaves(value, f"{name}.{key}" if name else str(key))
    elif isinstance(tree, tuple):
        for i, value in enumerate(tree):
            yield from named_leaves(value, f"{name}.{i}" if name else str(i))
    else:
        raise TypeError(
            f"{name or 'the tree'} holds a {type(tree).__name__}; "
            "a tree is a tensor, a tuple or a dict of trees"
        )


def from_named(like: Tree, named: Mapping[str, Tensor], name: str = "") -> Tree:
    """A tree with the structure of ``like`` from tensors by path: the inverse of ``named_leaves``."""
    if isinstance(like, dict):
        return {k: from_named(v, named, f"{name}.{k}" if name else str(k)) for k, v in like.items()}
    if isinstance(like, tuple):
        return tuple(from_named(v, named, f"{name}.{i}" if name else str(i)) for i, v in enumerate(like))
    return named[name]


def from_leaves(like: Tree, leaves: Sequence[Tensor]) -> Tree:
    """A tree with the structure of ``like`` from its tensors in order: the inverse of ``leaves``."""
    return from_named(like, dict(zip((name for name, _ in named_leaves(like)), leaves, strict=True)))


def spec(tree: Tree, lead: int = 1) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape after the first ``lead`` dimensions, and dtype, of every leaf by its path."""
    return {name: (tuple(leaf.shape[lead:]), leaf.dtype) for name, leaf in named_leaves(tree)}


def fits(tree: Tree, like: Tree, rows: int) -> bool:
    """Whether ``tree`` has the structure and row shapes of ``like``, with ``rows`` rows. Cheap."""
    if isinstance(like, Tensor):
        return isinstance(tree, Tensor) and tree.shape[:1] == (rows,) and tree.shape[1:] == like.shape[1:]
    # ``map`` turns named tuples into tuples, so that ``like`` may be a plain one.
    if not isinstance(tree, dict if isinstance(like, dict) else tuple) or len(tree) != len(like):
        return False
    if isinstance(like, dict):
        return all(key in tree and fits(tree[key], sub, rows) for key, sub in like.items())
    return all(fits(a, b, rows) for a, b in zip(tree, like))


def index(tree: Tree, where: Any) -> Tree:
    """``leaf[where]`` for every leaf."""
    return map(lambda leaf: leaf[where], tree)


def put(tree: Tree, rows: Tensor, values: Tree) -> Tree:
    """A copy of ``tree`` with ``values`` at ``rows`` of dimension 0."""
    return map(lambda leaf, value: leaf.index_copy(0, rows, value), tree, values)


def select(mask: Tensor, yes: Tree, no: Tree) -> Tree:
    """Per row, ``yes`` where ``mask`` [B], else ``no``. Selects, never multiplies: 0 * NaN is NaN."""
    return map(lambda a, b: torch.where(_over(mask, b), a, b), yes, no)


def zero_where(mask: Tensor, tree: Tree) -> Tree:
    """The tree with zeros in the rows (or steps and rows) where ``mask``."""
    return map(lambda leaf: leaf.masked_fill(_over(mask, leaf), 0), tree)


def stack(trees: Sequence[Tree]) -> Tree:
    """Stack along a new dimension 0."""
    return map(lambda *xs: torch.stack(xs), trees[0], *trees[1:])


def cat(trees: Sequence[Tree], dim: int = 0) -> Tree:
    """Concatenate along an existing dimension."""
    return map(lambda *xs: torch.cat(xs, dim), trees[0], *trees[1:])


def copy_(target: Tree, source: Tree) -> None:
    """Write ``source`` into the preallocated ``target``."""
    map(lambda a, b: a.copy_(b), target, source)


def copy_where_(target: Tree, mask: Tensor, source: Tree) -> None:
    """Write ``source`` into the rows of ``target`` where ``mask`` [B]."""
    map(lambda a, b: torch.where(_over(mask, b), b, a, out=a), target, source)


def empty(like: Tree, lead: tuple[int, ...], device: torch.device | str | None = None) -> Tree:
    """Zeroed buffers ``[*lead, ...]`` for the leaves ``[B, ...]`` of ``like``, without B."""
    return map(
        lambda leaf: torch.zeros((*lead, *leaf.shape[1:]), dtype=leaf.dtype, device=device or leaf.device),
        like,
    )


def clone(tree: Tree) -> Tree:
    """A copy that shares no memory."""
    return map(lambda leaf: leaf.detach().clone(), tree)


def to(tree: Tree, device: torch.device | str) -> Tree:
    """Move every leaf."""
    return map(lambda leaf: leaf.to(device), tree)


def size_bytes(tree: Tree) -> int:
    """Total bytes of the leaves."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))


def _over(mask: Tensor, leaf: Tensor) -> Tensor:
    """A view of ``mask`` that broadcasts over the trailing dimensions of ``leaf``."""
    return mask.view(mask.shape + (1,) * (leaf.dim() - mask.dim()))
