"""Make the cross-encoder of the tests: python tools/build_test_reranker.py (needs `onnx`).

It counts how often words of the query stand in the document: the least that reads both.
"""

from pathlib import Path

from onnx import TensorProto, helper, save
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

FOLDER = Path(__file__).parent.parent / "tests/providers/data/cross-encoder"
WORDS = ["rotate", "the", "old", "key", "lock", "every", "is", "new", "garden", "in", "spring"]
INT, FLOAT = TensorProto.INT64, TensorProto.FLOAT


def build_model() -> None:
    """logit = number of equal (query token, document token) pairs - 2."""
    shape = ["pairs", "tokens"]
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = [helper.make_tensor_value_info(name, INT, shape) for name in names]
    output = helper.make_tensor_value_info("logits", FLOAT, ["pairs", 1])
    constants = [
        helper.make_tensor("rows", INT, [1], [2]),
        helper.make_tensor("columns", INT, [1], [1]),
        helper.make_tensor("pair", INT, [2], [1, 2]),
        helper.make_tensor("last", INT, [1], [1]),
        helper.make_tensor("one", INT, [], [1]),
        helper.make_tensor("two", FLOAT, [], [2.0]),
    ]
    node = helper.make_node
    nodes = [
        node("Sub", ["one", "token_type_ids"], ["query_mask"]),
        node("Mul", ["token_type_ids", "attention_mask"], ["document_mask"]),
        node("Unsqueeze", ["input_ids", "rows"], ["query_ids"]),
        node("Unsqueeze", ["input_ids", "columns"], ["document_ids"]),
        node("Equal", ["query_ids", "document_ids"], ["equal"]),
        node("Cast", ["equal"], ["same"], to=INT),
        node("Unsqueeze", ["query_mask", "rows"], ["query_rows"]),
        node("Unsqueeze", ["document_mask", "columns"], ["document_columns"]),
        node("Mul", ["same", "query_rows"], ["of_query"]),
        node("Mul", ["of_query", "document_columns"], ["counted"]),
        node("ReduceSum", ["counted", "pair"], ["total"], keepdims=0),
        node("Cast", ["total"], ["number"], to=FLOAT),
        node("Sub", ["number", "two"], ["shifted"]),
        node("Unsqueeze", ["shifted", "last"], ["logits"]),
    ]
    graph = helper.make_graph(nodes, "overlap", inputs, [output], constants)
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(FOLDER / "model.onnx"))


def build_tokenizer() -> None:
    """Whole words; marks as in BERT."""
    marks = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    vocabulary = {word: number for number, word in enumerate([*marks, *WORDS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A",
        pair="[CLS] $A $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    tokenizer.save(str(FOLDER / "tokenizer.json"))


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    build_model()
    build_tokenizer()
