"""A hub on loopback that answers as huggingface.co does to what `huggingface_hub` and `datasets` ask: models and data
sets to read, and the calls by which a folder is uploaded, with large files over LFS."""

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_loopbacktoken"
"""The only token that the hub takes for what needs one."""


@dataclass
class Repo:
    files: dict[str, bytes]
    commit: str = COMMIT
    gated: bool = False
    private: bool = False
    card: dict[str, str] = field(default_factory=dict)
    earlier: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Files of earlier commits."""

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        if revision in ("main", self.commit):
            return self.commit, self.files
        return (revision, self.earlier[revision]) if revision in self.earlier else None


class Hub:
    """Repositories by `models/ORG/NAME` and `datasets/ORG/NAME`."""

    def __init__(self, repos: dict[str, Repo]):
        self.repos = repos
        self.asked: list[str] = []
        """Paths of requests, with their method unless it reads."""
        self.lfs: dict[str, bytes] = {}
        self.address = ""

    def named(self, kind: str, id: str) -> Repo | None:
        return self.repos.get(f"{kind}/{id}")


@contextmanager
def loopback_hub(**repos):
    """Serve `models={ID: FILES or Repo}` and `datasets={ID: FILES or Repo}`."""
    whole = {f"{kind}/{id}": held if isinstance(held, Repo) else Repo(held)
             for kind, ids in repos.items() for id, held in ids.items()}  # fmt: skip
    hub = Hub(whole)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    # Reading ----------------------------------------------------------------------------------------------------------

    def do_GET(self):
        path = unquote(urlsplit(self.path).path).strip("/")
        self.hub.asked.append(path)
        if path == "api/whoami-v2":
            known = self.known()
            return self.json({"name": "me", "type": "user", "orgs": []} if known else {}, 200 if known else 401)
        if path == "api/agent-harnesses":
            return self.json([], 404)
        if path.startswith("api/"):
            kind, org, name, *rest = path.removeprefix("api/").split("/")
        else:
            kind, org, name, *rest = path.split("/") if path.startswith("datasets/") else ("models", *path.split("/"))
        repo = self.hub.named(kind, f"{org}/{name}")
        if repo is None or (repo.private and not self.known()):
            return self.json({}, 404 if self.known() else 401, {"X-Error-Code": "RepoNotFound"})
        what = rest[0] if rest else "info"
        if repo.gated and not self.known() and what in ("resolve", "auth-check"):
            return self.json({}, 403, {"X-Error-Code": "GatedRepo"})
        if what == "auth-check":
            return self.json({})
        revision = rest[1] if len(rest) > 1 else "main"
        found = repo.at(revision)
        if found is None:
            return self.json({}, 404, {"X-Error-Code": "RevisionNotFound"})
        commit, files = found
        if what == "resolve":
            return self.file(files, "/".join(rest[2:]), commit)
        if what == "tree":
            return self.json(tree(files, "/".join(rest[2:]), commit))
        info = {"id": f"{org}/{name}", "sha": commit, "siblings": [{"rfilename": file} for file in files]}
        return self.json(info | {"private": repo.private, "gated": repo.gated, "tags": [], "cardData": repo.card})

    do_HEAD = do_GET

    def file(self, files, name, commit):
        if name not in files:
            return self.json({}, 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        etag = hashlib.sha1(files[name]).hexdigest()
        return self.answer(files[name], 200, {"ETag": f'"{etag}"', "X-Repo-Commit": commit})

    # Writing ----------------------------------------------------------------------------------------------------------

    def do_POST(self):
        path = unquote(urlsplit(self.path).path).strip("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.hub.asked.append(f"POST {path}")
        if path.startswith("api/") and "paths-info" in path:
            kind, org, name, _, revision = path.removeprefix("api/").split("/", 4)
            files = self.hub.repos[f"{kind}/{org}/{name}"].at(revision)[1]
            wanted = parse_qs(body.decode())["paths"] if b"paths=" in body else json.loads(body)["paths"]
            return self.json([entry for name in wanted for entry in paths_info(files, name)])
        if not self.known():
            return self.json({"error": "Invalid username or password."}, 401)
        if path == "api/repos/create":
            return self.create(json.loads(body))
        if path == "api/validate-yaml":
            yaml.safe_load(json.loads(body)["content"].split("---")[1])
            return self.json({"errors": [], "warnings": []})
        id, _, rest = path.removeprefix("api/models/").partition("/preupload/")
        if rest:
            asked = json.loads(body)["files"]
            large = {file["path"]: file["path"].endswith((".safetensors", ".png")) for file in asked}
            return self.json({"files": [{"path": path, "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False}
                                        for path, lfs in large.items()]})  # fmt: skip
        if path.endswith("info/lfs/objects/batch"):
            objects, place = json.loads(body)["objects"], f"{self.hub.address}/lfs/"
            found = [{**each, "actions": {"upload": {"href": place + each["oid"]}}} for each in objects]
            return self.json({"transfer": "basic", "objects": found})
        id, _, rest = path.removeprefix("api/models/").partition("/commit/")
        return self.commit(id, [json.loads(line) for line in body.decode().splitlines()])

    def create(self, asked):
        name = f"models/{asked.get('organization') or 'me'}/{asked['name']}"
        if name in self.hub.repos:
            return self.json({"error": "You already created this model repo"}, 409)
        self.hub.repos[name] = Repo({}, private=bool(asked.get("private") or asked.get("visibility") == "private"))
        return self.json({"url": f"{self.hub.address}/{name.removeprefix('models/')}"})

    def commit(self, id, lines):
        repo = self.hub.repos[f"models/{id}"]
        for line in lines:
            if line["key"] == "file":
                repo.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "lfsFile":
                repo.files[line["value"]["path"]] = self.hub.lfs[line["value"]["oid"]]
        url = f"{self.hub.address}/{id}/commit/{repo.commit}"
        return self.json({"success": True, "commitUrl": url, "commitOid": repo.commit, "hookOutput": ""})

    def do_PUT(self):
        oid = self.path.rpartition("/")[2]
        self.hub.asked.append("PUT lfs")
        self.hub.lfs[oid] = self.rfile.read(int(self.headers["Content-Length"]))
        assert hashlib.sha256(self.hub.lfs[oid]).hexdigest() == oid
        self.json({})

    # Answers ----------------------------------------------------------------------------------------------------------

    def known(self):
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def json(self, value, status=200, headers=()):
        self.answer(json.dumps(value).encode(), status, {"Content-Type": "application/json", **dict(headers)})

    def answer(self, content, status=200, headers=()):
        self.send_response(status)
        for name, value in {**dict(headers), "Content-Length": len(content)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


def tree(files, folder, commit):
    below = f"{folder}/" if folder else ""
    names = [name for name in files if name.startswith(below)]
    folders = {below + name.removeprefix(below).split("/")[0] for name in names if "/" in name.removeprefix(below)}
    last = {"id": commit, "title": "", "date": "2026-01-01T00:00:00.000Z"}
    within = [{"type": "directory", "path": path, "oid": "0" * 40, "lastCommit": last} for path in sorted(folders)]
    return [entry(files, name, last) for name in names if "/" not in name.removeprefix(below)] + within


def entry(files, name, last=None):
    found = {"type": "file", "path": name, "size": len(files[name]), "oid": hashlib.sha1(files[name]).hexdigest()}
    return found | ({"lastCommit": last} if last else {})


def paths_info(files, name):
    if name in files:
        return [entry(files, name)]
    below = any(file.startswith(f"{name}/") for file in files)
    return [{"type": "directory", "path": name, "oid": "0" * 40, "size": 0}] if below else []
