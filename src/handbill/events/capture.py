"""Product events over HTTP, in every dialect: whose, how many, durable, and answered in the client's own words.

A request names its tenant by a key, its body is unpacked and read, its events are made, and what may come in goes to
the journal with the counts of what may not. Whatever its clients would send again for ever is answered as taken. A body
that is large when unpacked is unpacked and read in a thread, so that nothing on the event loop waits for it.

What a request without a valid key can cost at most: where the key is in a header or the query, one look-up, and nothing
of the body is unpacked. Where it can only be in the body, the body is unpacked up to its limit of bytes and members,
searched once for what has the shape of a key, and the first KEYS_TRIED different ones are looked up. Nothing is
repaired or parsed as JSON before one of them is valid. Each step takes linear time, in a thread if the body is large.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

import msgspec

from handbill.events import capture_docs
from handbill.events.capture_limits import Allowance, Limits
from handbill.events.dialects import posthog_config, replies
from handbill.events.dialects.canon import Dialect, Moment, Note, Parsed, Terms
from handbill.events.dialects.router import BODY_BYTES, READERS, ROUTES, Reader
from handbill.events.dialects.unpack import Steps, finish
from handbill.events.edge import Edge
from handbill.events.history_intake import HistoryIntake
from handbill.events.model import HORIZON_DAYS, CapturedEvent, Dropped, Event, Reason, is_history
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, Forbidden, HandbillError, Unauthorized
from handbill.kit.fast import FastHandler, FastReply, FastRequest, FastRoute
from handbill.kit.ids import Ids
from handbill.tenants.model import SECRET_KEY_PREFIX
from handbill.tenants.service import Directory, Profile, find_keys

T = TypeVar("T")

_HORIZON_MS = HORIZON_DAYS * 86_400_000
KEYS_TRIED = 4
"""Different keys in one body that are looked up before it is parsed; an honest client sends one."""
_PIECE_EVENTS = 500
_PIECE_BYTES = 1 << 20


class CapturePolicy(msgspec.Struct, frozen=True):
    """Bodies of more than `inline_bytes`, packed or unpacked, are read in a thread; at most `waiting` at a time."""

    limits: Limits = Limits()
    inline_bytes: int = 64 * 1024
    threads: int = 2
    waiting: int = 16


class InThread(Protocol):
    """Runs a function in one of the threads."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]: ...


Pieces = Callable[[Sequence[CapturedEvent]], Iterable[Sequence[CapturedEvent]]]


def _whole(events: Sequence[CapturedEvent]) -> Iterable[Sequence[CapturedEvent]]:
    """The events of a small request: they fit one append."""
    return (events,)


