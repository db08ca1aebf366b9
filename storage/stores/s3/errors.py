"""The S3 door's translation of obstore's and botocore's errors into Headgate's.

An error is first reduced to a `Fault`: the store's answer, or the fact that there was none. One
table then turns faults into errors. Vendor text never reaches a message: it may hold signed
headers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from ....control.errors import (
    Conflict,
    Corrupt,
    HeadgateError,
    Invalid,
    Lost,
    Throttled,
    Unavailable,
)
from ..conditional_put import PutAnswer


class Sent(Enum):
    """The chance that a request without an answer reached the store."""

    NO = "no"  # no connection: the store has not seen the request
    MAYBE = "maybe"


@dataclass(frozen=True, slots=True)
class Fault:
    """A failed request, reduced to the store's answer."""

    status: int = 0
    """The HTTP status; 0 if there was no answer."""
    code: str = ""
    """The store's own error code; '' if it gave none."""
    sent: Sent = Sent.MAYBE
    retry_after_s: float = 0.0


# A client's own refusals take the form of a store's answer, so that one table serves both.
NO_CREDENTIALS = Fault(401, "NoCredentials", Sent.NO)
NOT_USABLE = Fault(400, "ClientConfiguration", Sent.NO)
WRONG_REGION = Fault(301, "PermanentRedirect")
BAD_TLS = Fault(495, "Certificate", Sent.NO)
NO_TLS = Fault(495, "NoTls", Sent.NO)

OBSTORE = {
    "AlreadyExistsError": Fault(412, "PreconditionFailed"),
    "PreconditionError": Fault(412, "PreconditionFailed"),
    "NotModifiedError": Fault(304, "NotModified"),
    "FileNotFoundError": Fault(404, ""),
    "NotFoundError": Fault(404, ""),
    "PermissionDeniedError": Fault(403, "AccessDenied"),
    "UnauthenticatedError": NO_CREDENTIALS,
    "InvalidPathError": NOT_USABLE,
    "UnknownConfigurationKeyError": NOT_USABLE,
    "NotSupportedError": Fault(501, "NotImplemented"),
    "ValueError": NOT_USABLE,
    "JoinError": Fault(),
    "GenericError": Fault(),
    "BaseError": Fault(),
}

BOTOCORE = {
    "ClientError": Fault(),
    "NoCredentialsError": NO_CREDENTIALS,
    "PartialCredentialsError": NO_CREDENTIALS,
    "CredentialRetrievalError": NO_CREDENTIALS,
    "MetadataRetrievalError": NO_CREDENTIALS,
    "SSOError": NO_CREDENTIALS,
    "LoginError": NO_CREDENTIALS,
    "TokenRetrievalError": NO_CREDENTIALS,
    "NoAuthTokenError": NO_CREDENTIALS,
    "RefreshWithMFAUnsupportedError": NO_CREDENTIALS,
    "ProfileNotFound": NO_CREDENTIALS,
    "EndpointConnectionError": Fault(sent=Sent.NO),
    "ConnectTimeoutError": Fault(sent=Sent.NO),
    "ProxyConnectionError": Fault(sent=Sent.NO),
    "SSLError": BAD_TLS,
    "HTTPClientError": Fault(),
    "ConnectionError": Fault(),
    "IncompleteReadError": Fault(),
    "BotoCoreError": NOT_USABLE,
}

