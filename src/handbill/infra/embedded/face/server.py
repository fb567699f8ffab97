"""The HTTP server: checks who asks, reads the request, queues it, and writes the answer as ClickHouse would."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import os
import uuid

import msgspec
from aiohttp import web

from handbill.infra.embedded.face import coding, statements
from handbill.infra.embedded.face.engine import Engine
from handbill.infra.embedded.face.faults import SYNTAX, TOO_LARGE, UNSUPPORTED, WRONG_PASSWORD, Fault, refuse
from handbill.infra.embedded.face.lanes import Lanes
from handbill.infra.embedded.face.running import Running
from handbill.infra.embedded.face.statements import Ask

_LINE_LIMIT = 1024 * 1024  # parameters travel in the URL


class Face:
    """One engine, one user, one port on loopback."""

    def __init__(self, engine: Engine, *, user: str, password: str, body_limit: int, lanes: Lanes) -> None:
        self._engine = engine
        self._user = user.encode()
        self._password = password.encode()
        self._body_limit = body_limit
        self._lanes = lanes
        self._leaving: set[asyncio.Task[None]] = set()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=self._body_limit)
        app.router.add_get("/ping", self._ping)
        app.router.add_get("/replicas_status", self._ping)
        app.router.add_route("*", "/", self._answer)
        return app

    async def serve(self, port: int, stop: asyncio.Event) -> None:
        """Serve until `stop` is set; running queries get a few seconds to end."""
        runner = web.AppRunner(
            self.app(),
            access_log=None,
            handler_cancellation=True,
            auto_decompress=False,
            max_line_size=_LINE_LIMIT,
            max_field_size=_LINE_LIMIT,
            keepalive_timeout=75.0,
            shutdown_timeout=2.0,
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port, backlog=512).start()
            await stop.wait()
        finally:
            await runner.cleanup()

    async def _ping(self, request: web.Request) -> web.Response:
        return web.Response(text="Ok.\n", headers=self._headers(""))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        query_id = request.query.get("query_id") or str(uuid.uuid4())
        try:
            if request.method not in {"GET", "POST", "HEAD"}:
                raise refuse(UNSUPPORTED, "NOT_IMPLEMENTED", f"Method {request.method} is not supported")
            self._check_password(request)
            if request.method != "POST" and "query" not in request.query:
                return web.Response(text="Ok.\n", headers=self._headers(query_id))
            ask = await self._read(request)
            return await self._perform(request, ask, query_id)
        except Fault as fault:
            return self._refused(fault, query_id)

    def _refused(self, fault: Fault, query_id: str) -> web.Response:
        headers = {**self._headers(query_id), "X-ClickHouse-Exception-Code": str(fault.code)}
        text = fault.text if "(version " in fault.text else f"{fault.text} (version {self._engine.version})"
        return web.Response(status=fault.status, text=text + "\n", headers=headers)

    def _headers(self, query_id: str) -> dict[str, str]:
        # The display name carries our pid: whoever started us can tell us from a stranger on the same port.
        headers = {
            "X-ClickHouse-Server-Display-Name": f"handbill-{os.getpid()}",
            "X-ClickHouse-Timezone": self._engine.timezone,
        }
        return {**headers, "X-ClickHouse-Query-Id": query_id} if query_id else headers

    def _check_password(self, request: web.Request) -> None:
        user, password = _credentials(request)
        right_user = hmac.compare_digest(user.encode(), self._user)
        right_password = hmac.compare_digest(password.encode(), self._password)
        if not (right_user and right_password):
            reason = f"{user}: Authentication failed: password is incorrect, or there is no user with such name"
            raise refuse(WRONG_PASSWORD, "AUTHENTICATION_FAILED", reason)

    async def _read(self, request: web.Request) -> Ask:
        pairs = [(key, value) for key, value in request.query.items()]
        if request.content_type == "multipart/form-data":
            pairs += await _form(request)
            body = b""
        else:
            body = await self._body(request)
        default = request.headers.get("X-ClickHouse-Format", "")
        database = request.headers.get("X-ClickHouse-Database")
        if database and "database" not in request.query:
            pairs.append(("database", database))
        ask = statements.read(pairs, body, headers_format=default, read_only=request.method != "POST")
        if not ask.statement.sql.strip():
            raise refuse(SYNTAX, "SYNTAX_ERROR", "Empty query")
        return ask

    async def _body(self, request: web.Request) -> bytes:
        if request.content_length is not None and request.content_length > self._body_limit:
            raise coding.too_large(self._body_limit)
        whole = bytearray()
        async for chunk in request.content.iter_any():
            whole += chunk
            if len(whole) > self._body_limit:
                raise coding.too_large(self._body_limit)
        encoding = request.headers.get("Content-Encoding", "")
        body = bytes(whole)
        if not encoding:
            return body
        return await asyncio.to_thread(coding.decode, body, encoding, self._body_limit * 4)

    async def _perform(self, request: web.Request, ask: Ask, query_id: str) -> web.StreamResponse:
        encoding = coding.choose(request.headers.get("Accept-Encoding", ""), allowed=ask.compressed)
        tag = uuid.uuid4().hex[:16]
        leave = await self._lanes.enter(writes=ask.statement.writes)
        running = Running(self._engine, ask, tag, encoding)
        running.start(self._lanes.threads)
        running.done.add_done_callback(leave)  # the place is free when the thread is, not when the client is
        headers = {
            **self._headers(query_id),
            "X-ClickHouse-Format": ask.statement.format,
            "X-ClickHouse-Exception-Tag": tag,
            "Content-Type": "application/octet-stream",
        }
        try:
            return await _reply(request, running, headers, encoding)
        finally:
            if running.done.done():
                running.done.exception()
            else:
                # A task of its own: ours is being cancelled, and ending a query takes a moment.
                task = asyncio.create_task(running.abandon(self._lanes.killers))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)


async def _reply(request: web.Request, running: Running, headers: dict[str, str], encoding: str) -> web.StreamResponse:
    """A short result goes out whole, with its length and summary; a longer one in pieces as they come."""
    piece = await running.piece()
    if piece is None:
        body = running.rest()
        if body and encoding:
            headers["Content-Encoding"] = encoding
        headers["X-ClickHouse-Summary"] = _summary(running)
        return web.Response(body=body, headers=headers)
    if encoding:
        headers["Content-Encoding"] = encoding
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    while piece is not None:
        await response.write(piece)
        piece = await running.piece()
    await response.write_eof(running.rest())
    return response


def _summary(running: Running) -> str:
    tally: dict[str, int] = msgspec.to_builtins(running.tally)
    return msgspec.json.encode({name: str(value) for name, value in tally.items()}).decode()


def _credentials(request: web.Request) -> tuple[str, str]:
    """ClickHouse's own headers, basic authentication, or the URL, in that order."""
    headers = request.headers
    if "X-ClickHouse-User" in headers or "X-ClickHouse-Key" in headers:
        return headers.get("X-ClickHouse-User", ""), headers.get("X-ClickHouse-Key", "")
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            user, _, password = base64.b64decode(token, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return "", ""
        return user, password
    return request.query.get("user", ""), request.query.get("password", "")


async def _form(request: web.Request) -> list[tuple[str, str]]:
    """Clients move long parameters into a form. Files in it would be external tables, which chDB does not take."""
    try:
        fields = await request.post()
    except web.HTTPRequestEntityTooLarge as error:
        raise refuse(TOO_LARGE, "TOO_MANY_BYTES", "The form is too large") from error
    pairs: list[tuple[str, str]] = []
    for name, value in fields.items():
        if not isinstance(value, str):
            raise refuse(UNSUPPORTED, "NOT_IMPLEMENTED", "External tables are not supported by the embedded ClickHouse")
        pairs.append((name, value))
    return pairs
