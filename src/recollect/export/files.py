"""Export an agent as a file that runs without Recollect: ONNX, or a ``torch.export`` program.

The file holds one acting step. The state is an input and an output, as tensors with batch first, and the
caller keeps it between steps:

=============================  ====================================================================
input                          meaning
=============================  ====================================================================
``obs`` or ``obs.KEY``         the observation, in the env's units: normalisation is inside
``state`` or ``state.0``, ...  the core's state; absent for an agent without memory
``first``                      [B] bool: the row starts an episode; its state is reset inside
=============================  ====================================================================

=============================  ====================================================================
output                         meaning
=============================  ====================================================================
``action`` or ``action.KEY``   the action for the env: squashed, scaled, clipped, offset
``logits``; ``mean`` and       parameters of the action distribution, for sampling; with the
``log_std``                    KEY of the action if it has one
``q``                          [B, n] the values of all actions, -inf where forbidden; those of a
                               MultiDiscrete side by side; in place of a distribution
``value``                      [B] the expected return, in real units; absent if the critic has a
                               network of its own, which is not exported
``next_state...``              the state for the next step
=============================  ====================================================================

``FILE.json`` beside it describes names, shapes, dtypes, spaces and the initial state.
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
from recollect.base.spaces import space_to_json
from recollect.errors import ConfigError, RecollectError, StorageError
from recollect.export.check import check as check_step
from recollect.export.check import short
from recollect.export.step import StepModule, Tensors, parts_of
from recollect.policy.policies import any_policy, by_group
from recollect.policy.policy import Policy

if TYPE_CHECKING:
    from recollect.agent import Agent

FORMAT = 1
"""Version of the JSON file."""
SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
"""File suffixes by format."""
USE = (
    "Start with the initial state and first = true. Then pass every next_state as the state of the next "
    "step, with first = true in rows where an episode starts: their state is reset inside."
)


def export_agent(
    agent: Agent,
    out: str | Path,
    format: Literal["onnx", "torch"] = "onnx",  # noqa: A002
    *,
    group: str | None = None,
    deterministic: bool = True,
    check: bool = True,
) -> Path:
    """Write the agent's acting step to ``out``, and its description to ``out`` with ``.json`` appended.

    Of an agent with several groups, ``out`` is a folder, which gets a file for each: ``GROUP.onnx``. A file
    is not written if the step cannot be exported or differs from the agent's. Returns ``out``.

    Args:
        agent: the agent; it is not changed.
        out: the file; an existing one is replaced. For several groups the folder.
        format: "onnx", or "torch" for ``torch.export.load`` (``.pt2``).
        group: of several groups the one to export, to the file ``out``; None: all of them.
        deterministic: ``action`` is the mode of the distribution; otherwise the file samples it.
        check: load the file again and compare it with the agent, step by step.
    """
    if format not in SUFFIXES:
        raise ConfigError(f"format is {format!r}: choose {' or '.join(SUFFIXES)}")
    policies = by_group(agent.network)
    if group is not None:
        policies = {group: agent[group].policy}
    if format == "onnx":
        _need("onnx", "onnxscript", *(["onnxruntime"] if check else []))
        precision = any_policy(agent.network).precision
        if precision == "bf16":
            raise ConfigError(
                f"this agent acts in {precision}, which ONNX Runtime does not support on CPUs: export it "
                "with format='torch' (--format torch)"
            )
    out = Path(out)
    outs = dict.fromkeys(policies, out)
    if len(policies) > 1:
        _check_folder(out, agent)
        outs = {name: out / f"{name}{SUFFIXES[format]}" for name in policies}
    for file in outs.values():
        _check_file(file, format)
    for name, policy in policies.items():
        about = {"group": name, "agents": list(agent.groups[name])} if name else {}
        _export(agent, policy, outs[name], format, about, deterministic=deterministic, check=check)
    return out


def _export(
    agent: Agent,
    policy: Policy,
    out: Path,
    format: str,  # noqa: A002
    about: dict[str, Any],
    *,
    deterministic: bool,
    check: bool,
) -> None:
    """Write one policy; ``about``: more of its description."""
    sidecar = _sidecar(out)
    module = StepModule(_copy(policy), deterministic)
    example = module.example()
    with torch.no_grad():
        outputs = module(example)  # also initialises lazy parts, such as statistics
    program = _trace(module, example)
    with _beside(out) as folder:
        file = folder / out.name
        if format == "onnx":
            _write_onnx(program, file, list(example), list(outputs))
        else:
            with _quiet():
                torch.export.save(program, file)
        if check:
            exported = _read_back(file, format)
            check_step(exported, _copy(policy), deterministic=deterministic, name=out.name)
        description = {"format": FORMAT, "file": out.name, "kind": format, "checked": check, **about}
        description |= _describe(agent, module, example, outputs)
        text = json.dumps(description, indent=2, allow_nan=False) + "\n"
        (folder / sidecar.name).write_text(text, encoding="utf-8")
        for path in (out, sidecar):
            os.replace(folder / path.name, path)


def _copy(policy: Policy) -> Policy:
    """A copy on the CPU, in eval mode and without gradients, and without a critic's own network."""
    return deepcopy(policy.actor_only()).cpu().eval().requires_grad_(False)