THROTTLING = frozenset(
    {"SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "ThrottlingException"}
    | {"RequestLimitExceeded", "TooManyRequests", "TooManyRequestsException"}
)
LEFT_OPEN = frozenset({"RequestTimeout", "NoSuchUpload"})
REGION = frozenset(
    {"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed"}
    | {"IllegalLocationConstraintException"}
)
ADVICE = {
    "NoCredentials": "no AWS credentials were found; set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, a profile, a web identity or an instance role",
    "InvalidAccessKeyId": "the store does not know the access key; check AWS_ACCESS_KEY_ID or the "
    "profile, and that they belong to this endpoint",
    "SignatureDoesNotMatch": "the secret key does not fit the access key; check "
    "AWS_SECRET_ACCESS_KEY or the profile",
    "AccessDenied": "the credentials may not do this; grant s3:GetObject, s3:PutObject, "
    "s3:DeleteObject, s3:ListBucket, s3:AbortMultipartUpload and s3:ListBucketMultipartUploads",
    "InvalidToken": "the session token is not valid; renew the credentials, or unset "
    "AWS_SESSION_TOKEN where the keys are not temporary",
    "ExpiredToken": "the session token has expired; renew the credentials",
    "RequestTimeTooSkewed": "the clock of this machine is wrong; set it",
    "NoSuchBucket": "the bucket does not exist; create it or correct its name",
    "InvalidBucketName": "the store refuses the name of the bucket; correct it",
    "NoTls": "the endpoint is written as https, and what listens there does not speak TLS; write "
    "http, or correct the port",
    "Certificate": "the certificate is not trusted; set root_certificate or correct the endpoint",
    "ClientConfiguration": "the client refuses the configuration; check the s3 options and names",
    "RangeIgnored": "the store ignores byte ranges; it cannot be used",
    "NotImplemented": "the store lacks this request; `headgate doctor` says what a store can do",
}

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
_TLS = re.compile(r"certificate|tls handshake", re.IGNORECASE)
_PLAIN = re.compile(r"InvalidContentType|wrong version number|record layer failure", re.IGNORECASE)
_SAME = {"InvalidTokenId": "InvalidToken", "TokenRefreshRequired": "ExpiredToken"}


def fault_of(error: BaseException) -> Fault:
    """Return the fault that an error of either vendor reports."""
    module = type(error).__module__
    if module.startswith("botocore"):
        return _botocore_fault(error)
    return _obstore_fault(error)


def error_for(fault: Fault, place: str, name: str = "") -> HeadgateError:
    """Return the error for a fault. `place` names bucket and endpoint, `name` the object."""
    where = f"object {name}, {place}" if name else place
    code, status = fault.code, fault.status
    if code in THROTTLING or status in (429, 503):
        message = f"{where}: the store asks for fewer requests ({code or status})"
        return Throttled(message, retry_after_s=fault.retry_after_s)
    if status == 0:
        if fault.sent is Sent.NO:
            says = "no connection; check the endpoint and that the store is running"
        else:
            says = "the store did not answer in time or broke the connection"
        return Unavailable(f"{where}: {says}")
    if code in REGION or status in (301, 302, 307, 308):
        return Invalid(f"{where}: the bucket is in another region; set region")
    if code in ADVICE:
        return Invalid(f"{where}: {ADVICE[code]}")
    if status == 404 and not code:  # a store's own 404 says what is missing, except to a HEAD
        return Unavailable(f"{where}: there is no such object, says a proxy and not the store")
    if status == 404:
        return Lost(f"{where}: there is no such object")
    if status == 416:
        return Corrupt(f"{where}: the object ends before the range begins")
    if status == 412:
        return Conflict(f"{where}: a precondition failed")
    if status in (408, 409) or code == "RequestTimeout" or (status >= 500 and status != 501):
        return Unavailable(f"{where}: the store failed with {status} {code}".rstrip())
    if status in (401, 403):
        return Invalid(f"{where}: {ADVICE['AccessDenied']} ({status} {code})")
    return Invalid(f"{where}: the store refuses the request ({status} {code})")


def put_answer(fault: Fault) -> PutAnswer | None:
    """Return a create's answer, given its fault; None if the create simply failed and certainly
    wrote nothing."""
    if fault.status == 412:
        return PutAnswer.EXISTS
    if fault.status == 409:
        return PutAnswer.BUSY
    silent = fault.status == 0 and fault.sent is Sent.MAYBE
    # a store's own 503 has a code and wrote nothing; a proxy's 503 may hide a success
    failed = fault.status >= 500 and fault.status != 501
    if silent or (failed and fault.code not in THROTTLING) or fault.code in LEFT_OPEN:
        return PutAnswer.SILENT
    return None


def translated(error: Exception, place: str, name: str = "") -> HeadgateError:
    """Return the error to raise from a vendor's. Also cut from the vendor's error the text that
    may hold signed headers."""
    fault = fault_of(error)
    error.args = tuple(str(part).split(": <", 1)[0].split("\n", 1)[0] for part in error.args)
    return error_for(fault, place, name)


def _obstore_fault(error: BaseException) -> Fault:
    text = str(error)
    class_fault = _by_class(error, OBSTORE)
    status, code = _STATUS.search(text), _CODE.search(text)
    if status:
        answered = int(status[1])
        class_code = class_fault.code if class_fault.status == answered else ""
        return Fault(answered, _SAME.get(code[1], code[1]) if code else class_code)
    if class_fault.status:
        return class_fault
    if "redirect without LOCATION" in text:
        return WRONG_REGION
    if "non-partial response" in text:
        return Fault(200, "RangeIgnored")
    if "Generic Config error" in text:
        return NOT_USABLE
    if "kind: Connect" in text:
        if _PLAIN.search(text):
            return NO_TLS
        return BAD_TLS if _TLS.search(text) else Fault(sent=Sent.NO)
    return Fault()


def _botocore_fault(error: BaseException) -> Fault:
    response = getattr(error, "response", None)
    if not isinstance(response, dict) or "Error" not in response:
        fault = _by_class(error, BOTOCORE)
        return NO_TLS if fault is BAD_TLS and _PLAIN.search(str(error)) else fault
    meta = response.get("ResponseMetadata", {})
    code = str(response["Error"].get("Code", ""))
    code = _SAME.get(code, code)
    wait = str(meta.get("HTTPHeaders", {}).get("retry-after", ""))
    return Fault(
        int(meta.get("HTTPStatusCode", 0)),
        "" if code.isdigit() else code,
        retry_after_s=float(wait) if wait.isdigit() else 0.0,
    )


def _by_class(error: BaseException, table: dict[str, Fault]) -> Fault:
    names = (cls.__name__ for cls in type(error).__mro__)
    return next((table[name] for name in names if name in table), Fault())
