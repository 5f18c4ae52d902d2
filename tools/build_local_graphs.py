"""Make the graph files of the local embedder: python tools/build_local_graphs.py (needs `onnx`).

The weights stay out of the files: each is an external tensor that the service supplies by name.
"""

from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from service.providers.e5_encoder import LINEAR_PARTS, Precision, Tensors, graph_path, initializers
from service.providers.e5_weights import BLOCK, E5Weights, locate_weights, open_weights

CONTRIB = "com.microsoft"


class GraphBuilder:
    """Collects the nodes of one encoder, from embeddings to the mean of the last layer."""

    def __init__(self, weights: E5Weights, tensors: Tensors, precision: Precision) -> None:
        self._nodes: list[NodeProto] = []
        self._weights = weights
        self._tensors = tensors
        self._precision = precision

    def build(self) -> list[NodeProto]:
        """The nodes in order of execution."""
        norm = {"epsilon": self._weights.epsilon, "axis": -1}
        inputs = ["embeddings", "embeddings_norm.weight", "embeddings_norm.bias"]
        hidden = self._node("LayerNormalization", inputs, domain="", **norm)
        for layer in range(self._weights.layers):
            hidden = self._layer(f"l{layer}.", hidden)
        self._nodes.append(
            helper.make_node("ReduceMean", [hidden, "token_axis"], ["mean"], keepdims=0)
        )
        return self._nodes

    def _layer(self, prefix: str, hidden: str) -> str:
        qkv = self._linear(prefix + "qkv", hidden)
        parts = [f"{prefix}{part}" for part in LINEAR_PARTS["qkv"]]
        self._nodes.append(helper.make_node("Split", [qkv], parts, axis=-1, num_outputs=len(parts)))
        mixed = self._node("MultiHeadAttention", parts, num_heads=self._weights.heads)
        attended = self._linear(prefix + "attention", mixed)
        middle = self._add_and_norm(prefix + "attention_norm", attended, hidden)
        raised = self._node("Gelu", [self._linear(prefix + "up", middle)])
        return self._add_and_norm(
            prefix + "output_norm", self._linear(prefix + "down", raised), middle
        )

    def _linear(self, name: str, hidden: str) -> str:
        matrix, scale, bias = f"{name}.weight", f"{name}.scale", f"{name}.bias"
        if self._precision == "int8":
            return self._node("DynamicQuantizeMatMul", [hidden, matrix, scale, "", bias])
        outputs, blocks, _ = self._tensors[matrix].shape
        # Accuracy level 1 keeps the products in float32; only the weights are 4-bit.
        sizes = {"N": outputs, "K": blocks * BLOCK, "bits": 4, "block_size": BLOCK}
        return self._node(
            "MatMulNBits", [hidden, matrix, scale, "", "", bias], accuracy_level=1, **sizes
        )

    def _add_and_norm(self, name: str, output: str, residual: str) -> str:
        inputs = [output, residual, f"{name}.weight", f"{name}.bias"]
        return self._node("SkipLayerNormalization", inputs, epsilon=self._weights.epsilon)

    def _node(self, kind: str, inputs: list[str], domain: str = CONTRIB, **attributes: Any) -> str:
        output = f"t{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [output], domain=domain, **attributes))
        return output


def build_graph(weights: E5Weights, precision: Precision) -> ModelProto:
    """One text in, shape (1, tokens, hidden); its mean vector out, shape (1, hidden)."""
    tensors = initializers(weights, precision)
    axis = numpy_helper.from_array(np.array([1], np.int64), "token_axis")
    graph = helper.make_graph(
        GraphBuilder(weights, tensors, precision).build(),
        f"multilingual-e5-small-{precision}",
        [_float_input("embeddings", ["batch", "tokens", weights.hidden])],
        [_float_input("mean", ["batch", weights.hidden])],
        [axis, *(_external(name, tensor) for name, tensor in tensors.items())],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _float_input(name: str, shape: list[str | int]) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _external(name: str, tensor: np.ndarray[Any, Any]) -> TensorProto:
    stub = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(tensor.dtype))
    stub.dims.extend(tensor.shape)
    stub.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights"), ("offset", 0), ("length", tensor.nbytes)):
        stub.external_data.add(key=key, value=str(value))
    return stub


def main() -> None:
    """Write both graphs where the service reads them."""
    weights = open_weights(locate_weights())
    precisions: tuple[Precision, ...] = ("fp32", "int8")
    for precision in precisions:
        path = graph_path(precision)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(build_graph(weights, precision).SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
