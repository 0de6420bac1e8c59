"""A small hub in this process, with the API that huggingface_hub uses."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_of_a_member"
CHECKPOINT = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
    "special_tokens_map.json": b"{}",
    "model.safetensors": b"weights",
    "audiovae.pth": b"codec",
    "README.md": b"#",
    "modeling_voxcpm.py": b"raise SystemExit('never runs')",
    "sub/configuration.py": b"raise SystemExit('never runs')",
}


class Hub:
    """Serves repositories by id, revision and file name, with the API that huggingface_hub uses."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.requests: list[tuple[str, str, str | None]] = []  # method, path, Range
        self.stops: dict[str, int] = {}  # every transfer of a file breaks at this byte
        self.cut: dict[str, int] = {}  # the first transfer of a file breaks after this many bytes
        self.holds = False  # a transfer that breaks stays open until the hub closes
        self.closed = threading.Event()
        self.missing: set[str] = set()  # listed files that cannot be fetched
        self.truncated: set[str] = set()  # files that are shorter than listed
        self.gated: set[str] = set()
        self.private: set[str] = set()  # repositories that only TOKEN may read
        self.forbidden: set[str] = set()  # repositories whose files are refused
        self.tells_configs = False  # what it knows of config.json, as huggingface.co does
        self.claimed: dict[str, int] = {}  # sizes of files that the repository lists wrongly
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.closed.set()
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(request.path).path)
        self.requests.append((request.command, path, request.headers.get("Range")))
        api = path.startswith("/api/models/")
        owner, name, *rest = path.removeprefix("/api/models/" if api else "/").split("/")
        repository = self.repositories.get(f"{owner}/{name}")
        if f"{owner}/{name}" in self.private:
            token = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if token != TOKEN:
                return self.send(request, 401)  # as the hub answers without a token, and with one that is not valid
        if repository is None:
            return self.send(request, 404, error="RepoNotFound")
        verb, revision, file = (rest[0], rest[1], "/".join(rest[2:])) if rest else ("revision", "main", "")
        commits = {commit(files): files for files in repository.values()}
        files = repository.get(revision) or commits.get(revision)
        if files is None:
            return self.send(request, 404, error="RevisionNotFound")
        if api and verb == "revision":
            siblings = [self.listed(name, body) for name, body in files.items()]
            info = {"id": f"{owner}/{name}", "sha": commit(files), "siblings": siblings}
            if self.tells_configs:
                told = json.loads(files["config.json"])
                info["config"] = {key: told[key] for key in ("architectures", "model_type") if key in told}
            return self.send(request, 200, info)
        if api:
            entries = [{"type": "file", "path": f, "size": len(b), "oid": digest(b)} for f, b in files.items()]
            return self.send(request, 200, entries)
        if f"{owner}/{name}" in self.gated:
            return self.send(request, 403, error="GatedRepo")
        if f"{owner}/{name}" in self.forbidden:
            return self.send(request, 403)
        if file not in files or file in self.missing:
            return self.send(request, 404, error="EntryNotFound")
        cut = self.cut.pop(file, self.stops.get(file)) if request.command == "GET" else None
        short = request.command == "GET" and file in self.truncated
        return self.send(
            request, 200, files[file][: -1 if short else None], commit(files), cut=cut, etag=blob(file, files[file])
        )

    def listed(self, name: str, body: bytes) -> dict[str, object]:
        size = self.claimed.get(name, len(body))
        entry: dict[str, object] = {"rfilename": name, "size": size, "blobId": git_id(body)}
        if is_large(name):
            entry["lfs"] = {"size": size, "sha256": hashlib.sha256(body).hexdigest(), "pointerSize": 130}
        return entry

    def send(
        self,
        request,
        status: int,
        body: object = b"",
        sha: str = "",
        error: str = "",
        cut: int | None = None,
        etag: str = "",
    ) -> None:
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"X-Error-Code": error} if error else {}
        if sha:
            headers = {"X-Repo-Commit": sha, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        if sha and (wanted := request.headers.get("Range")):
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            status, body = 206, body[start:]
            cut = None if cut is None else max(0, cut - start)
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body[:cut])
            if cut is not None and self.holds:
                self.closed.wait()
        request.close_connection = cut is not None


def digest(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


def commit(files: dict[str, bytes]) -> str:
    return digest("".join(name + digest(body) for name, body in sorted(files.items())).encode())


def is_large(name: str) -> bool:
    """True for a file that the repository keeps in Git LFS, by its SHA-256."""
    return name.endswith((".safetensors", ".pth", ".bin"))


def git_id(body: bytes) -> str:
    return hashlib.sha1(f"blob {len(body)}\0".encode() + body).hexdigest()


def blob(name: str, body: bytes) -> str:
    return hashlib.sha256(body).hexdigest() if is_large(name) else git_id(body)