class Capture:
    """A part of the house: started before the first request, stopped after the last."""

    def __init__(
        self,
        edge: Edge,
        directory: Directory,
        allowance: Allowance,
        history: HistoryIntake,
        clock: Clock,
        policy: CapturePolicy | None = None,
    ) -> None:
        self._edge = edge
        self._directory = directory
        self._allowance = allowance
        self._history = history
        self._clock = clock
        self._policy = policy or CapturePolicy()
        self._ids = Ids(clock)
        self._threads: ThreadPoolExecutor | None = None
        self._aside = 0

    async def start(self) -> None:
        self._threads = ThreadPoolExecutor(self._policy.threads, thread_name_prefix="capture")

    async def stop(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=True)

    def fast_routes(self) -> list[FastRoute]:
        handlers = {dialect: self._handler(dialect) for dialect in Dialect}
        events = [
            FastRoute(
                method,
                path,
                handlers[dialect],
                cors=True,
                body_limit=BODY_BYTES[dialect],
                doc=capture_docs.DOCS.get((method, path)),
                open_query=dialect is not Dialect.OWN,
            )
            for (method, path), dialect in ROUTES.items()
        ]
        return [*events, *posthog_config.routes()]

    def _handler(self, dialect: Dialect) -> FastHandler:
        async def handle(request: FastRequest) -> FastReply:
            try:
                return await self.take(dialect, request)
            except HandbillError as error:
                if dialect is Dialect.OWN or (error.status >= 500 and not isinstance(error, Busy)):
                    raise
                return replies.refused(dialect, error)

        handle.__doc__ = capture_docs.ALIASES[dialect]
        return handle

    async def take(self, dialect: Dialect, request: FastRequest) -> FastReply:
        """One request, whole. Raises what nothing of it could be kept for."""
        moment = Moment(self._clock.now_ms(), self._new_id)
        reader = READERS[dialect]
        key = reader.key_of(request)
        profile = None if key is None else await self._profile(key)
        unpacking = reader.body_of(request, self._policy.inline_bytes)
        body = _unpacked_inline(unpacking)
        if body is None:
            profile, parsed = await self._read_large(reader, request, moment, unpacking, profile)
            return await self._keep(request, profile, parsed, moment.received, pieces=_pieces)
        if profile is None:
            await self._check_keys(find_keys(body))
        opened = reader.open(request, body, moment)
        profile = profile or await self._profile(opened.api_key)
        return await self._keep(request, profile, opened.capture(_terms(profile)), moment.received)

    async def _read_large(
        self, reader: Reader, request: FastRequest, moment: Moment, unpacking: Steps[bytes], profile: Profile | None
    ) -> tuple[Profile, Parsed]:
        """The same steps in threads, between which the keys are looked up. Raises Busy when enough others wait."""
        with self._thread_place() as in_thread:
            body = await in_thread(lambda: finish(unpacking))
            if profile is None:
                await self._check_keys(await in_thread(lambda: list(itertools.islice(find_keys(body), KEYS_TRIED))))
            opened = await in_thread(lambda: reader.open(request, body, moment))
            owner = profile or await self._profile(opened.api_key)
            return owner, await in_thread(lambda: opened.capture(_terms(owner)))

    async def _keep(
        self, request: FastRequest, profile: Profile, parsed: Parsed, received: int, pieces: Pieces = _whole
    ) -> FastReply:
        tenant = profile.tenant.tenant_id
        if _asks_not_to_be_tracked(request) and profile.settings.privacy.respect_dnt:
            untracked = Counter({Reason.DO_NOT_TRACK: len(parsed.events)})
            await self._edge.accept(_drops(tenant, request, received, untracked + _told(parsed)))
            return replies.untracked(parsed)
        events, late = _in_time(parsed, received)
        reasons = _told(parsed)
        if late:
            reasons[Reason.TOO_OLD] += len(late)
        limits = self._policy.limits.of(profile.settings.limits)
        if events and not await self._allowance.admits(tenant, len(events), limits):
            reasons[Reason.QUOTA] += len(events)
            await self._edge.accept(_drops(tenant, request, received, reasons))
            return replies.over_quota(parsed)
        if events and is_history(events[0]):
            events, past = await self._take_history(tenant, parsed, events)
            reasons.update(note.reason for note in past)
            late += [note for note in past if note.reason is not Reason.DUPLICATE]  # as live copies, answered as taken
        for piece in pieces(events):
            await self._edge.accept(piece)
        if reasons:
            await self._edge.accept(_drops(tenant, request, received, reasons))
        return replies.taken(parsed, late)

    async def _take_history(
        self, tenant_id: int, parsed: Parsed, events: Sequence[CapturedEvent]
    ) -> tuple[Sequence[CapturedEvent], list[Note]]:
        """Those that are new and may be kept, and notes about the others. Raises Busy while ClickHouse is away."""
        refused = await self._history.refusals(tenant_id, events)
        notes = [Note(parsed.places[place], reason) for place, reason in sorted(refused.items())]
        return [event for place, event in enumerate(events) if place not in refused], notes

    async def _check_keys(self, keys: Iterable[str]) -> None:
        """Raises Unauthorized unless one of the first keys that were found in the body is valid.

        Which one counts is decided by its place in the body, once that is read: here it is only made sure that somebody
        with a key sent it.
        """
        refused: HandbillError | None = None
        for key in itertools.islice(keys, KEYS_TRIED):
            try:
                await self._profile(key)
            except Unauthorized as error:
                refused = refused or error
            except Forbidden:  # a suspended tenant's; whether it is this body's key is not clear yet
                return
            else:
                return
        raise refused or _no_key()

    async def _profile(self, key: str | None) -> Profile:
        """The tenant behind the key, from memory."""
        if not key:
            raise _no_key()
        if key.startswith(SECRET_KEY_PREFIX):
            raise Unauthorized("Nothing was kept: this is a secret key. Replace it, and give clients a write key.")
        principal = await self._directory.write_key(key)
        if principal is None:
            raise Unauthorized("Nothing was kept: the write key is not known, or not valid any more.")
        return await self._directory.profile(principal.tenant_id)

    @contextmanager
    def _thread_place(self) -> Iterator[InThread]:
        """One of the `waiting` places, for as long as a request has work for the threads. Raises Busy."""
        threads = self._threads
        if threads is None or self._aside >= self._policy.waiting:
            raise Busy(
                "Too many large requests at once; nothing of this one was kept, send it again.",
                code="CAPTURE_BUSY",
                retry_after=1.0,
            )
        loop = asyncio.get_running_loop()

        async def in_thread(work: Callable[[], T]) -> T:
            return await loop.run_in_executor(threads, work)

        self._aside += 1
        try:
            yield in_thread
        finally:
            self._aside -= 1

    def _new_id(self) -> str:
        return str(self._ids.new())


