"""Networks of other packages: the same scores, and a refusal by name of what is not known."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from cloister.core.errors import DataError, PlanError
from cloister.shares.inference.imports import from_onnx, from_sklearn, from_torch
from cloister.shares.inference.layers import Conv2d, Dense, Flatten, Polynomial, Relu

RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(0, 1, (6, 1, 9, 9))


def fitted(classes: int, **options: Any) -> tuple[Any, Any]:
    neural = pytest.importorskip("sklearn.neural_network")
    X = RNG.uniform(-1, 1, (60, 4))
    y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.3) * (classes > 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # need not converge
        model = neural.MLPClassifier((6, 5), max_iter=30, random_state=0, **options)
        return model.fit(X, np.array(["x", "y", "z"])[y]), X


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("activation", ["relu", "identity"])
def test_an_exact_scikit_learn_network_predicts_the_same(classes: int, activation: str) -> None:
    model, X = fitted(classes, activation=activation)
    network = from_sklearn(model, (-1, 1))
    scores = network.forward(X)
    odds = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(odds, model.predict_proba(X), atol=1e-12)
    assert network.predict(X) == model.predict(X).tolist()


@pytest.mark.parametrize("activation", ["logistic", "tanh"])
def test_a_smooth_activation_becomes_a_polynomial(activation: str) -> None:
    model, X = fitted(3, activation=activation)
    network = from_sklearn(model, (-1, 1), degree=9, radius=4.0)
    assert sum(isinstance(layer, Polynomial) for layer in network.layers) == 2
    scores = network.forward(X)
    odds = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(odds, model.predict_proba(X), atol=0.02)


def test_other_scikit_learn_models_are_refused() -> None:
    neural = pytest.importorskip("sklearn.neural_network")
    for model in (neural.MLPRegressor(), neural.MLPClassifier(), object()):
        with pytest.raises(PlanError, match="fitted MLPClassifier"):
            from_sklearn(model, (-1, 1))


def test_a_scikit_learn_network_of_several_labels_a_row_is_refused() -> None:
    neural = pytest.importorskip("sklearn.neural_network")
    X = RNG.uniform(-1, 1, (30, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # need not converge
        model = neural.MLPClassifier((3,), max_iter=2).fit(X, (X[:, :3] > 0).astype(int))
    with pytest.raises(PlanError, match="several labels"):
        from_sklearn(model, (-1, 1))


# PyTorch is not everywhere: stand-ins with the names and attributes of its modules.
class Tensor:
    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array, dtype=np.float32)

    def __getattr__(self, name: str) -> Any:
        if name == "numpy":
            return lambda: self.array.astype(np.float64)
        return lambda: self


def module(kind: str, place: str = "torch.nn.modules.x", **attributes: Any) -> Any:
    plain = {"_forward_hooks": {}, "_forward_pre_hooks": {}, "training": False}
    return type(kind, (), {"__module__": place, **plain, **attributes})()


def sequential(modules: Sequence[Any], **attributes: Any) -> Any:
    return module("Sequential", __iter__=lambda self: iter(modules), **attributes)


def patched(module: Any) -> Any:
    module.forward = abs
    return module


def linear(n_in: int, n_out: int) -> Any:
    return module("Linear", weight=Tensor(np.ones((n_out, n_in))), bias=None, out_features=n_out)


def test_modules_are_read_by_name_and_foreign_ones_refused() -> None:
    square = Polynomial((0.0, 0.0, 1.0), 1.0)
    model = sequential([linear(2, 3), module("Square", place="mine"), sequential([linear(3, 2)])])
    network = from_torch(model, (2,), ("a", "b"), (0, 1), activations={"Square": square})
    np.testing.assert_allclose(network.forward([[0.5, 1.0]]), [[6.75, 6.75]])
    with pytest.raises(PlanError, match="Square is not PyTorch's own"):
        from_torch(model, (2,), ("a", "b"), (0, 1))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (linear(2, 2), "Sequential"),
        (sequential([], training=True), "model.eval"),
        (sequential([module("BatchNorm1d")]), "BatchNorm1d is not supported"),
        (sequential([module("Dropout")]), "Dropout is not supported"),
        (sequential([module("ReLU", _forward_hooks={1: print})]), "hooks"),
        (sequential([], _forward_hooks={1: print}), "hooks"),
        (sequential([patched(module("ReLU"))]), "hooks"),
        (sequential([module("Flatten", start_dim=0, end_dim=-1)]), "start_dim 0"),
        (
            sequential([module("MaxPool2d", kernel_size=2, stride=1, padding=0, ceil_mode=False)]),
            "another stride",
        ),
        (
            sequential(
                [module("Conv2d", groups=2, dilation=(1, 1), padding=0, padding_mode="zeros")]
            ),
            "groups 2",
        ),
    ],
)
def test_what_torch_can_and_we_cannot_is_refused_by_name(model: Any, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        from_torch(model, (2,), ("a", "b"), (0, 1))


def test_a_torch_network_gives_the_same_scores(oracle: Callable[[str], Any]) -> None:
    torch = oracle("torch")
    nn = torch.nn
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Conv2d(3, 4, 2, stride=2, bias=False),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4, 5),
        nn.ReLU(),
        nn.Linear(5, 3),
    ).eval()
    network = from_torch(model, (1, 9, 9), ("a", "b", "c"), (0, 1))
    expected = model(torch.tensor(IMAGES, dtype=torch.float32)).detach().numpy()
    np.testing.assert_allclose(network.forward(IMAGES), expected, atol=1e-5)
    for strange in (
        nn.Conv2d(1, 1, 3, padding="same"),
        nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(1, 1, 3, dilation=2),
        nn.Conv2d(2, 2, 3, groups=2),
        nn.AvgPool2d((2, 3)),
        nn.AvgPool2d(2, divisor_override=3),
        nn.AvgPool2d(2, padding=1),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, return_indices=True),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(0),
        nn.Softmax(1),
    ):
        with pytest.raises(PlanError):
            from_torch(nn.Sequential(strange).eval(), (1, 9, 9), ("a",), (0, 1))


def chain(*nodes: Any, shape: Sequence[int] = (1, 9, 9), **weights: Any) -> bytes:
    """Return the bytes of an ONNX model; the nodes are (operator, weights, options)."""
    onnx = pytest.importorskip("onnx")
    made = []
    for number, (kind, names, options) in enumerate(nodes):
        made.append(
            onnx.helper.make_node(kind, [f"t{number}", *names], [f"t{number + 1}"], **options)
        )
    graph = onnx.helper.make_graph(
        made,
        "g",
        [onnx.helper.make_tensor_value_info("t0", onnx.TensorProto.FLOAT, ["n", *shape])],
        [onnx.helper.make_tensor_value_info(f"t{len(made)}", onnx.TensorProto.FLOAT, None)],
        [
            onnx.numpy_helper.from_array(np.asarray(array, np.float32), name)
            for name, array in weights.items()
        ],
    )
    found: bytes = onnx.helper.make_model(graph).SerializeToString()
    return found


def test_an_onnx_chain_gives_the_same_scores_as_the_reference() -> None:
    weights: dict[str, Any] = {
        "k": RNG.normal(size=(2, 1, 3, 3)),
        "kb": RNG.normal(size=2),
        "g": RNG.normal(size=(5, 8)),
        "gb": RNG.normal(size=5),
        "m": RNG.normal(size=(5, 3)),
        "mb": RNG.normal(size=3),
    }
    body = chain(
        ("Conv", ["k", "kb"], {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("Relu", [], {}),
        ("MaxPool", [], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Flatten", [], {}),
        ("Gemm", ["g", "gb"], {"transB": 1}),
        ("Relu", [], {}),
        ("MatMul", ["m"], {}),
        ("Add", ["mb"], {}),
        **weights,
    )
    network = from_onnx(body, ("a", "b", "c"), (0, 1))
    assert [type(layer) for layer in network.layers[-3:]] == [Dense, Relu, Dense]
    assert isinstance(network.layers[0], Conv2d)
    assert isinstance(network.layers[3], Flatten)
    reference = pytest.importorskip("onnx.reference").ReferenceEvaluator(body)
    expected = reference.run(None, {"t0": IMAGES.astype(np.float32)})[0]
    np.testing.assert_allclose(network.forward(IMAGES), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (("Sigmoid", [], {}), "Sigmoid of ONNX"),
        (("Conv", ["k"], {"group": 2}), "groups 2"),
        (("Conv", ["k"], {"pads": [0, 0, 1, 1]}), "same on every side"),
        (("Conv", ["k"], {"auto_pad": "SAME_UPPER"}), "auto_pad"),
        (("AveragePool", [], {"kernel_shape": [2, 2]}), "another stride"),
        (("Gemm", ["k"], {"alpha": 2.0}), "alpha"),
        (("Add", ["k"], {}), "Add of ONNX"),
        (("Conv", ["other"], {}), "breaks the chain"),
        (("Flatten", [], {"axis": 2}), "start_dim 2"),
        (("Flatten", [], {"domain": "mine"}), "breaks the chain"),
        (("Conv", ["k"], {"auto_pad": "VALID", "pads": [1, 1, 1, 1]}), "auto_pad"),
        (("Conv", ["k"], {"dilations": [1, 2]}), "same on every side"),
        (("MaxPool", [], {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}), "ceil_mode"),
        (("AveragePool", [], {"kernel_shape": [1], "pads": [1, 1, 1, 1]}), "padding 1"),
        (("MaxPool", [], {}), "kernel_size 0"),
        (("Gemm", ["k"], {"beta": 2.0}), "beta"),
        (("Gemm", ["k"], {"transA": 1}), "transA"),
        (("Gemm", ["k"], {}), "weights of Dense"),
        (("Gemm", ["two", "column"], {}), "its bias"),
        (("Gemm", ["two", "nan"], {}), "finite"),
    ],
)
def test_what_onnx_can_and_we_cannot_is_refused_by_name(node: Any, said: str) -> None:
    weights = {"two": np.eye(2), "column": [[1], [2]], "nan": [np.nan]}
    body = chain(node, k=np.zeros((1, 1, 2, 2)), **weights)
    with pytest.raises(PlanError, match=said):
        from_onnx(body, ("a",), (0, 1))


@pytest.mark.parametrize(
    "add",
    [("t1", "t1"), ("b", "b"), ("t1", "t0"), ("t1",), ("t0", "b"), ()],
    ids=["doubled", "constant", "of the input", "alone", "elsewhere", "of nothing"],
)
def test_a_sum_is_a_bias_only_if_it_adds_weights_to_the_product_before_it(
    add: tuple[str, ...],
) -> None:
    onnx = pytest.importorskip("onnx")
    plain = chain(("MatMul", ["w"], {}), ("Add", ["b"], {}), shape=(2,), w=np.eye(2), b=[1, 2])
    assert from_onnx(plain, ("a", "b"), (0, 1)).forward([[0.0, 0.0]]).tolist() == [[1.0, 2.0]]
    model = onnx.load_model_from_string(plain)
    del model.graph.node[1].input[:]
    model.graph.node[1].input.extend(add)
    with pytest.raises(PlanError, match="operator Add"):
        from_onnx(model.SerializeToString(), ("a", "b"), (0, 1))


@pytest.mark.parametrize("bias", [3.0, [3.0], [1.0, 2.0], [[1.0, 2.0]]])
def test_a_bias_in_onnx_is_one_number_or_one_row(bias: Any) -> None:
    body = chain(("Gemm", ["w", "b"], {}), shape=(2,), w=np.eye(2), b=bias)
    found = from_onnx(body, ("a", "b"), (0, 1)).forward([[0.0, 0.5]])
    np.testing.assert_allclose(found, [0.0, 0.5] + np.ravel(bias)[None])


def test_bytes_that_are_no_model_and_weights_elsewhere_are_refused() -> None:
    onnx = pytest.importorskip("onnx")
    with pytest.raises(DataError, match="cannot be read"):
        from_onnx(b"\xff\xff\xff", ("a",), (0, 1))
    model = onnx.load_model_from_string(chain(("Gemm", ["g"], {}), shape=(1,), g=[[1.0]]))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    with pytest.raises(DataError, match="cannot be read"):
        from_onnx(model.SerializeToString(), ("a",), (0, 1))
