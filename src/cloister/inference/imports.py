"""Networks from scikit-learn, PyTorch and ONNX: numbers are copied, no code is loaded.

What a layer is follows from the name of its class; anything not listed is refused by that name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cloister.errors import DataError, PlanError
from cloister.inference.network import (
    AveragePool,
    Conv2d,
    Dense,
    Flatten,
    Layer,
    MaxPool,
    Network,
    Polynomial,
    Relu,
)
from cloister.inference.polynomials import fit

Range = tuple[float, float]
Classes = Sequence[str | int]


def from_sklearn(
    model: Any, input_range: Range, *, degree: int = 7, radius: float = 8.0, clip: bool = False
) -> Network:
    """Return the network of a fitted ``MLPClassifier``, or raise a PlanError.

    Parameters
    ----------
    model : sklearn.neural_network.MLPClassifier
        Activation "relu" or "identity" is taken exactly; "logistic" and "tanh" as polynomials.
    input_range : pair of float
        Public bounds of every feature, as the model sees it.
    degree, radius, clip
        Of those polynomials, see :func:`~cloister.inference.polynomials.fit`.
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


def _one(values: Any, what: str) -> int:
    """Return the one number that all sides have."""
    sides = {int(v) for v in np.atleast_1d(np.asarray(values))}
    if len(sides) != 1:
        raise PlanError(f"{what} must be the same on every side, got {sorted(sides)}.")
    return sides.pop()


def _plain(what: str, **rules: bool) -> None:
    """Refuse an operator whose options are not the plain ones."""
    broken = [name for name, holds in rules.items() if not holds]
    if broken:
        raise PlanError(f"{what} with another {', '.join(broken)} than the usual is not supported.")


def from_torch(
    model: Any,
    input_shape: Sequence[int],
    classes: Classes,
    input_range: Range,
    *,
    activations: Mapping[str, Layer] | None = None,
) -> Network:
    """Return the network of a trained ``torch.nn.Sequential``, or raise a PlanError.

    Parameters
    ----------
    model : torch.nn.Sequential
        In evaluation mode, without hooks; of Linear, Conv2d, AvgPool2d, MaxPool2d, ReLU and
        Flatten with usual options, or of Sequentials of these.
    input_shape : sequence of int
        Of one row, without the batch.
    activations : mapping of str to layer, optional
        What modules of your own stand for, by the name of their class: a network that was trained
        with a polynomial, say ``{"Quadratic": Polynomial(...)}``.
    """
    if type(model).__name__ != "Sequential":
        raise PlanError(f"a torch Sequential is needed, got {type(model).__name__}.")
    if model.training:
        raise PlanError("the model is in training mode; call model.eval() first.")
    layers = _of_torch([model], activations or {})
    return Network(layers, tuple(input_shape), classes, input_range)


def _of_torch(model: Any, activations: Mapping[str, Layer]) -> list[Layer]:
    found: list[Layer] = []
    for m in model:
        kind = type(m).__name__
        if m._forward_hooks or m._forward_pre_hooks:
            raise PlanError(f"{kind} has hooks, whose code cannot be taken over; remove them.")
        if kind in activations:
            found.append(activations[kind])
        elif not type(m).__module__.startswith("torch.nn.modules."):
            raise PlanError(f"module {kind} is not PyTorch's own; name it in activations.")
        elif kind == "Sequential":
            found += _of_torch(m, activations)
        elif kind == "Linear":
            found.append(Dense(_array(m.weight).T, _bias(m, m.out_features)))
        elif kind == "Conv2d":
            valid = m.padding_mode == "zeros" and m.padding != "same"
            _plain(kind, groups=m.groups == 1, dilation=set(m.dilation) == {1}, padding=valid)
            padding = 0 if m.padding == "valid" else _one(m.padding, "padding of Conv2d")
            stride, bias = _one(m.stride, "stride of Conv2d"), _bias(m, m.out_channels)
            found.append(Conv2d(_array(m.weight), bias, stride, padding))
        elif kind in ("AvgPool2d", "MaxPool2d"):
            size = _one(m.kernel_size, f"kernel_size of {kind}")
            usual = getattr(m, "divisor_override", None) is None
            usual &= getattr(m, "dilation", 1) == 1 and not getattr(m, "return_indices", False)
            still = _one(m.padding, "padding") == 0 and not m.ceil_mode
            _plain(kind, stride=_one(m.stride, "stride") == size, padding=still, options=usual)
            found.append(AveragePool(size) if kind == "AvgPool2d" else MaxPool(size))
        elif kind == "ReLU":
            found.append(Relu())
        elif kind == "Flatten":
            _plain(kind, axes=(m.start_dim, m.end_dim) == (1, -1))
            found.append(Flatten())
        else:
            raise PlanError(f"module {kind} of PyTorch is not supported.")
    return found


