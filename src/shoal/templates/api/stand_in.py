"""A small API to try the scraper on: python stand_in.py [PORT]. Delete it when you have the real one."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

RIVERS = {
    "danube": {"length_km": 2850, "mouth": "Black Sea"},
    "elbe": {"length_km": 1094, "mouth": "North Sea"},
    "loire": {"length_km": 1006, "mouth": "Atlantic Ocean"},
    "lost-creek": {},
    "rhine": {"length_km": 1230, "mouth": "North Sea"},
    "rhone": {"length_km": 813, "mouth": "Mediterranean Sea"},
    "tagus": {"length_km": 1007, "mouth": "Atlantic Ocean"},
    "vistula": {"length_km": 1047, "mouth": "Baltic Sea"},
}


class Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        address = urlsplit(self.path)
        name = address.path.removeprefix("/rivers").strip("/")
        if not name and address.path.startswith("/rivers"):
            self.answer(200, self.page(parse_qs(address.query)))
        elif name in RIVERS:
            self.answer(200, RIVERS[name])
        else:
            self.answer(404, {"error": "not found"})

    def page(self, query):
        number, size = int(query.get("page", ["1"])[0]), int(query.get("per_page", ["50"])[0])
        names = sorted(RIVERS)[(number - 1) * size :]
        return {"rivers": names[:size], "more": len(names) > size}

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """No access log: the scraper logs its requests."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if sys.argv[1:] else 8002), Api)
    print(f"The API answers at http://127.0.0.1:{server.server_port}/rivers; stop it with Ctrl-C.", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()
