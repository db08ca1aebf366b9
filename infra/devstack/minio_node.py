"""Run a MinIO server, built with `go install` at a pinned version.

Guarantees: the server listens on loopback only, makes no outgoing call, and frees deleted bytes
within seconds. Assumes Go for the first use, and that the credentials below protect only test data.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session

from ...control.errors import Unavailable
from .daemons import LOOPBACK, Daemon, launch, locked, run_tool

ACCESS_KEY = "headgate"
SECRET_KEY = "headgate-local"
BUCKET = "headgate"
_MODULE = "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"
_PROBE_LIMIT_S = 2.0

_ENVIRONMENT = {
    "MINIO_ROOT_USER": ACCESS_KEY,
    "MINIO_ROOT_PASSWORD": SECRET_KEY,
    "MINIO_BROWSER": "off",
    "MINIO_UPDATE": "off",
    "MINIO_CI_CD": "on",  # without it the server refuses a data folder on the root disk
    # Deleted bytes wait in the trash, 5 minutes by default: long runs would fill the disk.
    "MINIO_API_DELETE_CLEANUP_INTERVAL": "10s",
}


def fetch_binary(cache: Path, limit_s: float) -> None:
    """Build the server into the cache, unless the cache has it.

    Raises: Invalid without Go, Unavailable when the build fails or takes too long.
    """
    with locked(cache / "minio.lock", limit_s):
        binary = _binary(cache)
        if not binary.exists():
            print("headgate: building MinIO with Go, once (about 5 minutes)", file=sys.stderr)
            binary.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=binary.parent) as work:
                run_tool(["go", "install", _MODULE], limit_s, os.environ | {"GOBIN": work})
                Path(work, "minio").replace(binary)


def start(daemon: Daemon, cache: Path) -> Daemon:
    """Launch the server on the daemon's port."""
    data = Path(daemon.folder, "data")
    data.mkdir(parents=True, exist_ok=True)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("MINIO_")}
    argv = [str(_binary(cache)), "server", "--quiet", "--address", daemon.address, str(data)]
    return launch(daemon, argv, log(daemon), inherited | _ENVIRONMENT)


def is_ready(daemon: Daemon) -> bool:
    """Return True if the server says that it serves."""
    connection = HTTPConnection(LOOPBACK, daemon.port, timeout=_PROBE_LIMIT_S)
    with closing(connection), suppress(OSError, HTTPException):
        connection.request("GET", "/minio/health/ready")
        return connection.getresponse().status == 200
    return False


def make_bucket(endpoint: str) -> None:
    """Create the bucket unless it exists.

    Raises: Unavailable when the server does not create it.
    """
    client = Session().create_client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
        config=Config(proxies={}, s3={"addressing_style": "path"}),
    )
    try:
        client.create_bucket(Bucket=BUCKET)
    except client.exceptions.BucketAlreadyOwnedByYou:
        return
    except (BotoCoreError, ClientError) as exc:
        raise Unavailable(f"bucket {BUCKET} could not be made at {endpoint}: {exc}") from exc
    finally:
        client.close()


def _binary(cache: Path) -> Path:
    return cache / "bin" / "minio"


def log(daemon: Daemon) -> Path:
    """Return the file that the server's output goes to."""
    return Path(daemon.folder, "server.log")
