"""The object-store suite on every store that Headgate offers."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

from headgate.control.errors import Unavailable
from headgate.infra.devstack import stack
from headgate.storage.stores.files import FileBlobStore
from headgate.storage.stores.memory import MemoryBlobStore, Objects
from headgate.storage.stores.port import BlobStore, PendingUpload
from headgate.storage.stores.s3.settings import MultipartSettings, S3Settings
from headgate.storage.stores.s3.store import S3BlobStore
from headgate.storage.stores.spread import SpreadBlobStore
from headgate.testing.blob_store_suite import BlobStoreSuite, swept
from headgate.testing.faulty_store import FaultPlan, FaultyBlobStore

MIB = 1 << 20
REGION = "us-east-1"
MULTIPART = MultipartSettings(threshold_bytes=8 * MIB, part_bytes=5 * MIB, threads=3)

numbers = count()


class TestMemory(BlobStoreSuite):
    @pytest.fixture
    def make(self) -> Callable[[], BlobStore]:
        objects: Objects = {}
        return lambda: MemoryBlobStore(objects)


class TestFaultless(BlobStoreSuite):
    """The suite on the fault wrapper with an empty plan, which must change nothing."""

    @pytest.fixture
    def make(self) -> Callable[[], BlobStore]:
        objects: Objects = {}
        return lambda: FaultyBlobStore(MemoryBlobStore(objects), FaultPlan())


class TestFiles(BlobStoreSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[], BlobStore]:
        return lambda: FileBlobStore(tmp_path / "root")

    def test_empty_directories_vanish(self, store: BlobStore, tmp_path: Path) -> None:
        """Deleting the last object of a folder removes the folder."""
        store.put("a/b/c", b"1", "w")
        store.delete(["a/b/c"])
        assert list((tmp_path / "root").iterdir()) == []

    def test_an_object_opens_as_a_file(self, store: BlobStore, tmp_path: Path) -> None:
        """Other tools find the bytes in a file of the object's name, even after the root was
        moved."""
        store.put("a/b", b"123", "w")
        (tmp_path / "root").rename(tmp_path / "moved")
        assert (tmp_path / "moved/a/b").read_bytes() == b"123"
        (tmp_path / "moved").rename(tmp_path / "root")

    def test_what_a_dead_writer_left_is_an_upload(self, store: BlobStore, tmp_path: Path) -> None:
        """Bytes that were never published are listed as an upload, and can be aborted."""
        store.put("a/b", b"123", "w")
        (tmp_path / "root/.data/a/b/w~dead").write_bytes(b"12")
        (tmp_path / "root/.data/c").mkdir()
        (tmp_path / "root/.data/c/w~dead").write_bytes(b"12")
        assert [PendingUpload("a/b", "w~dead")] == list(store.uploads("a/"))
        for upload in list(store.uploads("")):
            store.abort(upload)
            store.abort(upload)
        assert list(store.uploads("")) == []
        assert bytes(store.get("a/b")) == b"123"

    @pytest.mark.parametrize("act", ["list", "uploads", "abort"])
    def test_a_folder_that_cannot_be_read(
        self, store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
    ) -> None:
        """A file system that fails for a while, as one in a network may, has no object that
        nobody published, and nothing of an object is deleted."""
        store.put("a/b", b"123", "w")

        def fail(*_: Any, **__: Any) -> Any:
            raise OSError(errno.ESTALE, "Stale file handle")

        (file,) = (path.name for path in (tmp_path / "root/.data/a/b").iterdir())
        acts: dict[str, Callable[[], object]] = {
            "list": lambda: list(store.list("")),
            "uploads": lambda: list(store.uploads("")),
            "abort": lambda: store.abort(PendingUpload("a/b", file)),
        }
        with monkeypatch.context() as patched:
            patched.setattr(os, "scandir" if act == "list" else "readlink", fail)
            with pytest.raises(Unavailable, match="Stale"):
                acts[act]()
        assert bytes(store.get("a/b")) == b"123"

    @pytest.mark.parametrize("number", [errno.EEXIST, errno.EIO])
    def test_a_file_system_that_repeats_what_it_has_done(
        self, store: BlobStore, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        """The answer to the first call is lost, and the second one finds the link of the first."""
        link = os.symlink

        def link_twice(target: str, place: Path) -> None:
            link(target, place)
            raise OSError(number, "once more")

        with monkeypatch.context() as patched:
            patched.setattr(os, "symlink", link_twice)
            store.put("a/b", b"123", "w")
        assert bytes(store.get("a/b")) == b"123"
        assert [] == list(store.uploads(""))

    def test_a_name_of_a_folder(self, store: BlobStore) -> None:
        """A folder is no object, as in a bucket."""
        store.put("a/b", b"123", "w")
        assert store.size_bytes("a") is None
        store.delete(["a"])
        assert bytes(store.get("a/b")) == b"123"

    def test_an_upload_aborted_under_its_writer(
        self, store: BlobStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A put whose bytes are aborted before they are published writes them again, even if an
        earlier try has taken its name."""
        write = FileBlobStore._write_body
        pending: list[PendingUpload] = []

        def write_body(self: FileBlobStore, *given: Any) -> Path:
            file = write(self, *given)
            if not pending:
                pending.extend(self.uploads(""))
                self.abort(*pending)
            return file

        monkeypatch.setattr(FileBlobStore, "_write_body", write_body)
        for _ in range(2):
            store.put("a/b", b"123", "w")
            assert bytes(store.get("a/b")) == b"123"
            assert [upload.name for upload in pending] == ["a/b"]
            pending.clear()

    def test_an_abort_while_its_upload_is_published(
        self, store: BlobStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An abort that found an upload unfinished never removes bytes that are being published."""
        publish, links_to = FileBlobStore._publish, FileBlobStore._links_to
        written, may_publish, published = (threading.Event() for _ in range(3))

        def publish_late(self: FileBlobStore, *given: Path) -> None:
            written.set()
            may_publish.wait(10)
            publish(self, *given)
            published.set()

        def links_to_it(self: FileBlobStore, *given: Any) -> bool:
            linked = links_to(self, *given)
            may_publish.set()
            published.wait(0.2)
            return linked

        monkeypatch.setattr(FileBlobStore, "_publish", publish_late)
        with ThreadPoolExecutor(1) as pool:
            put = pool.submit(store.put, "a/b", b"123", "w")
            written.wait(10)
            (upload,) = store.uploads("")
            with monkeypatch.context() as patched:
                patched.setattr(FileBlobStore, "_links_to", links_to_it)
                store.abort(upload)
            put.result()
        assert bytes(store.get("a/b")) == b"123"


class TestSpreadInMemory(BlobStoreSuite):
    @pytest.fixture
    def make(self) -> Callable[[], BlobStore]:
        buckets: list[Objects] = [{}, {}, {}]
        return lambda: SpreadBlobStore([MemoryBlobStore(bucket) for bucket in buckets])


class TestSpreadOverFolders(BlobStoreSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[], BlobStore]:
        return lambda: SpreadBlobStore([FileBlobStore(tmp_path / at) for at in "ab"])


class S3Suite(BlobStoreSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def endpoint(cls) -> Iterator[str]:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def client(cls, endpoint: str) -> Iterator[Any]:
        path_style = Config(s3={"addressing_style": "path"})
        client = boto3.client("s3", endpoint_url=endpoint, region_name=REGION, config=path_style)
        yield client
        client.close()

    @pytest.fixture
    def bucket(self, client: Any) -> Iterator[str]:
        name = f"suite-{next(numbers)}"
        client.create_bucket(Bucket=name)
        yield name
        client.delete_bucket(Bucket=name)

    @pytest.fixture
    def make(self, endpoint: str, bucket: str) -> Callable[[], BlobStore]:
        settings = S3Settings(bucket, endpoint, REGION, multipart=MULTIPART)
        return lambda: S3BlobStore(settings)

    def test_an_unfinished_upload_is_listed_and_dropped(
        self, store: BlobStore, client: Any, bucket: str
    ) -> None:
        """An unfinished upload is found by prefix, and can be aborted twice."""
        begun = client.create_multipart_upload(Bucket=bucket, Key="job/left")
        upload = PendingUpload("job/left", begun["UploadId"])
        assert [upload] == list(store.uploads("job/"))
        assert list(store.uploads("other/")) == []
        store.abort(upload)
        store.abort(upload)
        assert list(store.uploads("")) == []

    def test_the_write_id_travels_as_metadata(
        self, store: BlobStore, client: Any, bucket: str
    ) -> None:
        """Small and large objects carry the write id as metadata that any S3 client can read."""
        store.put("small", b"1", "r/0/1-2/0")
        store.put("large", bytes(9 * MIB), "r/0/1-2/1")
        ids = [
            client.head_object(Bucket=bucket, Key=name)["Metadata"]["headgate-write-id"]
            for name in ("small", "large")
        ]
        assert ids == ["r/0/1-2/0", "r/0/1-2/1"]


@contextmanager
def moto() -> Iterator[str]:
    """Start a server of buckets in this process, and name credentials for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "embedded")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "embedded-local")
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
        server.stop()


