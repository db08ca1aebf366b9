"""The S3 door: an object store on any service that speaks S3.

It guarantees what the port says. It assumes a service that honours If-None-Match on PUT and on the
completion of a multipart upload; `headgate doctor` proves that.

If nothing fails, a get is one request, and so is a put without a multipart upload. Neither copies
bytes outside the client. One store object serves all threads of a process and keeps their
connections.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import obstore
from obstore.exceptions import BaseError

from ....control.clock import SYSTEM_CLOCK, Clock, Deadline
from ....control.errors import Closed, Retryable, Unavailable
from ..conditional_put import PutAnswer, Stored, put
from ..port import BlobStat, ByteRange, Bytes, PendingUpload, checked_name, exact
from ..request_meter import RequestCounts, RequestMeter
from ..retries import Retrier
from .clients import ColdClient, hot_client
from .errors import ADVICE, Fault, error_for, fault_of, put_answer, translated
from .multipart import MultipartUploads
from .settings import S3Settings

WRITE_ID = "headgate-write-id"
PAGE_NAMES_MAX = 1000
CHECK_TRY_S_MIN = 0.5
CHECK_PAUSES = 3  # the length of the pause between two tries
HOT_ERRORS = (BaseError, OSError, ValueError)


class S3BlobStore:
    def __init__(self, settings: S3Settings, clock: Clock = SYSTEM_CLOCK) -> None:
        self._settings = settings
        self._meter = RequestMeter()
        self._retrier = Retrier(settings.retries, clock)
        self._hot: Any = hot_client(settings)
        self._cold = ColdClient(settings)
        self._parts = MultipartUploads(self._cold, self._meter, self._retrier, settings.multipart)

    def __repr__(self) -> str:
        return f"S3BlobStore({self._settings.place})"

    @property
    def requests(self) -> RequestCounts:
        return self._meter.read()

    def check(self, deadline: Deadline, prefix: str = "") -> None:
        while True:
            try:
                return self._reach(deadline, prefix)
            except Retryable:
                if deadline.left_s < CHECK_TRY_S_MIN:
                    raise
                deadline.pause(CHECK_PAUSES)

    def put(self, name: str, body: Bytes, write_id: str) -> None:
        put(self, self._retrier, name, body, write_id)

    def create(self, name: str, body: memoryview, write_id: str) -> PutAnswer:
        if len(body) >= self._settings.multipart.threshold_bytes:
            return self._parts.create(name, body, {WRITE_ID: write_id})
        client = self._open()
        with self._meter.sending("puts", len(body)):
            try:
                obstore.put(
                    client,
                    name,
                    body,
                    mode="create",
                    attributes={WRITE_ID: write_id},
                    use_multipart=False,
                )
            except HOT_ERRORS as error:
                answer = put_answer(fault_of(error))
                if answer is None:
                    raise translated(error, self._settings.place, name) from error
                return answer
        return PutAnswer.CREATED

    def look(self, name: str) -> Stored | None:
        client = self._open()
        with self._meter.sending("heads"):
            try:
                answer = obstore.get(client, name, options={"head": True})
            except HOT_ERRORS as error:
                if fault_of(error).status == 404:
                    return None
                raise translated(error, self._settings.place, name) from error
        return Stored(answer.attributes.get(WRITE_ID, ""), answer.meta["size"])

    def get(self, name: str, span: ByteRange | None = None) -> memoryview:
        if span is not None and span.length == 0:
            return memoryview(b"")
        checked_name(name)
        return self._retrier.run(name, lambda: self._get(name, span))

    def size_bytes(self, name: str) -> int | None:
        checked_name(name)
        stored = self._retrier.run(name, lambda: self.look(name))
        return None if stored is None else stored.size_bytes

    def delete(self, names: Collection[str]) -> None:
        left = [checked_name(name) for name in names]
        for start in range(0, len(left), PAGE_NAMES_MAX):
            batch = left[start : start + PAGE_NAMES_MAX]
            self._retrier.run(batch[0], partial(self._delete, batch))

    def list(self, prefix: str) -> Iterator[BlobStat]:
        for page in self._pages("list_objects_v2", ("ContinuationToken",), Prefix=prefix):
            for entry in page.get("Contents", ()):
                yield BlobStat(entry["Key"], entry["Size"])

    def uploads(self, prefix: str) -> Iterator[PendingUpload]:
        for named in ({"Prefix": prefix}, {}):
            marks = "KeyMarker", "UploadIdMarker"
            for page in self._pages("list_multipart_uploads", marks, **named):
                if named and not page.get("Uploads") and not _is_amazon(page):
                    break  # MinIO, perhaps through a proxy, lists no uploads by prefix
                for entry in page.get("Uploads", ()):
                    if entry["Key"].startswith(prefix):
                        yield PendingUpload(entry["Key"], entry["UploadId"])
            else:
                return

    def abort(self, upload: PendingUpload) -> None:
        self._parts.abort(upload)

    def close(self) -> None:
        self._hot = None
        self._cold.close()

    def _open(self) -> Any:
        client = self._hot
        if client is None:
            raise Closed(f"the object store for {self._settings.place} was closed")
        return client

    def _reach(self, deadline: Deadline, prefix: str) -> None:
        self._open()
        client = hot_client(self._settings, max(CHECK_TRY_S_MIN, deadline.left_s))
        with self._meter.sending("lists"):
            try:
                next(iter(obstore.list(client, prefix or None, chunk_size=1)), None)
            except HOT_ERRORS as error:
                raise translated(error, self._settings.place) from error

    def _get(self, name: str, span: ByteRange | None) -> memoryview:
        client = self._open()
        size = 0
        with self._meter.answering("gets"):
            try:
                if span is None:
                    answer = obstore.get(client, name)
                    span = ByteRange(0, answer.meta["size"])
                    content = memoryview(answer.bytes())
                else:
                    content = memoryview(
                        obstore.get_range(client, name, start=span.start, length=span.length)
                    )
                size = len(content)
            except HOT_ERRORS as error:
                fault = fault_of(error)
                if fault.status == 416 and span is not None:
                    content = memoryview(b"")
                else:
                    raise translated(error, self._settings.place, name) from error
            finally:
                self._meter.add(gets=1, bytes_read=size)
        return exact(content, name, span)

    def _delete(self, batch: Sequence[str]) -> None:
        with self._meter.sending("deletes"):
            # not quiet: a store might have nothing to say then, and that is no answer
            objects = [{"Key": name} for name in batch]
            answer = self._cold.ask("delete_objects", Delete={"Objects": objects})
            for failed in answer.get("Errors", ()):
                if failed["Code"] == "NoSuchKey":
                    continue
                status = 400 if failed["Code"] in ADVICE else 500
                raise error_for(Fault(status, failed["Code"]), self._settings.place, failed["Key"])

    def _pages(
        self, request: str, marks: Sequence[str], **options: str
    ) -> Iterator[dict[str, Any]]:
        """Yield the pages of a listing, of which each names the place of the next one.

        Raises:
            Unavailable: a page names no next one, or is one that was there before.
        """
        place: dict[str, str] = {}
        seen = set[str]()
        while True:
            page = self._page(request, options | place)
            entries = page.get("Contents") or page.get("Uploads") or ()
            first = [f"{entry['Key']} {entry.get('UploadId', '')}" for entry in entries[:1]]
            place = {mark: page[f"Next{mark}"] for mark in marks if page.get("IsTruncated")}
            here = {*first, str(place)} if place else set(first)
            if here & seen:
                raise Unavailable(f"{self._settings.place}: pages of {request} come again")
            seen |= here
            yield page
            if not place:
                return

    def _page(self, request: str, options: dict[str, str]) -> dict[str, Any]:
        def page() -> dict[str, Any]:
            with self._meter.sending("lists"):
                return self._cold.ask(request, **options)

        return self._retrier.run(request, page)


def _is_amazon(page: Mapping[str, Any]) -> bool:
    headers = page.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return bool(headers.get("server") == "AmazonS3")
