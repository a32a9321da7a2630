"""An agent as a file that runs without Recollect: ONNX, or a program of ``torch.export``.

The file holds one acting step. The memory goes in and comes out as tensors, batch first, so that
whoever drives it owns it, as in Recollect itself:

=============================  ====================================================================
input                          meaning
=============================  ====================================================================
``obs`` or ``obs.KEY``         the observation, in the env's own units: normalisation is inside
``state`` or ``state.0``, ...  the memory; not there for an agent without one
``first``                      [B] bool: the row begins an episode; its memory is reset inside
=============================  ====================================================================

=============================  ====================================================================
output                         meaning
=============================  ====================================================================
``action`` or ``action.KEY``   what the env takes: squashed, scaled, clipped, offset
``logits``; ``mean`` and       the distribution of the action, for whoever wants to draw from it;
``log_std``                    with the KEY of the action where it has one
``value``                      [B] the expected return, in real units
``next_state...``              the memory to put in at the next step
=============================  ====================================================================

``FILE.json`` beside it says names, shapes, dtypes, spaces and the initial state.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.export import ExportedProgram

from recollect.base import provenance, tree
from recollect.base.files import check_replaceable, finite, read_json
from recollect.base.space_json import space_to_json
from recollect.errors import ConfigError, RecollectError, StorageError
from recollect.export.check import check as check_step
from recollect.export.check import short
from recollect.export.step import StepModule, Tensors, parts
from recollect.policy.policy import Policy

if TYPE_CHECKING:
    from recollect.agent import Agent

FORMAT = 1
"""Of the JSON file."""
SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
"""Of the file, by its format."""
USE = (
    "Begin with the initial state and first = true. Then put every next_state in as the state of the next "
    "step, with first = true in the rows where an episode begins: the file resets them itself."
)


def export_agent(
    agent: Agent,
    out: str | Path,
    format: Literal["onnx", "torch"] = "onnx",  # noqa: A002
    *,
    deterministic: bool = True,
    check: bool = True,
) -> Path:
    """Write the agent's acting step to ``out``, and its description to ``out`` with ``.json`` added.

    Nothing is written at all if the step cannot be exported or does not do what the agent does.

    Args:
        agent: any agent; it stays as it is.
        out: the file; what was there before is replaced.
        format: "onnx", or "torch" for what ``torch.export.load`` reads (``.pt2``).
        deterministic: ``action`` is the mode of the distribution; else it is drawn inside the file.
        check: load the file again and compare it with the agent, step by step.
    """
    if format not in SUFFIXES:
        raise ConfigError(f"format is {format!r}: choose {' or '.join(SUFFIXES)}")
    if format == "onnx":
        _need("onnx", "onnxscript", *(["onnxruntime"] if check else []))
        if agent.policy.precision == "bf16":
            raise ConfigError(
                f"this agent acts in {agent.policy.precision}, which ONNX Runtime does not know on a "
                "CPU: export it with format='torch' (--format torch)"
            )
    out = Path(out)
    if out.is_dir():
        raise StorageError(f"{out} is a folder: name a file, such as {out / f'agent{SUFFIXES[format]}'}")
    check_replaceable(out)
    _check_sidecar(out.with_name(f"{out.name}.json"))
    module = StepModule(_copy(agent.policy), deterministic)
    example = module.example()
    with torch.no_grad():
        outputs = module(example)  # also settles what is lazy, such as whether there are statistics
    program = _trace(module, example)
    with _beside(out) as folder:
        file = folder / out.name
        if format == "onnx":
            _write_onnx(program, file, list(example), list(outputs))
        else:
            _write_torch(program, file)
        if check:
            exported = _read_back(file, format)
            check_step(exported, _copy(agent.policy), deterministic=deterministic, name=out.name)
        description = {"format": FORMAT, "file": out.name, "kind": format, "checked": check}
        description |= _describe(agent, module, example, outputs)
        sidecar = folder / f"{out.name}.json"
        sidecar.write_text(json.dumps(description, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(file, out)
        os.replace(sidecar, out.with_name(sidecar.name))
    return out


def _copy(policy: Policy) -> Policy:
    """On the CPU and ready to act; the agent's own is not touched."""
    return deepcopy(policy).cpu().eval().requires_grad_(False)


def _trace(module: StepModule, example: Tensors) -> ExportedProgram:
    batch = torch.export.Dim("batch", min=1)
    shapes = ({name: {0: batch} for name in example},)
    try:
        with _quiet(), torch.no_grad():
            program = torch.export.export(module, (example,), dynamic_shapes=shapes)
    except Exception as error:  # of many kinds, most of them private to torch
        raise RecollectError(
            f"torch.export cannot trace the agent's step: {short(error)}. An encoder, core or policy of your "
            "own must not branch on the values of tensors, for which torch.where selects, and must take the "
            "number of rows from x.shape[0]: len(x) fixes it"
        ) from error
    aten: Any = torch.ops.aten
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # where the source lies is nobody's business
        # torch.export writes uniform_, but cannot read it back: one of its arguments is called "from".
        if node.target is aten.uniform_.default and len(node.args) == 1:
            node.target = aten.rand_like.default
    return program