@pytest.mark.slow
class TestS3OnMoto(S3Suite):
    @pytest.fixture(scope="class")
    @classmethod
    def endpoint(cls) -> Iterator[str]:
        with moto() as endpoint:
            yield endpoint


@pytest.mark.slow
class TestSpreadOverBuckets(BlobStoreSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def endpoint(cls) -> Iterator[str]:
        with moto() as endpoint:
            yield endpoint

    @pytest.fixture
    def make(self, endpoint: str) -> Iterator[Callable[[], BlobStore]]:
        names = [f"spread-{next(numbers)}" for _ in range(2)]
        client = boto3.client("s3", endpoint_url=endpoint, region_name=REGION)
        for name in names:
            client.create_bucket(Bucket=name)
        settings = [S3Settings(name, endpoint, REGION, multipart=MULTIPART) for name in names]
        yield lambda: SpreadBlobStore([S3BlobStore(each) for each in settings])
        for name in names:
            client.delete_bucket(Bucket=name)
        client.close()


@pytest.mark.real
class TestS3OnMinio(S3Suite):
    @pytest.fixture(scope="class")
    @classmethod
    def endpoint(cls) -> Iterator[str]:
        state = stack.status()
        assert state is not None, "the real stack does not run: make stack"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ACCESS_KEY_ID", state.access_key)
            patch.setenv("AWS_SECRET_ACCESS_KEY", state.secret_key)
            yield state.endpoint


def test_sweeping_is_a_check_that_can_fail() -> None:
    """The suite's own cleanup notices an object that was not deleted."""

    class Keeps(MemoryBlobStore):
        def delete(self, names: object) -> None:
            return

    store = Keeps()
    store.put("a", b"1", "w")
    with pytest.raises(AssertionError):
        swept(store)
