"""Multipart uploads of large bodies: parts in parallel, then one conditional completion.

An upload is aborted on any failure. Only the completion creates the object, so every request
before it may be repeated. If the answer to the first request is lost, nobody has the upload's id:
the sweep finds the upload by `uploads`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from ....control.errors import HeadgateError, Lost, Unavailable
from ..conditional_put import PutAnswer
from ..port import PendingUpload, forget_pages
from ..request_meter import RequestMeter
from ..retries import Retrier
from .clients import ColdClient
from .errors import fault_of, put_answer
from .settings import MultipartSettings


class MultipartUploads:
    def __init__(
        self,
        client: ColdClient,
        meter: RequestMeter,
        retrier: Retrier,
        settings: MultipartSettings,
    ) -> None:
        self._client = client
        self._meter = meter
        self._retrier = retrier
        self._settings = settings

    def create(self, name: str, body: memoryview, metadata: dict[str, str]) -> PutAnswer:
        """Try once to create the object, as `PutSteps.create` says."""
        with self._meter.sending("puts"):
            begun = self._client.ask("create_multipart_upload", name, Metadata=metadata)
        upload = PendingUpload(name, begun["UploadId"])
        answer = PutAnswer.SILENT
        try:
            answer = self._complete(upload, self._send_parts(upload, body))
        except Lost as gone:
            raise Unavailable(f"{gone}: its upload was aborted meanwhile") from gone
        finally:
            if answer is not PutAnswer.CREATED:
                # the sweep finds the upload; the error that led here matters more
                with suppress(HeadgateError):
                    self.abort(upload)
        return answer

    def abort(self, upload: PendingUpload) -> None:
        def ask() -> None:
            with self._meter.sending("deletes"):
                self._client.ask("abort_multipart_upload", upload.name, UploadId=upload.upload_id)

        with suppress(Lost):
            self._retrier.run(upload.name, ask)

    def _send_parts(self, upload: PendingUpload, body: memoryview) -> list[dict[str, Any]]:
        size = self._settings.part_bytes_of(len(body))
        pieces = [body[start : start + size] for start in range(0, len(body), size)]

        def send(number: int) -> dict[str, Any]:
            part = partial(self._send_part, upload, number, pieces[number - 1])
            return self._retrier.run(f"{upload.name}#{number}", part)

        pool = ThreadPoolExecutor(self._settings.threads, "headgate-part")
        try:
            return list(pool.map(send, range(1, len(pieces) + 1)))
        finally:
            pool.shutdown(cancel_futures=True)

    def _send_part(self, upload: PendingUpload, number: int, piece: memoryview) -> dict[str, Any]:
        with self._meter.sending("puts", len(piece)):
            sent = self._client.ask(
                "upload_part", upload.name, UploadId=upload.upload_id, PartNumber=number, Body=piece
            )
        forget_pages(piece)
        return {"PartNumber": number, "ETag": sent["ETag"]}

    def _complete(self, upload: PendingUpload, parts: list[dict[str, Any]]) -> PutAnswer:
        try:
            with self._meter.sending("puts"):
                done = self._client.ask(
                    "complete_multipart_upload",
                    upload.name,
                    UploadId=upload.upload_id,
                    MultipartUpload={"Parts": parts},
                    IfNoneMatch="*",
                )
        except HeadgateError as error:
            answer = None if error.__cause__ is None else put_answer(fault_of(error.__cause__))
            if answer is None:
                raise
            return answer
        return PutAnswer.CREATED if "ETag" in done else PutAnswer.SILENT
