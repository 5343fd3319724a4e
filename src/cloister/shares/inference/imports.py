"""Import of networks from scikit-learn, PyTorch and ONNX: numbers are copied, no code is loaded.

The name of its class determines a layer; classes that are not listed are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cloister.core.errors import DataError, PlanError
from cloister.shares.inference.layers import (
    AveragePool,
    Conv2d,
    Dense,
    Flatten,
    Layer,
    MaxPool,
    Polynomial,
    Relu,
)
from cloister.shares.inference.network import Network
from cloister.shares.inference.polynomials import fit

Range = tuple[float, float]
Classes = Sequence[str | int]

# Supported layers, with the required values of options that cloister's layers lack; PyTorch names.
_POOL = {
    "padding": 0, "ceil_mode": 0, "dilation": 1, "auto_pad": "NOTSET", "divisor_override": None,
    "return_indices": 0,
}  # fmt: skip
_USUAL: Mapping[str, Mapping[str, Any]] = {
    "Linear": {"alpha": 1, "beta": 1, "transA": 0},
    "Conv2d": {"groups": 1, "dilation": 1, "padding_mode": "zeros", "auto_pad": "NOTSET"},
    "AvgPool2d": _POOL,
    "MaxPool2d": _POOL,
    "ReLU": {},
    "Flatten": {"start_dim": 1, "end_dim": -1},
}
_OF_ONNX = {
    "Gemm": "Linear", "MatMul": "Linear", "Conv": "Conv2d", "AveragePool": "AvgPool2d",
    "MaxPool": "MaxPool2d", "Relu": "ReLU", "group": "groups", "dilations": "dilation",
    "strides": "stride", "pads": "padding", "kernel_shape": "kernel_size", "axis": "start_dim",
}  # fmt: skip


def from_sklearn(
    model: Any, input_range: Range, *, degree: int = 7, radius: float = 8.0, clip: bool = False
) -> Network:
    """Convert a fitted ``MLPClassifier``; raise PlanError if it is not supported.

    Parameters
    ----------
    model : sklearn.neural_network.MLPClassifier
        Activations "relu" and "identity" are exact; "logistic" and "tanh" become polynomials.
    input_range : pair of float
        Public bounds of every feature, as input of the model.
    degree, radius, clip
        Of these polynomials, see :func:`~cloister.shares.inference.polynomials.fit`.
    """
    if type(model).__name__ != "MLPClassifier" or not hasattr(model, "coefs_"):
        raise PlanError(f"a fitted MLPClassifier is needed, got {type(model).__name__}.")
    hidden: list[Layer] = []
    if model.activation == "relu":
        hidden = [Relu()]
    elif model.activation != "identity":
        name = {"logistic": "sigmoid"}.get(model.activation, model.activation)
        hidden = [Polynomial(tuple(fit(name, degree, radius)), radius, clip)]
    weights, biases = list(model.coefs_), list(model.intercepts_)
    if weights[-1].shape[1] == 1:  # one logit of two classes: its zero is the first one's score
        weights[-1] = np.hstack([np.zeros_like(weights[-1]), weights[-1]])
        biases[-1] = np.append(0.0, biases[-1])
    elif model.out_activation_ != "softmax":
        raise PlanError("an MLPClassifier of several labels a row is not supported.")
    layers: list[Layer] = []
    for weight, bias in zip(weights, biases, strict=True):
        layers += [Dense(weight, bias), *hidden]
    classes = np.asarray(model.classes_).tolist()
    return Network(layers[: len(layers) - len(hidden)], weights[0].shape[:1], classes, input_range)


def _one(value: Any, what: str) -> Any:
    """Return the common value of all sides; raise PlanError if they differ."""
    sides = sorted(set(value)) if isinstance(value, tuple | list) else [value]
    if len(sides) != 1:
        raise PlanError(f"{what} must be the same on every side, got {sides}.")
    return sides[0]


def _layer(kind: str, arrays: Sequence[Any], option: Callable[[str, Any], Any]) -> Layer:
    """Return the layer of a module, from its weights, its optional bias, and its options."""
    if kind not in _USUAL:
        raise PlanError(f"{kind} is not supported; there are {', '.join(_USUAL)}.")
    for name, usual in _USUAL[kind].items():
        if (found := _one(option(name, usual), name)) != usual:
            raise PlanError(f"{kind} with {name} {found} is not supported, only {usual}.")
    if kind in ("ReLU", "Flatten"):
        return Relu() if kind == "ReLU" else Flatten()
    if kind == "Linear":
        return Dense(arrays[0].T, _bias(arrays))
    stride = _one(option("stride", 1), "stride")
    if kind == "Conv2d":
        padding = _one(option("padding", 0), "padding")
        return Conv2d(arrays[0], _bias(arrays), stride, 0 if padding == "valid" else padding)
    size = _one(option("kernel_size", 0), "kernel_size")
    # Windows of the pooling layers do not overlap.
    if stride != size:
        raise PlanError(f"{kind} with kernel_size {size} and another stride is not supported.")
    return AveragePool(size) if kind == "AvgPool2d" else MaxPool(size)


def _bias(arrays: Sequence[Any]) -> Any:
    return arrays[1] if len(arrays) > 1 else np.zeros(len(arrays[0]))


def from_torch(
    model: Any,
    input_shape: Sequence[int],
    classes: Classes,
    input_range: Range,
    *,
    activations: Mapping[str, Layer] | None = None,
) -> Network:
    """Convert a trained ``torch.nn.Sequential``; raise PlanError if it is not supported.

    Parameters
    ----------
    model : torch.nn.Sequential
        In evaluation mode, without hooks; composed of Linear, Conv2d, AvgPool2d, MaxPool2d, ReLU
        and Flatten with supported options, or of Sequentials of these.
    input_shape : sequence of int
        Shape of one row, without the batch.
    activations : mapping of str to layer, optional
        Layers for your own modules, by the name of their class. For a network that was trained with
        a polynomial, for example ``{"Quadratic": Polynomial(...)}``.
    """
    if type(model).__name__ != "Sequential":
        raise PlanError(f"a torch Sequential is needed, got {type(model).__name__}.")
    # Dropout and batch statistics would make the outputs depend on other rows.
    if model.training:
        raise PlanError("the model is in training mode; call model.eval() first.")
    layers = tuple(_of_torch([model], activations or {}))
    return Network(layers, tuple(input_shape), classes, input_range)


def _of_torch(modules: Any, activations: Mapping[str, Layer]) -> Iterator[Layer]:
    for module in modules:
        kind = type(module).__name__
        # Hooks change outputs without a trace in the weights.
        if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
            raise PlanError(f"{kind} has hooks, whose code cannot be taken over; remove them.")
        if kind in activations:
            yield activations[kind]
        elif not type(module).__module__.startswith("torch.nn.modules."):
            raise PlanError(f"module {kind} is not PyTorch's own; name it in activations.")
        elif kind == "Sequential":
            yield from _of_torch(module, activations)
        else:
            tensors = (getattr(module, name, None) for name in ("weight", "bias"))
            arrays = [t.detach().cpu().double().numpy() for t in tensors if t is not None]
            yield _layer(kind, arrays, partial(getattr, module))


def from_onnx(model: str | Path | bytes, classes: Classes, input_range: Range) -> Network:
    """Convert an ONNX file, or its content; requires the extra ``onnx``.

    Raises
    ------
    DataError
        If it is no ONNX model, its weights are in other files, or the extra is missing.
    PlanError
        If it is no chain of Gemm, MatMul and Add, Conv, AveragePool, MaxPool, Relu and Flatten.
    """
    try:
        import onnx
    except ImportError:
        raise DataError("ONNX models need the extra: pip install 'cloister[onnx]'.") from None
    body = model if isinstance(model, bytes) else Path(model).read_bytes()
    try:
        graph = onnx.load_model_from_string(body).graph
        if any(t.data_location == onnx.TensorProto.EXTERNAL for t in graph.initializer):
            raise ValueError  # a path that somebody else wrote is not opened
        weights = {t.name: onnx.numpy_helper.to_array(t).astype(float) for t in graph.initializer}
    except Exception as error:  # the parser's own kinds
        raise DataError(f"this ONNX model cannot be read: {type(error).__name__}.") from None
    inputs = [one for one in graph.input if one.name not in weights]
    if len(inputs) != 1 or len(graph.output) != 1:
        raise PlanError(f"an ONNX model of one input and one output is needed, got {len(inputs)}.")
    shape = tuple(d.dim_value for d in inputs[0].type.tensor_type.shape.dim)[1:]
    layers: list[Layer] = []
    here, before = inputs[0].name, ""
    for node in graph.node:
        kind, names = node.op_type, [name for name in node.input if name != here]
        once = len(names) == len(node.input) - 1 and (kind == "Add" or node.input[0] == here)
        if not once or not weights.keys() >= set(names) or node.domain not in ("", "ai.onnx"):
            raise PlanError(f"operator {kind} breaks the chain of layers and weights.")
        arrays = [weights[name] for name in names]
        # ONNX may write a dense layer as two operators.
        if kind == "Add" and before == "MatMul" and arrays:
            kind, arrays = "MatMul", [layers.pop().parameters[0], *arrays]
        found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        try:
            layers.append(_of_onnx(kind, arrays, found))
        except PlanError as error:
            raise PlanError(f"operator {kind} of ONNX: {error}") from None
        here, before = node.output[0], node.op_type
    if here != graph.output[0].name:
        raise PlanError("the last operator of the ONNX model does not give its output.")
    return Network(layers, shape, tuple(classes), input_range)


def _of_onnx(kind: str, arrays: list[Any], found: Mapping[str, Any]) -> Layer:
    options = {
        _OF_ONNX.get(name, name): value.decode() if isinstance(value, bytes) else value
        for name, value in found.items()
    }
    if kind in ("Gemm", "MatMul"):
        arrays = [arrays[0] if options.get("transB") else arrays[0].T, *arrays[1:]]
        try:
            arrays[1:] = [np.broadcast_to(bias, (1, len(arrays[0])))[0] for bias in arrays[1:]]
        except ValueError:
            raise PlanError("its bias must be one number, or one row of its outputs.") from None
    return _layer(_OF_ONNX.get(kind, kind), arrays, options.get)