def _read_back(file: Path, format: str) -> Callable[[Tensors], Tensors]:  # noqa: A002
    """The file as a function, by what its user will run it with."""
    try:
        return _load_onnx(file) if format == "onnx" else _load_torch(file)
    except Exception as error:  # whatever the runtime raises
        raise RecollectError(f"{file.name} was written, but cannot be read back: {short(error)}") from error


# The description --------------------------------------------------------------------------------


def _describe(agent: Agent, module: StepModule, inputs: Tensors, outputs: Tensors) -> dict[str, Any]:
    """What somebody without Recollect must know to drive the file, as strict JSON."""
    policy = module.policy
    with torch.no_grad():
        dist, _, _ = policy.step(module.obs_like, module.state_like, torch.ones(1, dtype=torch.bool))
    return {
        "use": USE,
        "inputs": [_signature(name, tensor) for name, tensor in inputs.items()],
        "outputs": [_signature(name, tensor) for name, tensor in outputs.items()],
        "state": [
            {"input": name, "output": f"next_{name}", "initial": _initial(leaf)}
            for name, leaf in tree.named_leaves(module.state_like, "state")
        ],
        "deterministic": module.deterministic,
        "distribution": [
            {
                "action": part.action,
                "kind": part.kind,
                "parameters": dict(zip(part.parameters, part.outputs)),
            }
            for part in parts(dist)
        ],
        # Where a Box has no bound, null stands.
        "observation_space": finite(space_to_json(policy.observation_space)),
        "action_space": finite(space_to_json(policy.action_space)),
        "last_action_reward": agent.config.last_action_reward,
        "env": agent.env if isinstance(agent.env, str) else None,
        "steps": agent.steps,
        "versions": provenance.versions(),
    }


def _signature(name: str, tensor: Tensor) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"name": name, "shape": ["batch", *tensor.shape[1:]], "dtype": dtype}


def _initial(leaf: Tensor) -> Any:
    """The numbers of one row, or "zeros". leaf [1, ...]."""
    return leaf[0].tolist() if leaf.any() else "zeros"


# torch ------------------------------------------------------------------------------------------


def _write_torch(program: ExportedProgram, file: Path) -> None:
    with _quiet():
        torch.export.save(program, file)


def _load_torch(file: Path) -> Callable[[Tensors], Tensors]:
    with _quiet():
        return torch.export.load(file).module()


# ONNX -------------------------------------------------------------------------------------------


def _write_onnx(program: ExportedProgram, file: Path, inputs: list[str], outputs: list[str]) -> None:
    try:
        with _quiet():
            torch.onnx.export(
                program,
                f=file,
                input_names=inputs,
                output_names=outputs,
                custom_translation_table=_noise(),
                external_data=False,  # the weights inside, in one file
                verbose=False,
            )
    except Exception as error:  # of many kinds, most of them private to torch
        raise RecollectError(
            f"the agent's step cannot be written as ONNX: {short(error)}. Does a part of your own use "
            "an operation that ONNX does not have? format='torch' knows all of torch's"
        ) from error


def _noise() -> dict[Callable[..., Any], Callable[..., Any]]:
    """How ONNX draws an exponential, away from 0 and infinity.

    One of exactly 0, as torch's own translation can give, would win the race of
    ``Categorical.sample`` for any entry, a forbidden one too.
    """
    op: Any = import_module("onnxscript").opset18

    def exponential(x: Any, lambd: float = 1.0, generator: Any = None) -> Any:
        uniform = op.RandomUniformLike(x, low=2.0**-24, high=1.0 - 2.0**-24)
        return op.Div(op.Neg(op.Log(uniform)), lambd)

    return {torch.ops.aten.exponential.default: exponential}


def _load_onnx(file: Path) -> Callable[[Tensors], Tensors]:
    onnxruntime: Any = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Tensors) -> Tensors:
        arrays = session.run(names, {name: tensor.numpy() for name, tensor in inputs.items()})
        return {name: torch.as_tensor(array) for name, array in zip(names, arrays)}

    return run


def _need(*packages: str) -> None:
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        unchecked = "; or leave the check out (check=False, --no-check)" if missing == ["onnxruntime"] else ""
        raise RecollectError(
            f"ONNX needs {' and '.join(missing)}, which is not installed: pip install 'recollect[onnx]'"
            f"{unchecked}"
        )


# Files and noise --------------------------------------------------------------------------------


def _check_sidecar(file: Path) -> None:
    """Refuse to replace anything but the description of an export."""
    if not os.path.lexists(file):
        return
    try:
        found = read_json(file)
    except RecollectError:
        found = {}
    if file.is_symlink() or not found.keys() >= {"format", "file", "kind"}:
        raise StorageError(f"{file} exists and is no description of an export: choose another name for it")


@contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A folder beside ``out`` that goes away, so that files reach their places whole or not at all."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export-", dir=out.parent) as folder:
            yield Path(folder)
    except RecollectError:
        raise
    except OSError as error:
        raise StorageError(f"{out} cannot be written ({error}): choose another place for it") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' remarks about their own insides."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