def _trace(module: StepModule, example: Tensors) -> ExportedProgram:
    batch = torch.export.Dim("batch", min=1)
    shapes = ({name: {0: batch} for name in example},)
    try:
        with _quiet(), torch.no_grad():
            program = torch.export.export(module, (example,), dynamic_shapes=shapes)
    except Exception as error:  # of many kinds, most of them private to torch
        raise RecollectError(
            f"torch.export cannot trace the agent's step: {short(error)}. An encoder, core or policy of your "
            "own must not branch on tensor values (use torch.where), and must read the number of rows from "
            "x.shape[0]: len(x) makes it a constant"
        ) from error
    aten: Any = torch.ops.aten
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # keeps local paths private
        # torch.export writes uniform_, but cannot load it: one of its arguments is called "from".
        if node.target is aten.uniform_.default and len(node.args) == 1:
            node.target = aten.rand_like.default
    return program


def _read_back(file: Path, format: str) -> Callable[[Tensors], Tensors]:  # noqa: A002
    """The file as a function, loaded with the runtime that its users have."""
    try:
        with _quiet():
            return _load_onnx(file) if format == "onnx" else torch.export.load(file).module()
    except Exception as error:  # of any kind: the runtime's own
        raise RecollectError(f"{file.name} was written, but cannot be loaded: {short(error)}") from error


def _describe(agent: Agent, module: StepModule, inputs: Tensors, outputs: Tensors) -> dict[str, Any]:
    """The contents of FILE.json: everything needed to use the file without Recollect, as strict JSON."""
    policy = module.policy
    with torch.no_grad():
        *found, _ = policy.step(module.obs_like, module.state_like, torch.ones(1, dtype=torch.bool))
    return {
        "use": USE,
        "inputs": [_signature(name, tensor) for name, tensor in inputs.items()],
        "outputs": [_signature(name, tensor) for name, tensor in outputs.items()],
        "state": [
            {"input": name, "output": f"next_{name}", "initial": leaf[0].tolist() if leaf.any() else "zeros"}
            for name, leaf in tree.named_leaves(module.state_like, "state")  # leaf [1, ...]
        ],
        "deterministic": module.deterministic,
        "distribution": [
            {"action": part.action, "kind": part.kind, "parameters": dict(zip(part.parameters, part.outputs))}
            for part in parts_of(policy, found)
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
            f"the agent's step cannot be written as ONNX: {short(error)}. Does a part of your own use an "
            "operation that ONNX lacks? format='torch' supports all of torch's"
        ) from error


def _noise() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The ONNX translation of ``exponential``, bounded away from 0 and infinity.

    torch's own translation can give exactly 0, with which ``Categorical.sample`` could choose a masked
    entry.
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
        unchecked = "; or skip the check (check=False, --no-check)" if missing == ["onnxruntime"] else ""
        install = f"pip install 'recollect[onnx]'{unchecked}"
        raise RecollectError(f"ONNX needs {' and '.join(missing)}, which is not installed: {install}")


def _sidecar(out: Path) -> Path:
    return out.with_name(f"{out.name}.json")


def _check_folder(out: Path, agent: Agent) -> None:
    """Raise ConfigError if ``out``, for several groups, is meant as a file."""
    if out.suffix in SUFFIXES.values() or out.is_file():
        raise ConfigError(
            f"{out} is one file, and this agent has the groups {', '.join(agent.groups)}: choose one with "
            "group=... (--group NAME), or give a folder for all"
        )


def _check_file(out: Path, format: str) -> None:  # noqa: A002
    """Raise StorageError if the file or its description cannot be written or replaced."""
    if out.is_dir():
        raise StorageError(f"{out} is a folder: name a file, such as {out / f'agent{SUFFIXES[format]}'}")
    check_replaceable(out)
    file = _sidecar(out)
    if not os.path.lexists(file):
        return
    try:
        found = read_json(file)
    except RecollectError:
        found = {}
    if file.is_symlink() or not found.keys() >= {"format", "file", "kind"}:
        raise StorageError(f"{file} exists and is not the description of an export: choose another name")


@contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A temporary folder beside ``out``, so that files can be renamed into place atomically."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export-", dir=out.parent) as folder:
            yield Path(folder)
    except RecollectError:
        raise
    except OSError as error:
        raise StorageError(f"{out} cannot be written ({error}): choose another file") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings and logs of torch's exporters."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
