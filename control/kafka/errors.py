"""Translation of every error of Kafka and librdkafka into an error of Headgate.

Assumes nothing about the client library but the names of its error codes. A test checks that the
table has all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from .. import errors

_MEANINGS: dict[type[errors.HeadgateError], str] = {
    errors.Unavailable: """
        _FAIL _TRANSPORT _CRIT_SYS_RESOURCE _RESOLVE _UNKNOWN_PARTITION _FS _UNKNOWN_TOPIC
        _ALL_BROKERS_DOWN _TIMED_OUT _ISR_INSUFF _NODE_UPDATE _WAIT_COORD _UNKNOWN_GROUP
        _IN_PROGRESS _PREV_IN_PROGRESS _CONFLICT _STATE _TIMED_OUT_QUEUE _WAIT_CACHE _INTR _PARTIAL
        _NOENT _UNDERFLOW _RETRY _PURGE_QUEUE _FATAL _INCONSISTENT _GAPLESS_GUARANTEE
        _MAX_POLL_EXCEEDED _UNKNOWN_BROKER _NOT_CONFIGURED _APPLICATION _ASSIGNMENT_LOST _NOOP
        _OUTDATED _EXISTING_SUBSCRIPTION _ASSIGN_PARTITIONS _REVOKE_PARTITIONS _NO_OFFSET
        _PARTITION_EOF _DESTROY_BROKER UNKNOWN NO_ERROR UNKNOWN_TOPIC_OR_PART LEADER_NOT_AVAILABLE
        NOT_LEADER_FOR_PARTITION REQUEST_TIMED_OUT BROKER_NOT_AVAILABLE REPLICA_NOT_AVAILABLE
        STALE_CTRL_EPOCH NETWORK_EXCEPTION COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE
        NOT_COORDINATOR NOT_ENOUGH_REPLICAS ILLEGAL_GENERATION UNKNOWN_MEMBER_ID
        REBALANCE_IN_PROGRESS NOT_CONTROLLER OUT_OF_ORDER_SEQUENCE_NUMBER INVALID_TXN_STATE
        INVALID_PRODUCER_ID_MAPPING CONCURRENT_TRANSACTIONS TRANSACTION_COORDINATOR_FENCED
        OPERATION_NOT_ATTEMPTED KAFKA_STORAGE_ERROR LOG_DIR_NOT_FOUND UNKNOWN_PRODUCER_ID
        REASSIGNMENT_IN_PROGRESS GROUP_ID_NOT_FOUND FETCH_SESSION_ID_NOT_FOUND
        INVALID_FETCH_SESSION_EPOCH LISTENER_NOT_FOUND FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH
        STALE_BROKER_EPOCH OFFSET_NOT_AVAILABLE MEMBER_ID_REQUIRED PREFERRED_LEADER_NOT_AVAILABLE
        ELIGIBLE_LEADERS_NOT_AVAILABLE ELECTION_NOT_NEEDED NO_REASSIGNMENT_IN_PROGRESS
        UNSTABLE_OFFSET_COMMIT RESOURCE_NOT_FOUND INCONSISTENT_VOTER_SET UNKNOWN_TOPIC_ID
        INCONSISTENT_TOPIC_ID STALE_MEMBER_EPOCH UNRELEASED_INSTANCE_ID UNKNOWN_CONTROLLER_ID
        UNKNOWN_SUBSCRIPTION_ID TRANSACTION_ABORTABLE SHARE_SESSION_NOT_FOUND
        INVALID_SHARE_SESSION_EPOCH VOTER_NOT_FOUND REBOOTSTRAP_REQUIRED
        SHARE_SESSION_LIMIT_REACHED FENCED_STATE_EPOCH INVALID_RECORD_STATE
        STREAMS_INVALID_TOPOLOGY_EPOCH FENCED_MEMBER_EPOCH FENCED_INSTANCE_ID
        STREAMS_TOPOLOGY_FENCED FEATURE_UPDATE_FAILED UNSUPPORTED_FOR_MESSAGE_FORMAT
        """,
    errors.Throttled: "_QUEUE_FULL THROTTLING_QUOTA_EXCEEDED",
    errors.OutcomeUnknown: """
        _MSG_TIMED_OUT _PURGE_INFLIGHT NOT_ENOUGH_REPLICAS_AFTER_APPEND DUPLICATE_SEQUENCE_NUMBER
        """,
    errors.Conflict: """
        TOPIC_ALREADY_EXISTS NON_EMPTY_GROUP GROUP_SUBSCRIBED_TO_TOPIC DUPLICATE_RESOURCE
        DUPLICATE_VOTER
        """,
    errors.Fenced: "_FENCED INVALID_PRODUCER_EPOCH PRODUCER_FENCED",
    errors.Corrupt: """
        _BAD_MSG _BAD_COMPRESSION _KEY_DESERIALIZATION _VALUE_DESERIALIZATION
        _INVALID_DIFFERENT_RECORD INVALID_MSG INVALID_RECORD PRINCIPAL_DESERIALIZATION_FAILURE
        """,
    errors.Lost: "_AUTO_OFFSET_RESET _LOG_TRUNCATION OFFSET_OUT_OF_RANGE",
    errors.Closed: "_DESTROY",
    errors.Invalid: """
        _INVALID_ARG _SSL _AUTHENTICATION _UNKNOWN_PROTOCOL _NOT_IMPLEMENTED _UNSUPPORTED_FEATURE
        _KEY_SERIALIZATION _VALUE_SERIALIZATION _READ_ONLY _INVALID_TYPE INVALID_MSG_SIZE
        MSG_SIZE_TOO_LARGE OFFSET_METADATA_TOO_LARGE TOPIC_EXCEPTION RECORD_LIST_TOO_LARGE
        INVALID_REQUIRED_ACKS INCONSISTENT_GROUP_PROTOCOL INVALID_GROUP_ID INVALID_SESSION_TIMEOUT
        INVALID_COMMIT_OFFSET_SIZE TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED
        CLUSTER_AUTHORIZATION_FAILED INVALID_TIMESTAMP UNSUPPORTED_SASL_MECHANISM
        ILLEGAL_SASL_STATE UNSUPPORTED_VERSION INVALID_PARTITIONS INVALID_REPLICATION_FACTOR
        INVALID_REPLICA_ASSIGNMENT INVALID_CONFIG INVALID_REQUEST POLICY_VIOLATION
        INVALID_TRANSACTION_TIMEOUT TRANSACTIONAL_ID_AUTHORIZATION_FAILED SECURITY_DISABLED
        SASL_AUTHENTICATION_FAILED DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_NOT_FOUND
        DELEGATION_TOKEN_OWNER_MISMATCH DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        DELEGATION_TOKEN_AUTHORIZATION_FAILED DELEGATION_TOKEN_EXPIRED INVALID_PRINCIPAL_TYPE
        TOPIC_DELETION_DISABLED UNSUPPORTED_COMPRESSION_TYPE GROUP_MAX_SIZE_REACHED
        UNACCEPTABLE_CREDENTIAL INVALID_UPDATE_VERSION UNSUPPORTED_ASSIGNOR
        MISMATCHED_ENDPOINT_TYPE UNSUPPORTED_ENDPOINT_TYPE TELEMETRY_TOO_LARGE
        INVALID_REGISTRATION INVALID_VOTER_KEY INVALID_REGULAR_EXPRESSION STREAMS_INVALID_TOPOLOGY
        """,
}
MEANINGS: Mapping[str, type[errors.HeadgateError]] = MappingProxyType(
    {name: kind for kind, names in _MEANINGS.items() for name in names.split()}
)

# These errors do not say if the broker has a record that was sent.
_UNCERTAIN = frozenset(
    ["_TRANSPORT", "_TIMED_OUT", "REQUEST_TIMED_OUT", "NETWORK_EXCEPTION", "_FATAL", "_DESTROY"]
)


class ErrorCode(Protocol):
    """The methods of the client library's error that are used here."""

    def name(self) -> str: ...
    def str(self) -> str: ...