def _unpacked_inline(unpacking: Steps[bytes]) -> bytes | None:
    """The plain body, or None where it is too large for the event loop: the rest is unpacked in a thread."""
    try:
        next(unpacking)
    except StopIteration as done:
        body: bytes = done.value
        return body
    return None


def _no_key() -> Unauthorized:
    return Unauthorized("Nothing was kept: the request has no write key (hbw_...) of a tenant.")


def _terms(profile: Profile) -> Terms:
    return Terms(profile.tenant.tenant_id, profile.settings.privacy.truncate_ip)


def _asks_not_to_be_tracked(request: FastRequest) -> bool:
    return request.headers.get(b"dnt") == b"1" or request.headers.get(b"sec-gpc") == b"1"


def _in_time(parsed: Parsed, received: int) -> tuple[Sequence[CapturedEvent], list[Note]]:
    """Those that can still be told from copies, and notes about the others."""
    oldest = received - _HORIZON_MS
    if not parsed.events or min([event.at for event in parsed.events]) >= oldest:
        return parsed.events, []
    late = [
        Note(place, Reason.TOO_OLD)
        for event, place in zip(parsed.events, parsed.places, strict=True)
        if event.at < oldest and not is_history(event)
    ]
    gone = {note.index for note in late}
    return [event for event, place in zip(parsed.events, parsed.places, strict=True) if place not in gone], late


def _told(parsed: Parsed) -> Counter[Reason]:
    """What the parser had to leave out, counted by reason: events, and parts of events."""
    found: Counter[Reason] = Counter()
    for notes in (parsed.dropped, parsed.warned):
        for note in notes:
            found[note.reason] += 1
    return found


def _drops(tenant: int, request: FastRequest, received: int, reasons: Counter[Reason]) -> list[Event]:
    return [
        Dropped(tenant, request.request_id, received, received, CapturedEvent.kind, str(reason), n)
        for reason, n in sorted(reasons.items())
        if n > 0
    ]


def _pieces(events: Sequence[CapturedEvent]) -> Iterator[Sequence[CapturedEvent]]:
    """As many at a time as one append of the journal takes well; between two of them others have their turn."""
    if not events:
        return
    start, size = 0, 0
    for place, event in enumerate(events):
        weight = len(event.properties) + len(event.set or b"") + len(event.set_once or b"")
        if place > start and (place - start >= _PIECE_EVENTS or size + weight > _PIECE_BYTES):
            yield events[start:place]
            start, size = place, 0
        size += weight
    yield events[start:]
