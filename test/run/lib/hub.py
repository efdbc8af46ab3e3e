#!/usr/bin/env python3
"""Serves files as a data hub does, with ranges, redirects and planted faults, for test_fetch.sh.

    hub.py FOLDER     serves FOLDER/FILE under any path that ends in FILE

It writes its port to FOLDER/port, and requests to FOLDER/requests. It reads faults from FOLDER/faults.json at each
request: {"FILE": {"cut": [bytes, ...], "size": N, "sha256": "...", "status": 404, "no_ranges": true}}. cut: how many
bytes of an answer are sent before the connection ends, one entry for each GET.
"""

import hashlib
import http.server
import json
import os
import re
import sys

FOLDER = sys.argv[1]
cuts = {}


class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, code, headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()

    def do_HEAD(self):
        self.serve()

    def do_GET(self):
        self.serve()

    def serve(self):
        name = os.path.basename(self.path)
        with open(f"{FOLDER}/requests", "a", encoding="utf-8") as log:
            print(self.command, self.path, self.headers.get("Range", ""), file=log)
        with open(f"{FOLDER}/faults.json", encoding="utf-8") as file:
            fault = json.load(file).get(name, {})
        path = f"{FOLDER}/{name}"
        if not os.path.exists(path) or "status" in fault:
            return self.answer(fault.get("status", 404), {"Content-Length": 0})
        body = open(path, "rb").read()
        if not self.path.startswith("/cdn/"):  # the hub itself only tells size and hash and redirects to /cdn/
            return self.answer(
                302,
                {
                    "Location": f"/cdn/{name}",
                    "Content-Length": 0,
                    "X-Linked-Size": fault.get("size", len(body)),
                    "X-Linked-Etag": '"' + fault.get("sha256", hashlib.sha256(body).hexdigest()) + '"',
                },
            )
        begin = re.match(r"bytes=(\d+)-", self.headers.get("Range", "")) if not fault.get("no_ranges") else None
        begin = int(begin[1]) if begin else 0
        self.answer(
            206 if begin else 200,
            {
                "Content-Length": len(body) - begin,
                "Accept-Ranges": "bytes",
                "ETag": '"etag"',
                **({"Content-Range": f"bytes {begin}-{len(body) - 1}/{len(body)}"} if begin else {}),
            },
        )
        if self.command == "HEAD":
            return None
        cut = cuts.setdefault(name, list(fault.get("cut", [])))
        if not cut:
            cuts.pop(name)
            return self.wfile.write(body[begin:])
        self.wfile.write(body[begin : begin + cut.pop(0)])
        self.close_connection = True
        return None


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
with open(f"{FOLDER}/port.new", "w", encoding="utf-8") as file:
    file.write(str(server.server_address[1]))
os.rename(f"{FOLDER}/port.new", f"{FOLDER}/port")
server.serve_forever()
