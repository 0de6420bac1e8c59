"""The API reference names everything that the proto defines, and comes from its comments."""

import re
import runpy
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from voxcpm_grpc.v1 import tts_pb2

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool():
    return runpy.run_path(str(ROOT / "tools" / "document_api.py"))


def example() -> FileDescriptorProto:
    """A proto with one element of every kind, each with a comment."""
    proto = FileDescriptorProto(name="example.proto", package="example", syntax="proto3")
    service = proto.service.add(name="Echo")
    service.method.add(
        name="Talk",
        input_type=".example.Word",
        output_type=".example.Word",
        client_streaming=True,
        server_streaming=True,
    )
    word = proto.message_type.add(name="Word")
    word.oneof_decl.add(name="content")
    word.field.add(name="text", number=1, type="TYPE_STRING", label="LABEL_OPTIONAL", oneof_index=0)
    word.field.add(name="kind", number=2, type="TYPE_ENUM", type_name=".example.Kind", label="LABEL_REPEATED")
    entry = word.nested_type.add(name="LabelsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type="TYPE_STRING", label="LABEL_OPTIONAL")
    entry.field.add(name="value", number=2, type="TYPE_INT32", label="LABEL_OPTIONAL")
    word.field.add(
        name="labels", number=3, type="TYPE_MESSAGE", type_name=".example.Word.LabelsEntry", label="LABEL_REPEATED"
    )
    proto.enum_type.add(name="Kind").value.add(name="KIND_UNSPECIFIED", number=0)
    comments = {
        (12,): " An example.\n\n Rules:\n   * One rule,\n     on two lines.\n   * Another.\n",
        (6, 0): " A service.\n",
        (6, 0, 2, 0): " Repeats a word.\n",
        (4, 0): " A word.\n",
        (4, 0, 8, 0): " What the word holds.\n",
        (4, 0, 2, 0): " Any text,\n  a | b.\n",
        (4, 0, 2, 1): " Kinds of the word.\n",
        (4, 0, 2, 2): " Labels.\n",
        (5, 0): " A kind.\n",
        (5, 0, 2, 0): " Any kind.\n",
    }
    for path, comment in comments.items():
        proto.source_code_info.location.add(path=path, leading_comments=comment)
    proto.source_code_info.location[-2].leading_detached_comments.append(" ---------------- enums\n")
    return proto


def test_a_page_shows_every_element_with_its_comment(tool):
    page = tool["page"](example())
    lines = page.splitlines()
    assert "* One rule, on two lines." in lines
    assert "stream of [Word](#word) → stream of [Word](#word)" in lines
    assert "`content`: What the word holds." in lines
    assert "| `text` | 1 | string | One of `content`. Any text, a \\| b. |" in lines
    assert "| `kind` | 2 | repeated [Kind](#kind) | Kinds of the word. |" in lines
    assert "| `labels` | 3 | map of string to int32 | Labels. |" in lines
    assert "| `KIND_UNSPECIFIED` | 0 | Any kind. |" in lines
    assert lines.index("## Enums") < lines.index("### Kind")


def test_an_element_without_a_comment_is_an_error(tool):
    proto = example()
    del proto.source_code_info.location[5]
    with pytest.raises(Exception, match=r"have no comment: Word\.text"):
        tool["page"](proto)


def test_the_reference_names_everything_in_the_contract():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    proto = FileDescriptorProto()
    tts_pb2.DESCRIPTOR.CopyToProto(proto)
    for method in proto.service[0].method:
        assert f"### {method.name}\n" in page
    for message in proto.message_type:
        section = page.partition(f"### {message.name}\n")[2].partition("\n#")[0]
        for field in message.field:
            assert f"| `{field.name}` | {field.number} |" in section, f"{message.name}.{field.name}: run make protos"
    for enum in proto.enum_type:
        section = page.partition(f"### {enum.name}\n")[2].partition("\n#")[0]
        for value in enum.value:
            assert f"| `{value.name}` | {value.number} |" in section, f"{value.name}: run make protos"


def test_comments_of_the_contract_are_for_readers_alone():
    """Generators copy the comments of a proto into the documentation of the stubs of all languages."""
    sources = [*(ROOT / "protos").rglob("*.proto"), *(ROOT / "clients/google").rglob("*.proto")]
    sources += (ROOT / "voxcpm_grpc/v1").glob("*_pb2*.py*")
    assert len(sources) >= 10
    for_tools = re.compile(r"buf:(lint|breaking)|protolint:|api-linter:|@exclude|clang-format|no(qa|lint)\b|TODO|FIXME")
    lines = {f"{path.name}: {line}" for path in sources for line in path.read_text("utf-8").splitlines()}
    assert [line for line in lines if for_tools.search(line)] == []