def _array(tensor: Any) -> Any:
    return tensor.detach().cpu().double().numpy()


def _bias(module: Any, length: int) -> Any:
    return np.zeros(length) if module.bias is None else _array(module.bias)


def from_onnx(model: str | Path | bytes, classes: Classes, input_range: Range) -> Network:
    """Return the network of an ONNX file, or of what it holds; needs the extra ``onnx``.

    Raises
    ------
    DataError
        If it is no ONNX model, its weights are elsewhere, or the extra is missing.
    PlanError
        If it is not a chain of Gemm, MatMul and Add, Conv, AveragePool, MaxPool, Relu and Flatten.
    """
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError:
        raise DataError("ONNX models need the extra: pip install 'cloister[onnx]'.") from None
    body = model if isinstance(model, bytes) else Path(model).read_bytes()
    try:
        graph = onnx.load_model_from_string(body).graph
        if any(t.data_location == onnx.TensorProto.EXTERNAL for t in graph.initializer):
            raise ValueError  # a path that somebody else wrote is not opened
        weights = {t.name: numpy_helper.to_array(t).astype(float) for t in graph.initializer}
    except Exception as error:  # the parser's own kinds
        raise DataError(f"this ONNX model cannot be read: {type(error).__name__}.") from None
    inputs = [one for one in graph.input if one.name not in weights]
    if len(inputs) != 1 or len(graph.output) != 1:
        raise PlanError(f"an ONNX model of one input and one output is needed, got {len(inputs)}.")
    shape = tuple(d.dim_value for d in inputs[0].type.tensor_type.shape.dim)[1:]
    layers, here, nodes = [], inputs[0].name, list(graph.node)
    while nodes:
        node = nodes.pop(0)
        names, end = list(node.input), node.output[0]
        if node.op_type == "MatMul" and nodes and nodes[0].op_type == "Add":
            after = nodes.pop(0)
            names += [name for name in after.input if name != end]
            end = after.output[0]
        if names[0] != here or not all(name in weights for name in names[1:]):
            raise PlanError(f"operator {node.op_type} breaks the chain of layers and weights.")
        options = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        layers.append(_of_onnx(node.op_type, [weights[name] for name in names[1:]], options))
        here = end
    if here != graph.output[0].name:
        raise PlanError("the last operator of the ONNX model does not give its output.")
    return Network(tuple(layers), shape, tuple(classes), input_range)


def _of_onnx(kind: str, weights: list[Any], options: dict[str, Any]) -> Layer:
    if kind in ("Gemm", "MatMul"):
        usual = options.get("beta", 1) == 1 or len(weights) == 1
        _plain(kind, alpha=options.get("alpha", 1) == 1, beta=usual)
        _plain(kind, transA=not options.get("transA"))
        matrix = weights[0].T if options.get("transB") else weights[0]
        bias = weights[1].ravel() if len(weights) > 1 else np.zeros(1)
        return Dense(matrix, np.broadcast_to(bias, matrix.shape[1:]))
    if kind == "Relu":
        return Relu()
    if kind == "Flatten":
        _plain(kind, axis=options.get("axis", 1) == 1)
        return Flatten()
    if kind not in ("Conv", "AveragePool", "MaxPool"):
        raise PlanError(f"operator {kind} of ONNX is not supported.")
    auto = options.get("auto_pad", b"NOTSET") in (b"NOTSET", b"VALID")
    still = _one(options.get("dilations", 1), "dilations") == 1 and not options.get("ceil_mode")
    _plain(kind, auto_pad=auto, dilations=still, group=options.get("group", 1) == 1)
    stride = _one(options.get("strides", 1), f"strides of {kind}")
    padding = _one(options.get("pads", 0), f"pads of {kind}")
    if kind == "Conv":
        bias = weights[1] if len(weights) > 1 else np.zeros(len(weights[0]))
        return Conv2d(weights[0], bias, stride, padding)
    size = _one(options["kernel_shape"], f"kernel_shape of {kind}")
    _plain(kind, strides=stride == size, pads=padding == 0)
    return AveragePool(size) if kind == "AveragePool" else MaxPool(size)
