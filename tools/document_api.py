"""Write docs/api.md and docs/admin-api.md from the comments of the protos.

    .venv-protos/bin/python tools/document_api.py            (part of `make protos`)
    .venv-protos/bin/python tools/document_api.py --check    (part of `make check`)

Needs grpcio-tools, which `make` installs into .venv-protos. It fails if an element of a proto has no comment. With
--check it writes nothing, and fails if a page is out of date.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
)

ROOT = Path(__file__).parent.parent
FOLDER = "voxcpm_grpc/v1"
PAGES = {"tts.proto": ("api.md", "API reference"), "admin.proto": ("admin-api.md", "Admin API reference")}
# Field numbers of descriptor.proto. The path of a comment consists of them and of indices.
SYNTAX, SERVICE, MESSAGE, ENUM = 12, 6, 4, 5
METHOD, FIELD, ONEOF, VALUE = 2, 2, 8, 2
SCALARS = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP")
}

CommentPath = tuple[int, ...]


class MissingComment(Exception):
    """An element of the proto has no comment."""


def compiled(name: str) -> FileDescriptorProto:
    """The proto of this name with its comments. Raises CalledProcessError if it does not compile."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        command = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            "-I",
            "protos",
            "--include_source_info",
            f"-o{out}",
            f"{FOLDER}/{name}",
        ]
        subprocess.run(command, cwd=ROOT, check=True)
        return FileDescriptorSet.FromString(out.read_bytes()).file[0]


def page(proto: FileDescriptorProto, title: str = "API reference") -> str:
    """The whole page. Raises MissingComment with the names of all elements without one."""
    writer = _Writer(proto)
    name = Path(proto.name).name
    source = f"Written by `tools/document_api.py` from the comments of [{name}](../protos/{FOLDER}/{name})."
    text = "\n".join((f"# {title}", "", source, "", *writer.lines()))
    if writer.missing:
        raise MissingComment(f"these elements of {name} have no comment: {', '.join(writer.missing)}")
    return text + "\n"


class _Writer:
    def __init__(self, proto: FileDescriptorProto) -> None:
        self.missing: list[str] = []
        self._proto = proto
        locations = {tuple(location.path): location for location in proto.source_code_info.location}
        self._comments = {path: location.leading_comments for path, location in locations.items()}
        self._headings = {
            path: heading
            for path, location in locations.items()
            if (heading := _heading(location.leading_detached_comments))
        }
        self._local = {message.name for message in proto.message_type} | {enum.name for enum in proto.enum_type}

    def lines(self) -> Iterator[str]:
        yield from self._text((SYNTAX,), "syntax")
        for number, service in enumerate(self._proto.service):
            yield f"## {service.name}"
            yield ""
            yield from self._text((SERVICE, number), service.name)
            for index, method in enumerate(service.method):
                yield from self._method((SERVICE, number, METHOD, index), method)
        for index, message in enumerate(self._proto.message_type):
            yield from self._message((MESSAGE, index), message)
        for index, enum in enumerate(self._proto.enum_type):
            yield from self._enum((ENUM, index), enum)

    def _method(self, path: CommentPath, method: MethodDescriptorProto) -> Iterator[str]:
        sends = "stream of " * method.client_streaming + self._link(method.input_type)
        returns = "stream of " * method.server_streaming + self._link(method.output_type)
        yield from (f"### {method.name}", "", f"{sends} → {returns}", "")
        yield from self._text(path, method.name)

    def _message(self, path: CommentPath, message: DescriptorProto) -> Iterator[str]:
        yield from self._section(path, message.name)
        yield from self._text(path, message.name)
        if not message.field:
            yield from ("It has no fields.", "")
            return
        for index, oneof in enumerate(message.oneof_decl):
            if comment := markdown(self._comments.get((*path, ONEOF, index), "")):
                yield from (f"`{oneof.name}`: {' '.join(comment)}", "")
        yield from ("| field | no. | type | description |", "|---|---:|---|---|")
        for index, field in enumerate(message.field):
            description = self._cell((*path, FIELD, index), f"{message.name}.{field.name}")
            if field.HasField("oneof_index") and not field.proto3_optional:
                description = f"One of `{message.oneof_decl[field.oneof_index].name}`. {description}"
            yield f"| `{field.name}` | {field.number} | {self._type(field, message)} | {description} |"
        yield ""

    def _enum(self, path: CommentPath, enum: EnumDescriptorProto) -> Iterator[str]:
        yield from self._section(path, enum.name)
        yield from self._text(path, enum.name)
        yield from ("| value | no. | description |", "|---|---:|---|")
        for index, value in enumerate(enum.value):
            yield f"| `{value.name}` | {value.number} | {self._cell((*path, VALUE, index), value.name)} |"
        yield ""

    def _section(self, path: CommentPath, name: str) -> Iterator[str]:
        if heading := self._headings.get(path):
            yield from (f"## {heading}", "")
        yield from (f"### {name}", "")

    def _text(self, path: CommentPath, name: str) -> Iterator[str]:
        paragraphs = markdown(self._comments.get(path, ""))
        if not paragraphs:
            self.missing.append(name)
        for paragraph in paragraphs:
            yield paragraph
            yield ""

    def _cell(self, path: CommentPath, name: str) -> str:
        return " ".join(self._text(path, name)).strip().replace("  ", " ").replace("|", "\\|")

    def _type(self, field: FieldDescriptorProto, message: DescriptorProto) -> str:
        entry = next((nested for nested in message.nested_type if field.type_name.endswith(f".{nested.name}")), None)
        if entry is not None and entry.options.map_entry:
            key, value = (self._type(part, entry) for part in entry.field)
            return f"map of {key} to {value}"
        kind = SCALARS.get(field.type) or self._link(field.type_name)
        if field.label == FieldDescriptorProto.LABEL_REPEATED:
            return f"repeated {kind}"
        return f"optional {kind}" if field.proto3_optional else kind

    def _link(self, type_name: str) -> str:
        """A message or enum: a link if it is on the page, else its name without the package."""
        name = type_name.rpartition(".")[2]
        return f"[{name}](#{name.lower()})" if name in self._local else name


def markdown(comment: str) -> Sequence[str]:
    """The paragraphs of a comment, each on one line; a list is one paragraph."""
    paragraphs: list[str] = []
    joined = False  # whether the next line continues the paragraph
    for line in comment.splitlines():
        text = line.strip()
        if not text:
            joined = False
        elif text.startswith("* "):
            if paragraphs and paragraphs[-1].startswith("* "):
                paragraphs[-1] += f"\n{text}"
            else:
                paragraphs.append(text)
            joined = True
        elif joined:
            paragraphs[-1] += f" {text}"
        else:
            paragraphs.append(text)
            joined = True
    return paragraphs


def _heading(detached: Sequence[str]) -> str:
    """The title of a section, which the proto writes as a line of dashes and a word."""
    for comment in detached:
        if found := re.fullmatch(r"\s*-{8,} (.+?)\s*", comment):
            return found[1][0].upper() + found[1][1:]
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the reference pages from the comments of the protos.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    arguments = parser.parse_args()
    for name, (file, title) in PAGES.items():
        path = ROOT / "docs" / file
        try:
            text = page(compiled(name), title)
        except MissingComment as error:
            sys.exit(str(error))
        if not arguments.check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"docs/{file} is out of date: run make protos")


if __name__ == "__main__":
    main()
