"""`shoal serve`: REST, WebSocket, metrics and the dashboard. It renders `service/`, as `cli/` does.
It needs the extra `shoal[serve]`.

```
server.py     uvicorn: addresses, signals, the link that is printed
app.py        the application: middleware, routes, lifespan
access.py     who may: tokens, browser sessions, Host, Origin, limits on log-ins
answers.py    errors, pages, previews, idempotency keys
schemas.py    the JSON of the API, for OpenAPI and for checks
api/          /api/v1, a file per subject
jobs.py       the paths of the subtitle workers: /jobs/...
live.py       WebSocket and server-sent events
metrics.py    /metrics, /healthz, /readyz
dashboard.py  the built files of `web/`
```
"""
