"""The contract of a head: from the core's output to actions, and to the record of an acting step.

======================  =========================================================================
method                  result
======================  =========================================================================
``forward(y, mask)``    the outputs for every row: a tuple of tensors or distributions
``choose(outputs)``     the actions
``record(outputs, a)``  the numbers to store beside the actions ``a``, by the names of ``record_spec``
======================  =========================================================================

The actor stores ``record`` of what it chose; the learner unrolls the sequence and computes ``record`` of the
stored actions again. Both must give the same numbers, which the deviation check verifies. So ``record`` is a
function of its arguments alone, and draws no random number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from recollect.base.types import Tree
from recollect.errors import ConfigError

Outputs = Sequence[Any]
"""The outputs of a head, for rows [...]."""


class Field(NamedTuple):
    """One tensor of the record."""

    shape: tuple[int, ...] = ()
    """Of one row."""
    dtype: torch.dtype = torch.float32
    unit: float | None = None
    """The unit of its deviations; None: the largest recorded magnitude, at least 1."""
    is_compared: bool = True
    """Whether the learner must reproduce it, within ``tolerance`` units; only for floating-point numbers."""


class Head(nn.Module):
    """Subclass it for your own head, and pass the class to ``Policy(head=...)``."""

    record_spec: Mapping[str, Field]
    """The record of an acting step, by name."""
    needs_critic = False
    """Whether the policy has a critic, whose value is then the last of the outputs."""

    def forward(self, y: Tensor, mask: Tree | None = None) -> Any:
        """Core outputs y [..., D] and action masks -> the outputs [...], a tuple.

        With ``needs_critic``: the first output alone.
        """
        raise NotImplementedError

    def choose(
        self,
        outputs: Outputs,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
        exploration: Tensor | None = None,
    ) -> Tree:
        """The actions [B, ...] for outputs [B, ...]; ``exploration`` [B]: as the algorithm gives it."""
        raise NotImplementedError

    def record(self, outputs: Outputs, action: Tree) -> dict[str, Tensor]:
        """The record of stored actions [..., ...], [..., shape] each; draws no random number."""
        raise NotImplementedError

    def to_env(self, action: Tree) -> Tree:
        """The env's action for a stored action."""
        return action


def named_fields(head: Head, names: Sequence[str] | None) -> dict[str, Field]:
    """The fields of the record that an algorithm names; None: all. Raises for a name without a field."""
    spec = head.record_spec
    missing = [name for name in names or () if name not in spec]
    if missing:
        raise ConfigError(
            f"the algorithm needs {', '.join(missing)} of every acting step, and {type(head).__name__} "
            f"records {', '.join(spec) or 'nothing'}: use an algorithm for this head, or add the field to "
            "the head's record_spec"
        )
    found = {name: spec[name] for name in (spec if names is None else names)}
    for name, field in found.items():
        if field.is_compared and not field.dtype.is_floating_point:
            raise ConfigError(
                f"{type(head).__name__} declares {name} as {field.dtype}, and only floating-point numbers "
                "can be compared: give the field is_compared=False"
            )
    return found


def check_record(head: Head, record: Mapping[str, Tensor], rows: int) -> None:
    """Raise unless ``record`` of one step has the shapes and dtypes that the head declares."""
    for name, field in head.record_spec.items():
        found = record.get(name)
        if found is None or found.shape != (rows, *field.shape) or found.dtype != field.dtype:
            has = "none" if found is None else f"{found.dtype} {list(found.shape)}"
            raise ConfigError(
                f"{type(head).__name__} declares {name} as {field.dtype} {[rows, *field.shape]} for {rows} "
                f"rows, and its record has {has}: correct record_spec or `record`"
            )