def translate(error: ErrorCode, doing: str) -> errors.HeadgateError:
    """Return the error of Headgate that an error code of Kafka means."""
    kind = MEANINGS.get(error.name(), errors.Unavailable)
    return kind(f"{doing}: {error.str()} ({error.name()})")


def translate_reading(error: ErrorCode, doing: str, has_read: bool) -> errors.HeadgateError:
    """Translate an error of a reader.

    A refusal after a successful read is taken for temporary, for example while access rights
    change: `Invalid` becomes `Unavailable`.
    """
    meaning = translate(error, doing)
    if has_read and isinstance(meaning, errors.Invalid):
        return errors.Unavailable(str(meaning))
    return meaning


def translate_delivery(error: ErrorCode, doing: str) -> errors.HeadgateError:
    """Translate an error of a record that was sent and not confirmed."""
    if error.name() in _UNCERTAIN:
        return errors.OutcomeUnknown(f"{doing}: {error.str()} ({error.name()})")
    return translate(error, doing)


_CAUSES = (
    ("Connection refused", "nothing listens there; is the broker running, and its port right?"),
    ("Failed to resolve", "the name of the host is not known"),
    (
        "Invalid response size",
        "what listens there does not speak Kafka, or speaks another security.protocol",
    ),
    ("wrong version number", "the broker does not speak TLS there; check security.protocol"),
    (
        "SSL handshake",
        "TLS fails; check security.protocol, the port, and the certificates",
    ),
    (
        "APIVERSION_QUERY",
        "what listens there is not Kafka, or wants another security.protocol, such as SSL",
    ),
    ("Timed out", "nothing answers; is what listens there Kafka, is a firewall between?"),
)
"""Parts of texts of the client library, and the likely cause of each, the surest first."""


def explained(texts: Sequence[str]) -> str:
    """Return the likely cause for which no broker was reached, by what the client library has told
    of its tries, and the text that shows it; the first text if there is no likely cause."""
    shown = ((cause, text) for part, cause in _CAUSES for text in texts if part in text)
    cause, text = next(shown, ("", texts[0]))
    return f"{cause} ({text})" if cause else text
